"""`redis.cleanupPolicy: Delete`: a finalizer of our own, so that a job's keys go with the job. Always with a deadline.

Wraps the reconciler. Only jobs that ask for it get the finalizer, before anything of theirs is made; at deletion workers
end first, then the keys go, then the finalizer. 120 s after the deletion was asked for the finalizer goes whatever
happened: the keys expire by themselves.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from rollout_contract import names
from rollout_contract.errors import SpecError, StreamError
from rollout_contract.spec import RolloutJob, parse_manifest
from rollout_operator.cluster import Document, Event, EventKind, JobKey, PodRef
from rollout_operator.pods import PodView
from rollout_operator.times import to_seconds

log = logging.getLogger(__name__)

FINALIZER = f"{names.GROUP_NAME}/redis-cleanup"
DEADLINE_S = 120.0
WORKERS_DEADLINE_S = 90.0
"""After so long the keys go although workers still end: they are fenced by that."""
RETRY_S = 3.0


class Step(Enum):
    """What a job's finalizer asks for."""

    NOTHING = "nothing"
    ADD = "add"
    CLEAN = "clean"


def step_of(document: Document) -> Step:
    """What to do about a job's finalizer before it is reconciled. Pure."""
    metadata, spec = document["metadata"], document.get("spec") or {}
    has_it = FINALIZER in (metadata.get("finalizers") or ())
    if metadata.get("deletionTimestamp"):
        return Step.CLEAN if has_it else Step.NOTHING
    is_ours = spec.get("managedBy", names.OPERATOR_NAME) == names.OPERATOR_NAME
    wants_it = (spec.get("redis") or {}).get("cleanupPolicy") == "Delete"
    return Step.ADD if is_ours and wants_it and not has_it else Step.NOTHING


class FinalizedCluster(Protocol):
    """What this needs of the cluster."""

    async def get_job(self, key: JobKey) -> Document | None:
        """See `Cluster`."""

    async def list_pods(self, key: JobKey, *, job_uid: str) -> Sequence[PodView]:
        """See `Cluster`."""

    async def delete_pod(self, pod: PodRef) -> bool:
        """See `Cluster`."""

    async def emit(self, key: JobKey, events: Sequence[Event], *, job_uid: str) -> None:
        """See `Cluster`."""

    async def set_finalizers(
        self, key: JobKey, finalizers: Sequence[str], *, job_uid: str, resource_version: str
    ) -> None:
        """Replace the job's finalizers."""


class KeyRemover(Protocol):
    """What this needs of the data plane."""

    async def delete(self, job: RolloutJob) -> None:
        """Remove every key of the job. StreamError."""


@dataclass(frozen=True, slots=True)
class Cleanup:
    """Looks after finalizers, and passes every other job on to `inner`."""

    cluster: FinalizedCluster
    keys: KeyRemover
    inner: Callable[[JobKey], Awaitable[float | None]]
    clock: Callable[[], float] = field(default=time.time)
    """Seconds since 1970."""

    async def reconcile(self, key: JobKey) -> float | None:
        """Work on one job; see `Reconciler.reconcile`."""
        document = await self.cluster.get_job(key)
        step = Step.NOTHING if document is None else step_of(document)
        if document is None or step is Step.NOTHING:
            return await self.inner(key)
        if step is Step.ADD:
            await self._set(key, document, [*(document["metadata"].get("finalizers") or ()), FINALIZER])
            return 0.0
        return await self._clean(key, document)

    async def _clean(self, key: JobKey, document: Document) -> float | None:
        metadata = document["metadata"]
        asked = to_seconds(metadata["deletionTimestamp"]) or 0.0
        age = self.clock() - asked
        pods = await self.cluster.list_pods(key, job_uid=metadata["uid"])
        for pod in pods:
            if pod.deletion_requested is None:
                await self.cluster.delete_pod(PodRef(pod.namespace, pod.name, pod.uid))
        if any(not pod.ended for pod in pods) and age < WORKERS_DEADLINE_S:
            return RETRY_S
        problem = await self._remove_keys(document)
        if problem and age < DEADLINE_S:
            log.info("%s: the keys cannot be removed yet: %s", key, problem)
            return RETRY_S
        if problem:
            message = f"the job's keys were not removed within {DEADLINE_S:.0f} s and expire by themselves: {problem}"
            event = Event(EventKind.WARNING, "RedisCleanupFailed", message)
            await self.cluster.emit(key, [event], job_uid=metadata["uid"])
        left = [name for name in metadata.get("finalizers") or () if name != FINALIZER]
        await self._set(key, document, left)
        return None

    async def _remove_keys(self, document: Document) -> str:
        """Why the keys are still there; empty: they are gone."""
        try:
            await self.keys.delete(parse_manifest(document))
        except (StreamError, SpecError) as error:
            return str(error)
        return ""

    async def _set(self, key: JobKey, document: Document, finalizers: Sequence[str]) -> None:
        metadata = document["metadata"]
        await self.cluster.set_finalizers(
            key, finalizers, job_uid=metadata["uid"], resource_version=metadata["resourceVersion"]
        )
