"""The local run's cluster: its one job is a file, its pods are processes.

Made by `rolloutctl run`; the reconcile loop speaks to it as to Kubernetes (`rollout_operator.cluster.Cluster`). A pod's
end, readiness and deletion are events, and so is each change of the job's file; nothing is polled but the workers'
health endpoints. Closing it ends every process that it started, with all descendants; if this process is killed, they
end by themselves.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from rollout_cli.local.job_file import JobConflict, JobFile, JobFileError, JobGone
from rollout_cli.local.pod import LocalPod, Machine, tail_of
from rollout_contract import podenv
from rollout_contract.spec import KeyRef
from rollout_operator.cluster import (
    ClusterError,
    Creation,
    Document,
    Event,
    EventKind,
    JobKey,
    PodRef,
    StaleJob,
)
from rollout_operator.pods import PodView

log = logging.getLogger(__name__)

REDIS_SECRET = KeyRef(name="rollout-redis", key="password")
"""Where a local run's workers find the password of its server: `OperatorSettings.redis_secret`."""
MAX_EVENTS = 200
CLOSE_GRACE_S = 10.0
CLOSE_PATIENCE_S = 20.0
"""Beyond the grace: SIGKILL takes milliseconds, and the launcher gives up on stuck processes after seconds."""
_OWN_VARIABLES = (
    podenv.WORKER,
    podenv.REDIS_PASSWORD,
    podenv.TERMINATION_LOG,
    podenv.HEALTH_FILE,
    podenv.NODE_NAME,
)


class LocalCluster:
    """`Cluster` of one run. Belongs to the event loop in which it is used; close it, or use it with `async with`."""

    def __init__(
        self,
        job_file: JobFile,
        run_dir: Path,
        *,
        password: str | None = None,
        secrets: Mapping[tuple[str, str], str] | None = None,
        work_dir: Path | None = None,
        environ: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`password` is that of the run's server (the Secret `REDIS_SECRET`), `secrets` are others by (name, key).

        Programs run in `work_dir` (the run's directory unless given) with `environ` (this process' own unless given).
        """
        self._job_file = job_file
        own = {(REDIS_SECRET.name, REDIS_SECRET.key): password} if password else {}
        inherited = os.environ if environ is None else environ
        self._machine = Machine(
            run_dir=run_dir,
            work_dir=work_dir or run_dir,
            environ={key: value for key, value in inherited.items() if key not in _OWN_VARIABLES},
            secrets={**own, **(secrets or {})},
            node=socket.gethostname(),
            clock=clock,
            changed=self._changed,
        )
        self._pods: dict[str, LocalPod] = {}
        self._watchers: list[Callable[[JobKey], None]] = []
        self._key: JobKey | None = None
        """The job that the pods belong to: all of a run's pods have the same."""
        self._is_closed = False
        self.events: deque[Event] = deque(maxlen=MAX_EVENTS)
        """The newest events, for the screen."""

    def __repr__(self) -> str:
        return f"LocalCluster({self._job_file.path}, {len(self._pods)} pods)"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # --- jobs

    async def list_jobs(self) -> list[JobKey]:
        """The run's job, if it is there."""
        document = await self._read()
        return [] if document is None else [_key(document)]

    async def get_job(self, key: JobKey) -> Document | None:
        """The job's document."""
        document = await self._read()
        return document if document is not None and _key(document) == key else None

    async def write_status(
        self, key: JobKey, status: Document, *, job_uid: str, resource_version: str
    ) -> None:
        """Replace the job's status. StaleJob if the job is no longer the one that was read."""
        try:
            await asyncio.to_thread(
                self._job_file.write_status, status, expected=resource_version or None, uid=job_uid
            )
        except (JobConflict, JobGone) as error:
            raise StaleJob(f"{key}: {error}") from error
        except JobFileError as error:
            raise ClusterError(f"{key}: {error}") from error

    async def delete_job(self, key: JobKey, *, job_uid: str) -> None:
        """Remove the job, and its pods with it."""
        try:
            await asyncio.to_thread(self._job_file.delete, uid=job_uid)
        except JobGone:
            log.debug("%s: was gone already", key)
        except JobFileError as error:
            raise ClusterError(f"{key}: {error}") from error

    async def emit(self, key: JobKey, events: Sequence[Event], *, job_uid: str) -> None:
        """Keep events for the screen, and log them."""
        for event in events:
            level = logging.WARNING if event.kind is EventKind.WARNING else logging.INFO
            log.log(level, "%s: %s: %s", key, event.reason, event.message)
        self.events.extend(events)

    # --- pods

    async def list_pods(self, key: JobKey, *, job_uid: str) -> Sequence[PodView]:
        """The pods of the job of this UID."""
        return [PodView.of(pod.document) for pod in self._pods.values() if _owner(pod.document) == job_uid]

    async def create_pod(self, manifest: Document) -> Creation:
        """Start a pod's process. PodRefused if it cannot be started here."""
        if self._is_closed:
            raise ClusterError("the run is ending: nothing is started any more")
        name = manifest["metadata"]["name"]
        if (there := self._pods.get(name)) is not None:
            if _owner(there.document) == _owner(manifest):
                return Creation.OURS
            ending = there.document["metadata"].get("deletionTimestamp")
            return Creation.FOREIGN_ENDING if ending else Creation.FOREIGN
        self._key = JobKey(manifest["metadata"]["namespace"], _owner_name(manifest))
        pod = LocalPod(manifest, self._machine)
        self._pods[name] = pod
        pod.gone.add_done_callback(lambda task: self._forget(name, pod, task))
        self._changed()
        return Creation.CREATED

    async def check_pod(self, manifest: Document) -> None:
        """See `Cluster`: a process has no rules but those of its start."""

    async def delete_pod(self, pod: PodRef, *, grace_s: float | None = None) -> bool:
        """Ask a pod to end."""
        found = self._find(pod)
        if found is not None:
            found.delete(grace_s)
        return found is not None

    async def annotate_pod(self, pod: PodRef, annotations: Mapping[str, str]) -> bool:
        """Set annotations on a pod."""
        found = self._find(pod)
        if found is not None:
            found.annotate(annotations)
        return found is not None

    async def read_log(self, pod: PodRef, *, tail_bytes: int = 16_384) -> str:
        """The end of what the worker wrote, also when the pod is gone."""
        path = self._machine.run_dir / "logs" / f"{pod.name}.log"
        return await asyncio.to_thread(tail_of, path, tail_bytes)

    # --- watching and closing

    async def watch(self, changed: Callable[[JobKey], None]) -> None:
        """Call `changed` for the job at the start and after each change of it or of its pods, until cancelled."""
        loop = asyncio.get_running_loop()

        def notice() -> None:
            with contextlib.suppress(RuntimeError):  # the loop was closed: nobody is watching any more
                loop.call_soon_threadsafe(wake.set)

        wake = asyncio.Event()
        wake.set()
        unsubscribe = self._job_file.subscribe(notice)
        self._watchers.append(changed)
        try:
            key: JobKey | None = None
            while True:
                await wake.wait()
                wake.clear()
                document = await self._read()
                self._collect_garbage(document)
                key = _key(document) if document is not None else key
                if key is not None:
                    changed(key)
        finally:
            self._watchers.remove(changed)
            unsubscribe()

    async def close(self, *, grace_s: float = CLOSE_GRACE_S) -> None:
        """End every pod, in order within the grace, and wait until nothing is left. Nothing can be started afterwards."""
        self._is_closed = True
        pods = list(self._pods.values())
        for pod in pods:
            pod.delete(grace_s)
        if not pods:
            return
        _, left = await asyncio.wait([pod.gone for pod in pods], timeout=grace_s + CLOSE_PATIENCE_S)
        for task in left:
            log.error("%s could not be ended within %g s", task.get_name(), grace_s + CLOSE_PATIENCE_S)
            task.cancel()

    def _collect_garbage(self, document: Document | None) -> None:
        """What owns a pod is gone, so the pod goes too."""
        uid = document["metadata"]["uid"] if document is not None else None
        for pod in list(self._pods.values()):
            if _owner(pod.document) != uid:
                pod.delete(None)

    def _find(self, ref: PodRef) -> LocalPod | None:
        pod = self._pods.get(ref.name)
        return pod if pod is not None and pod.uid == ref.uid else None

    def _forget(self, name: str, pod: LocalPod, task: asyncio.Task[None]) -> None:
        if self._pods.get(name) is pod:
            del self._pods[name]
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("pod %s: its watch failed", name, exc_info=error)
        self._changed()

    def _changed(self) -> None:
        if self._key is not None:
            for watcher in self._watchers:
                watcher(self._key)

    async def _read(self) -> Document | None:
        try:
            return await asyncio.to_thread(self._job_file.read)
        except JobGone:
            return None
        except JobFileError as error:
            raise ClusterError(str(error)) from error


def _key(document: Document) -> JobKey:
    return JobKey(document["metadata"]["namespace"], document["metadata"]["name"])


def _owner(document: Document) -> str:
    return str(document["metadata"]["ownerReferences"][0]["uid"])


def _owner_name(document: Document) -> str:
    return str(document["metadata"]["ownerReferences"][0]["name"])
