"""Which operator governs a job, where several watch its namespace: the first to take it, until its owner says otherwise.

Two operators with different servers would each find the job's keys missing on its own, and fail it. So an operator takes
a job before it makes anything for it, by a status that names its Lease; the others leave it alone, whether or not that
operator lives: only the one that has the job's keys can go on with it. Only a job that was given up for long, and whose
keys are on our server, is taken over. Wraps the reconciler, and `Cleanup`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from rollout_contract import names
from rollout_contract.errors import SpecError
from rollout_contract.spec import RolloutJob, parse_manifest
from rollout_contract.status import MAX_OPERATOR_CHARS
from rollout_operator.cluster import Document, Event, EventKind, JobKey
from rollout_operator.kube.cleanup import DEADLINE_S, FINALIZER
from rollout_operator.observed import StreamFacts, StreamTrouble
from rollout_operator.times import to_seconds

log = logging.getLogger(__name__)

LOOK_EVERY_S = 60.0
"""A job that another governs is looked at this often: that one may be gone for good."""
LEFT_ALONE = "LeftAlone"
TAKEN_OVER = "TakenOver"

Handler = Callable[[JobKey], Awaitable[float | None]]


class Claim(Enum):
    """Whose a job is."""

    GO_ON = "go on"
    """Ours, or nobody's business: finished before anyone took it, being deleted, managed by something else."""
    TAKE = "take"
    """Nobody's yet, or its owner has given it to us."""
    LEAVE = "leave"


def governor_of(document: Document) -> str:
    """Which operator governs the job: the one that its owner names, or the one that took it. Empty: nobody does."""
    wanted = (document["metadata"].get("annotations") or {}).get(names.ANNOTATION_OPERATOR)
    return str(wanted or (document.get("status") or {}).get("operator") or "")


def claim_of(document: Document, own: str, *, now: float) -> Claim:
    """What the operator `own` (namespace/name of its Lease) does about a job. Pure; `now` in seconds since 1970."""
    metadata, spec, status = document["metadata"], document.get("spec") or {}, document.get("status") or {}
    governor = governor_of(document)
    if metadata.get("deletionTimestamp"):
        asked = to_seconds(metadata["deletionTimestamp"]) or 0.0
        is_overdue = now - asked > DEADLINE_S + LOOK_EVERY_S
        has_finalizer = FINALIZER in (metadata.get("finalizers") or ())
        # Its governor has had its time: nothing may keep a job from going.
        return Claim.GO_ON if governor in {"", own} or is_overdue or not has_finalizer else Claim.LEAVE
    if spec.get("managedBy", names.OPERATOR_NAME) != names.OPERATOR_NAME:
        return Claim.GO_ON
    if governor not in {"", own}:
        return Claim.LEAVE
    if status.get("operator") == own or (not governor and status.get("completionTime")):
        return Claim.GO_ON
    return Claim.TAKE


class GovernedCluster(Protocol):
    """What this needs of the cluster."""

    async def get_job(self, key: JobKey) -> Document | None:
        """See `Cluster`."""

    async def write_status(
        self, key: JobKey, status: Document, *, job_uid: str, resource_version: str
    ) -> None:
        """See `Cluster`."""

    async def emit(self, key: JobKey, events: Sequence[Event], *, job_uid: str) -> None:
        """See `Cluster`."""


class Looker(Protocol):
    """What this needs of the data plane."""

    async def look(self, job: RolloutJob) -> StreamFacts | StreamTrouble:
        """See `Streams`."""


class Others(Protocol):
    """What is known of other operators."""

    async def is_gone(self, governor: str) -> bool:
        """Whether the operator with this Lease has been away for so long that it does not come back."""


@dataclass(frozen=True, slots=True)
class Governing:
    """Takes jobs, leaves others' alone, and passes our own on to `inner`. `own`: namespace/name of our Lease."""

    cluster: GovernedCluster
    streams: Looker
    others: Others
    inner: Handler
    own: str
    clock: Callable[[], float] = field(default=time.time)
    """Seconds since 1970."""
    left: dict[JobKey, tuple[str, str]] = field(default_factory=dict)
    """Jobs that are left alone, with their UIDs and who governs them."""

    async def reconcile(self, key: JobKey) -> float | None:
        """Work on one job; see `Reconciler.reconcile`."""
        document = await self.cluster.get_job(key)
        claim = Claim.GO_ON if document is None else claim_of(document, self.own, now=self.clock())
        if document is not None and claim is Claim.LEAVE:
            if not await self._may_take_over(document):
                return await self._leave(key, document)
            claim = Claim.TAKE
        self.left.pop(key, None)
        if document is not None and claim is Claim.TAKE:
            await self._take(key, document)
        return await self.inner(key)

    async def _may_take_over(self, document: Document) -> bool:
        """Whether its governor is gone for good and we can go on with it. Never against its owner's word."""
        metadata = document["metadata"]
        if metadata.get("deletionTimestamp") or names.ANNOTATION_OPERATOR in (
            metadata.get("annotations") or ()
        ):
            return False
        if not await self.others.is_gone(governor_of(document)):
            return False
        try:
            job = parse_manifest(document)
        except SpecError:
            return False
        facts = await self.streams.look(job)
        return isinstance(facts, StreamFacts) and (facts.is_open or job.status.stream is None)

    async def _take(self, key: JobKey, document: Document) -> None:
        """StaleJob if somebody was faster."""
        metadata, status = document["metadata"], document.get("status") or {}
        before = status.get("operator")
        await self.cluster.write_status(
            key,
            {**status, "operator": self.own},
            job_uid=metadata["uid"],
            resource_version=metadata.get("resourceVersion") or "",
        )
        if before:
            message = f"the operator {self.own} governs the job from now on, instead of {before}"
            log.info("%s: %s", key, message)
            event = Event(EventKind.NORMAL, TAKEN_OVER, message)
            await self.cluster.emit(key, [event], job_uid=metadata["uid"])

    async def _leave(self, key: JobKey, document: Document) -> float:
        """Say so, once for each job; in the log once for each operator."""
        metadata, governor = document["metadata"], governor_of(document)[:MAX_OPERATOR_CHARS]
        found = (metadata["uid"], governor)
        if self.left.get(key) != found:
            is_new = all(who != governor for _, who in self.left.values())
            self.left[key] = found
            message = (
                f"the operator {governor} governs the job, and {self.own} leaves it alone; to hand it over: kubectl "
                f"annotate rolloutjob {key.name} -n {key.namespace} {names.ANNOTATION_OPERATOR}={self.own} --overwrite"
            )
            log.log(logging.WARNING if is_new else logging.DEBUG, "%s: %s", key, message)
            await self.cluster.emit(
                key, [Event(EventKind.NORMAL, LEFT_ALONE, message)], job_uid=metadata["uid"]
            )
        return LOOK_EVERY_S
