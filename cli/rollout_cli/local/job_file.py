"""The local run's store: one job in `job.json`, in the run's directory.

The gateway writes the job's spec, the reconcile loop its status, anybody reads. It behaves as the API server
does for one object: `resourceVersion` is compare-and-set, `generation` moves with the spec alone, spec and
status never change each other. Every write replaces the file in one step, under a lock that holds between
threads and processes. Checks nothing of the contents: that is the caller's part (`rollout_contract.spec`).
"""

from __future__ import annotations

import contextlib
import copy
import fcntl
import json
import os
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rollout_contract.errors import RolloutError

Document = dict[str, Any]

FILE_NAME = "job.json"
LOCK_NAME = "job.lock"
LOCK_TIMEOUT_S = 10.0
"""Writes take milliseconds; whoever holds the lock for longer is stopped or hangs."""
LOCK_RETRY_S = 0.005


class JobFileError(RolloutError):
    """The job's file cannot be read or written."""


class JobConflict(JobFileError):
    """The job changed since it was read: `expected` and `found` are resource versions. Read it and decide
    again.
    """

    def __init__(self, *, expected: str, found: str) -> None:
        super().__init__(
            f"the job has changed: its resourceVersion is {found}, not {expected}; read it again"
        )
        self.expected = expected
        self.found = found


class JobGone(JobFileError, LookupError):
    """There is no job, or it is another one than the caller meant."""


class JobExists(JobFileError):
    """The store holds one job and has one already."""


class JobFile:
    """The store of one job. Calls block for milliseconds at most, and may come from any thread or process.

    Subscribers are told of writes that go through this object; another process' writes are seen at the next
    read.
    """

    def __init__(self, run_dir: Path, *, clock: Callable[[], float] = time.time) -> None:
        self.path = run_dir / FILE_NAME
        self._lock_path = run_dir / LOCK_NAME
        self._clock = clock
        self._subscribers: list[Callable[[], None]] = []

    def create(self, manifest: Document, *, uid: str | None = None) -> Document:
        """Store a new job (kind, metadata.name, spec; defaults already written out) and return it as stored.

        `metadata.namespace` becomes `default` if unset. JobExists if there is a job already.
        """
        document = copy.deepcopy(manifest)
        document.pop("status", None)
        metadata = document["metadata"]
        metadata.setdefault("namespace", "default")
        metadata |= {
            "uid": uid or str(uuid.uuid4()),
            "generation": 1,
            "resourceVersion": "1",
            "creationTimestamp": self._now(),
        }
        with self._locked():
            if self.path.exists():
                held = self._load()["metadata"]
                raise JobExists(
                    f"this run holds job {held.get('namespace')}/{held.get('name')} already: a local run has one job"
                )
            self._store(document)
        self._notify()
        return copy.deepcopy(document)

    def read(self) -> Document:
        """The whole document. JobGone if there is none."""
        return self._load()

    def update(
        self,
        *,
        spec: Document,
        metadata: Document | None = None,
        expected: str | None = None,
        uid: str | None = None,
    ) -> Document:
        """Replace the spec (and, if given, labels and annotations of the metadata) and return the document as stored.

        `expected` is the resource version that the caller read (None: whatever it is now): JobConflict if it
        is no longer the newest. A spec that is equal to the old one changes neither generation nor resource
        version.
        """

        def change(document: Document) -> Document:
            new = document | {"spec": copy.deepcopy(spec)}
            kept = {
                key: value
                for key, value in document["metadata"].items()
                if key not in {"labels", "annotations"}
            }
            labels = metadata if metadata is not None else document["metadata"]
            new["metadata"] = kept | {
                key: labels[key] for key in ("labels", "annotations") if labels.get(key)
            }
            if new["spec"] != document["spec"]:
                new["metadata"]["generation"] = document["metadata"]["generation"] + 1
            return new

        return self._change(change, expected=expected, uid=uid)

    def write_status(
        self, status: Document, *, expected: str | None = None, uid: str | None = None
    ) -> Document:
        """Replace the status and return the document as stored. Errors as in `update`."""
        return self._change(
            lambda document: document | {"status": copy.deepcopy(status)}, expected=expected, uid=uid
        )

    def delete(self, *, expected: str | None = None, uid: str | None = None) -> Document:
        """Remove the job and return what it was. Its pods go with it: the cluster sees that it is gone."""
        with self._locked():
            document = self._load()
            _check(document, expected=expected, uid=uid)
            self.path.unlink()
        self._notify()
        return document

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` after each change, in the writer's thread; the returned function ends that."""
        self._subscribers.append(callback)

        def unsubscribe() -> None:
            with contextlib.suppress(ValueError):
                self._subscribers.remove(callback)

        return unsubscribe

    def _change(
        self, change: Callable[[Document], Document], *, expected: str | None, uid: str | None
    ) -> Document:
        with self._locked():
            document = self._load()
            _check(document, expected=expected, uid=uid)
            new = change(copy.deepcopy(document))
            if new == document:
                return new
            new["metadata"]["resourceVersion"] = str(int(document["metadata"]["resourceVersion"]) + 1)
            self._store(new)
        self._notify()
        return copy.deepcopy(new)

    def _load(self) -> Document:
        try:
            document = json.loads(self.path.read_text(encoding="utf-8"))
            int(document["metadata"]["resourceVersion"])
        except FileNotFoundError:
            raise JobGone(f"there is no job in {self.path.parent}") from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise JobFileError(f"{self.path} cannot be read as a job: {error}") from error
        return document  # type: ignore[no-any-return]

    def _store(self, document: Document) -> None:
        try:
            # Not synced to the disk: a run does not outlive its machine, and status comes every second.
            with tempfile.NamedTemporaryFile(
                "w", encoding="utf-8", dir=self.path.parent, prefix=".job-", suffix=".json", delete=False
            ) as file:
                try:
                    json.dump(document, file, indent=2)
                    file.flush()
                    os.replace(file.name, self.path)
                except BaseException:
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(file.name)
                    raise
        except OSError as error:
            raise JobFileError(f"{self.path} cannot be written: {error}") from error

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            descriptor = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise JobFileError(f"{self._lock_path} cannot be opened: {error}") from error
        try:
            self._wait_for_lock(descriptor)
            yield
        finally:
            os.close(descriptor)

    def _wait_for_lock(self, descriptor: int) -> None:
        deadline = time.monotonic() + LOCK_TIMEOUT_S
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise JobFileError(
                        f"{self._lock_path} has been locked by another process for {LOCK_TIMEOUT_S:g} s; is it stopped?"
                    ) from None
                time.sleep(LOCK_RETRY_S)

    def _notify(self) -> None:
        for callback in tuple(self._subscribers):
            callback()

    def _now(self) -> str:
        return datetime.fromtimestamp(int(self._clock()), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _check(document: Document, *, expected: str | None, uid: str | None) -> None:
    metadata = document["metadata"]
    if uid is not None and metadata["uid"] != uid:
        raise JobGone(f"job {metadata['name']} is another one now: its uid is {metadata['uid']}, not {uid}")
    if expected is not None and metadata["resourceVersion"] != expected:
        raise JobConflict(expected=expected, found=metadata["resourceVersion"])
