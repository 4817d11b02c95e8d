"""What the watches have brought: jobs as compact JSON, pods as views. Pure, but for holding it.

Fed by the watches, and by the answers to our own writes, so that a reconcile sees what the one before it did although
the watch has not brought it yet. The newer resourceVersion wins, whatever order things arrive in; what was deleted does
not come back with a late answer.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from rollout_contract import names
from rollout_operator.cluster import Document, JobKey
from rollout_operator.pods import PodView

MAX_REMEMBERED_DELETIONS = 20_000


class Deletions:
    """UIDs of the newest deletions: no UID is ever given twice."""

    def __init__(self, limit: int = MAX_REMEMBERED_DELETIONS) -> None:
        self._order: deque[str] = deque()
        self._known: set[str] = set()
        self._limit = limit

    def __contains__(self, uid: str) -> bool:
        return uid in self._known

    def add(self, uid: str) -> None:
        """Remember a deletion."""
        if uid in self._known:
            return
        self._known.add(uid)
        self._order.append(uid)
        if len(self._order) > self._limit:
            self._known.discard(self._order.popleft())


class _Job(NamedTuple):
    uid: str
    version: int
    data: bytes


class JobCache:
    """Jobs by name."""

    def __init__(self) -> None:
        self._jobs: dict[JobKey, _Job] = {}
        self._deleted = Deletions()

    def __len__(self) -> int:
        return len(self._jobs)

    def __contains__(self, key: JobKey) -> bool:
        return key in self._jobs

    def keys(self) -> list[JobKey]:
        """Every job."""
        return list(self._jobs)

    def get(self, key: JobKey) -> Document | None:
        """The job's document, the caller's own; None if there is none."""
        job = self._jobs.get(key)
        return None if job is None else json.loads(job.data)

    def version(self, key: JobKey) -> tuple[str, int] | None:
        """UID and resourceVersion of what is held."""
        job = self._jobs.get(key)
        return None if job is None else (job.uid, job.version)

    def put(self, document: Document) -> JobKey:
        """Take a job in, unless a newer version is there or it is known to be deleted."""
        metadata = document["metadata"]
        key, uid, version = job_key(metadata), metadata["uid"], version_of(metadata)
        held = self._jobs.get(key)
        if uid in self._deleted or (held is not None and held.version > version):
            return key
        kept = {name: value for name, value in metadata.items() if name != "managedFields"}
        data = json.dumps({**document, "metadata": kept}, separators=(",", ":")).encode()
        self._jobs[key] = _Job(uid, version, data)
        return key

    def remove(self, key: JobKey, uid: str) -> None:
        """The job of this UID is gone; one that was created anew under its name stays."""
        self._deleted.add(uid)
        held = self._jobs.get(key)
        if held is not None and held.uid == uid:
            del self._jobs[key]


class _Pod(NamedTuple):
    version: int
    job_uid: str
    key: JobKey
    view: PodView


class PodCache:
    """Worker pods by the job that owns them."""

    def __init__(self) -> None:
        self._pods: dict[str, _Pod] = {}
        self._by_job: dict[str, set[str]] = {}
        self._deleted = Deletions()

    def __len__(self) -> int:
        return len(self._pods)

    def __iter__(self) -> Iterator[PodView]:
        return (pod.view for pod in self._pods.values())

    def of_job(self, job_uid: str) -> list[PodView]:
        """The pods that the job of this UID owns."""
        return [self._pods[uid].view for uid in self._by_job.get(job_uid, ())]

    def put(self, document: Document) -> JobKey | None:
        """Take a pod in, unless it is known to be newer or deleted. The job it belongs to; None: to none of ours."""
        metadata = document["metadata"]
        owner = owner_of(metadata)
        if owner is None:
            return None
        uid, version = metadata["uid"], version_of(metadata)
        key = JobKey(metadata["namespace"], owner["name"])
        held = self._pods.get(uid)
        if uid not in self._deleted and (held is None or held.version <= version):
            try:
                view = PodView.of(document)
            except ValueError:
                return None  # owned by a job, and not a worker: not made by us
            self._pods[uid] = _Pod(version, owner["uid"], key, view)
            self._by_job.setdefault(owner["uid"], set()).add(uid)
        return key

    def remove(self, uid: str) -> None:
        """The pod is gone."""
        self._deleted.add(uid)
        held = self._pods.pop(uid, None)
        if held is None:
            return
        own = self._by_job[held.job_uid]
        own.discard(uid)
        if not own:
            del self._by_job[held.job_uid]

    def keep_only(self, uids: Iterable[str], *, namespace: str | None, version: int) -> list[JobKey]:
        """After a list as of `version`: what it did not name and is no newer is gone. The jobs that lost pods."""
        listed = set(uids)
        gone = [
            uid
            for uid, pod in self._pods.items()
            if uid not in listed
            and pod.version <= version
            and (namespace is None or pod.view.namespace == namespace)
        ]
        jobs = sorted({self._pods[uid].key for uid in gone})
        for uid in gone:
            self.remove(uid)
        return jobs


def whole(job: Document) -> Document:
    """A job out of a list: its items say neither version nor kind."""
    return {"apiVersion": names.API_VERSION, "kind": names.KIND, **job}


def job_key(metadata: dict[str, Any]) -> JobKey:
    """Which job some metadata is of."""
    return JobKey(metadata["namespace"], metadata["name"])


def version_of(metadata: dict[str, Any]) -> int:
    """The resourceVersion as a number: every API server that is in use counts, and so newer is greater."""
    text = str(metadata.get("resourceVersion") or "0")
    return int(text) if text.isdecimal() else 0


def owner_of(metadata: dict[str, Any]) -> dict[str, Any] | None:
    """The reference to the job that controls the object; None if it is not one of ours."""
    for owner in metadata.get("ownerReferences") or ():
        group = str(owner.get("apiVersion", "")).partition("/")[0]
        if owner.get("controller") and owner.get("kind") == names.KIND and group == names.GROUP_NAME:
            return dict(owner)
    return None
