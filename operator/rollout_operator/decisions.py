"""What a plan consists of: small frozen records that `apply` carries out and the conditions speak of. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from rollout_contract.errors import RolloutError
from rollout_contract.messages import EndMarker
from rollout_contract.names import Slot, WorkerId
from rollout_contract.status import Reason
from rollout_operator.observed import StreamTrouble
from rollout_operator.pods import ANNOTATION_COUNTED, PodView


class CountKind(StrEnum):
    """What the end of a pod was counted as."""

    FAILURE = "failure"
    """Uses up the limits; the worker is replaced."""
    DISRUPTION = "disruption"
    """Free: eviction, preemption, a lost node, a rule that says Ignore."""
    FATAL = "fatal"
    """A failure after which no replacement can help: the job fails."""


@dataclass(frozen=True, slots=True)
class Count:
    """Counts the end of a pod. `number` is its place among the group's failures (or disruptions), from 1."""

    pod: PodView
    kind: CountKind
    number: int

    @property
    def annotation(self) -> dict[str, str]:
        """What is written on the pod, so that no crash can make it count twice."""
        return {ANNOTATION_COUNTED: f"{self.kind.value}:{self.number}"}


@dataclass(frozen=True, slots=True)
class Create:
    """Starts an attempt. What the slot went through before stands on the new pod, for its back-off and its limit."""

    worker: WorkerId
    streak: int = 0
    """Ends in a row before this attempt."""
    slot_failures: int = 0
    """Counted failures of the slot before this attempt."""


class Why(StrEnum):
    """Why a pod is deleted."""

    SCALED_DOWN = "ScaledDown"
    OUTDATED = "Outdated"
    """Its template was edited."""
    SUPERSEDED = "Superseded"
    """A newer attempt of its slot runs."""
    SUSPENDED = "Suspended"
    FINISHED = "Finished"
    """The job is over."""
    CLEARED = "Cleared"
    """It has ended, was counted, and is not kept."""


@dataclass(frozen=True, slots=True)
class Delete:
    """Asks a pod to end (drain, then kill after its grace), or removes one that has ended."""

    pod: PodView
    why: Why


class EndingKind(StrEnum):
    """How a job ends."""

    COMPLETE = "Complete"
    FAILED = "Failed"


@dataclass(frozen=True, slots=True)
class Ending:
    """The job is over: a latch. `message` is for people."""

    kind: EndingKind
    reason: Reason
    message: str


class Motion(StrEnum):
    """Whether frames should be coming, and do."""

    STARTING = "Starting"
    """The job has not been up since its start: the startup deadline counts."""
    MOVING = "Moving"
    """Frames should come: the stall deadline counts from the last one."""
    HELD_BACK = "HeldBack"
    """Nobody may expect frames now: back-pressure, pacing, waiting for weights, no worker wanted."""
    UNKNOWN = "Unknown"
    """The stream cannot be seen."""
    STALLED = "Stalled"
    """No frame for longer than the deadline."""


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """What the planner decided of one worker group."""

    desired: int
    clamped_from: int | None
    """`replicas` as written, where it lies outside of the bounds."""
    template_hash: str
    wanted: frozenset[Slot]
    given_up: frozenset[Slot]
    """Wanted slots that are over their own limit and stay down."""
    done: frozenset[Slot]
    """Wanted slots whose worker has delivered its whole share."""
    backing_off: Mapping[Slot, float]
    """Wanted slots whose next attempt waits, and until when."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A pod that could not be created: whose, why in one word, and the cluster's own text."""

    slot: Slot
    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a plan where that cannot be observed: what the status has to say of it."""

    refusals: tuple[Refusal, ...] = ()
    stream: StreamTrouble | None = None
    """The stream did not do what it was asked."""
    retry_after_s: float | None = None
    """What was left undone is to be tried again after so long."""
    is_counted: bool = True
    """Whether the counts stand on the pods; if not, the status must not claim them."""
    error: RolloutError | None = None
    """The cluster failed; the queue decides when to try again."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that one reconcile does. Empty: observed is as wanted."""

    check: tuple[Create, ...] = ()
    """One worker of each group for which something would be started or taken down: whether the cluster takes its pods."""
    is_fresh: bool = False
    """No worker is there yet: the job is started as a whole, or not at all."""
    announce: tuple[WorkerId, ...] = ()
    """Attempts whose numbers are marked as given before their pods are made."""
    create: tuple[Create, ...] = ()
    delete: tuple[Delete, ...] = ()
    count: tuple[Count, ...] = ()
    release: tuple[WorkerId, ...] = ()
    """Slots that are removed or given up, by their newest attempt: their open reservation goes to the others."""
    open_stream: bool = False
    """Make the job's keys; nothing is started before they are there."""
    tune_stream: bool = False
    """Bring limits and budget in the stream in line with the spec."""
    reopen_stream: bool = False
    """Take the `suspended` marker back."""
    marker: EndMarker | None = None
    delete_job: bool = False
    ending: Ending | None = None
    """The job ends now; None also for a job that has ended before."""
    requeue_after_s: float | None = None
    """When to look again at the latest; None: only when something changes."""
    groups: Mapping[str, GroupPlan] = field(default_factory=dict)
    motion: Motion = Motion.UNKNOWN
    hands_off: bool = False
    """The job is not ours to touch: somebody else manages it, or it is being deleted."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing is to be done."""
        acts = (self.create, self.delete, self.count, self.release, self.marker, self.ending)
        return not any((*acts, self.open_stream, self.tune_stream, self.reopen_stream, self.delete_job))


def without_groups(plan: Plan, held: Collection[str]) -> Plan:
    """The plan without starting workers of these groups, or taking running ones down for an edited template."""
    return replace(
        plan,
        announce=tuple(worker for worker in plan.announce if worker.group not in held),
        create=tuple(create for create in plan.create if create.worker.group not in held),
        delete=tuple(d for d in plan.delete if d.why is not Why.OUTDATED or d.pod.worker.group not in held),
    )
