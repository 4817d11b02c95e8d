"""What the reconcile loop needs of a cluster: one small protocol, and the records and errors that cross it.

Two implementations: Kubernetes, and the local run's, whose pods are processes. Both speak in raw documents
(the JSON of a job, of a pod), so that any field of a pod works in both. Nothing here decides anything; driver
errors are translated into the errors below by each implementation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from rollout_contract.errors import RolloutError
from rollout_contract.status import Reason
from rollout_operator.pods import PodView

Document = dict[str, Any]
"""An object as its JSON."""


@dataclass(frozen=True, slots=True, order=True)
class JobKey:
    """Which job, by name: what the queue holds. The UID is read anew at each reconcile."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True, order=True)
class PodRef:
    """Which pod; the UID keeps a successor of the same name from being hit."""

    namespace: str
    name: str
    uid: str


class Creation(StrEnum):
    """What became of a pod's creation."""

    CREATED = "Created"
    OURS = "Ours"
    """A pod of this name that this job owns was there: as good as created."""
    FOREIGN = "Foreign"
    """The name belongs to a pod that this job does not own: left alone."""
    FOREIGN_ENDING = "ForeignEnding"
    """The same, but that pod is about to go: look again soon."""


class EventKind(StrEnum):
    """Severity of an event."""

    NORMAL = "Normal"
    WARNING = "Warning"


@dataclass(frozen=True, slots=True, order=True)
class Event:
    """Something that happened to a job, for people. `reason` is from a fixed list; never the only carrier of
    a fact.
    """

    kind: EventKind
    reason: str
    message: str


class ClusterError(RolloutError, RuntimeError):
    """The cluster did not do what was asked; asking again later may help."""


class PodRefused(ClusterError):
    """The cluster does not take a pod: a quota, an admission rule, a field that it does not know.

    `reason` is what the condition says: PodRejected, QuotaExceeded, SecretMissing, CreateFailed. `lacks_room`: a quota has
    no room for it now, and could have some once other pods are gone.
    """

    def __init__(
        self, message: str, *, reason: Reason = Reason.CREATE_FAILED, lacks_room: bool = False
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.lacks_room = lacks_room


class TryLater(ClusterError):
    """The cluster is busy and names how long to wait, in seconds."""

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class StaleJob(ClusterError):
    """A write came from an outdated view: the job changed, or is another one of the same name. Read and
    decide again.
    """


class Cluster(Protocol):
    """What the reconcile loop asks of a cluster. Every call is bounded in time and raises ClusterError on
    failure.
    """

    async def list_jobs(self) -> list[JobKey]:
        """Every job in the watched namespaces."""

    async def get_job(self, key: JobKey) -> Document | None:
        """The job's document; None if there is none of that name."""

    async def list_pods(self, key: JobKey, *, job_uid: str) -> Sequence[PodView]:
        """All pods that the job of this UID owns, in no particular order."""

    async def create_pod(self, manifest: Document) -> Creation:
        """Create a pod. PodRefused, TryLater, or ClusterError when it may help to try again."""

    async def check_pod(self, manifest: Document) -> None:
        """Whether such a pod would be taken, without creating it. PodRefused, TryLater, ClusterError."""

    async def delete_pod(self, pod: PodRef, *, grace_s: float | None = None) -> bool:
        """Ask a pod to end (SIGTERM, then SIGKILL after the grace; None: the pod's own). False: it was gone
        already.
        """

    async def annotate_pod(self, pod: PodRef, annotations: Mapping[str, str]) -> bool:
        """Set annotations on a pod. False: it was gone already."""

    async def write_status(
        self, key: JobKey, status: Document, *, job_uid: str, resource_version: str
    ) -> None:
        """Replace the job's status. StaleJob if the job is no longer the one that was read."""

    async def delete_job(self, key: JobKey, *, job_uid: str) -> None:
        """Delete the job and, with it, all that it owns. Nothing happens if it is gone."""

    async def emit(self, key: JobKey, events: Sequence[Event], *, job_uid: str) -> None:
        """Publish events about the job. Best effort: failures are logged, never raised."""

    async def watch(self, changed: Callable[[JobKey], None]) -> None:
        """Call `changed` with a job's key whenever the job or one of its pods changed; runs until cancelled.

        Calls it once for each job that exists at the start. Too many calls do no harm.
        """
