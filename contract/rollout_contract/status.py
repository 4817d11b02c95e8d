"""The status of a RolloutJob: its models, and pure functions over conditions.

Written by the reconcile loop alone; read by the gateway, the command line and clients. Nothing here reads a clock.
Fields that a newer version may have added are ignored, so that an older client can read a newer object.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

from pydantic import ConfigDict, Field

from rollout_contract.fields import MAX_MESSAGE_BYTES, Items, Model, Time
from rollout_contract.reasons import ConditionType, Reason
from rollout_contract.spec_enums import ConditionStatus, Determinism

if TYPE_CHECKING:
    from rollout_contract.spec_models import RolloutJobSpec

__all__ = [
    "Condition",
    "ConditionStatus",
    "ConditionType",
    "Endpoints",
    "LastFailure",
    "Progress",
    "Reason",
    "RolloutJobStatus",
    "State",
    "StreamStatus",
    "WeightsStatus",
    "WorkerGroupStatus",
    "clip",
    "condition",
    "format_time",
    "initial_conditions",
    "is_finished",
    "is_true",
    "parse_time",
    "set_condition",
]


MAX_OPERATOR_CHARS = 317
"""A namespace, a slash and a name."""


class State(StrEnum):
    """For people, derived from the conditions; code reads conditions."""

    PENDING = "Pending"
    RUNNING = "Running"
    DEGRADED = "Degraded"
    BACKPRESSURED = "Backpressured"
    DRAINING = "Draining"
    SUSPENDED = "Suspended"
    COMPLETE = "Complete"
    FAILED = "Failed"


class StatusModel(Model):
    """A part of the status."""

    model_config = ConfigDict(extra="ignore")


class Condition(StatusModel):
    """One fact about the job."""

    type: str
    """One of `ConditionType`."""
    status: Annotated[ConditionStatus, Field(strict=False)]
    reason: str
    """One of `Reason`."""
    message: str = ""
    """For people, at most 1 KiB."""
    last_transition_time: Time
    """When `status` last changed."""
    observed_generation: int
    """The generation of the spec that this speaks about."""


class WorkerGroupStatus(StatusModel):
    """Counters of one worker group."""

    name: str
    desired: int = 0
    current: int = 0
    ready: int = 0
    updated: int = 0
    """Workers made from the newest template."""
    draining: int = 0
    failures: int = 0
    """Counted failures: those that use up the limits."""
    disruptions: int = 0
    """Losses that do not count: evictions, preemptions, lost nodes, ignored by a rule."""
    template_hash: str | None = None


class Progress(StatusModel):
    """How far the job is."""

    frames: int = 0
    """Appended, over the whole job."""
    percent: int | None = None
    """Of `totalFrames`; unset for a job without."""
    frames_per_second: int | None = None
    episodes: int | None = None
    last_frame_time: Time | None = None
    update_time: Time | None = None


class WeightsStatus(StatusModel):
    """Policy versions: the newest, and the range that workers run."""

    latest_version: int = 0
    min_loaded_version: int | None = None
    max_loaded_version: int | None = None


class StreamStatus(StatusModel):
    """The data plane."""

    key: str | None = None
    unacked_frames: int | None = None
    bytes: str | None = None
    """Unacked, as a quantity."""
    max_unacked_frames: int | None = None
    """The high watermark in force, also where the spec leaves it unset."""
    dropped_frames: int | None = None
    """Never delivered because of `onFull`, `onStale` or repeated delivery failures."""


class Endpoints(StatusModel):
    """Where the job can be talked to."""

    gateway: str | None = None


class LastFailure(StatusModel):
    """The newest failure of a worker."""

    group: str
    worker: int
    attempt: int
    container: str | None = None
    exit_code: int | None = None
    reason: str | None = None
    message: str | None = None
    """The first 512 bytes of the exception."""
    time: Time | None = None


class RolloutJobStatus(StatusModel):
    """What was seen, as of `observedGeneration`."""

    observed_generation: int | None = None
    operator: Annotated[str, Field(max_length=MAX_OPERATOR_CHARS)] | None = None
    """Who governs the job: namespace and name of the Lease of the operator that took it."""
    state: Annotated[State, Field(strict=False)] | None = None
    start_time: Time | None = None
    """Starts anew with each resume."""
    completion_time: Time | None = None
    """Set once, with Complete or Failed."""
    ready_workers: str | None = None
    """`ready/desired`, for people."""
    replicas: int | None = None
    """Workers of the elastic group, for `/scale`."""
    ready_replicas: int | None = None
    selector: str | None = None
    seed: int | None = None
    seed_epoch: int | None = None
    conditions: Annotated[Items[Condition], Field(max_length=12)] = ()
    worker_groups: Annotated[Items[WorkerGroupStatus], Field(max_length=8)] = ()
    progress: Progress | None = None
    weights: WeightsStatus | None = None
    stream: StreamStatus | None = None
    endpoints: Endpoints | None = None
    last_failure: LastFailure | None = None


def format_time(moment: datetime) -> str:
    """RFC 3339 in UTC with whole seconds. ValueError for a time without a zone."""
    if moment.tzinfo is None:
        raise ValueError(f"{moment!r} has no time zone: use an aware datetime, such as datetime.now(UTC)")
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_time(text: str) -> datetime:
    """The aware datetime of an RFC 3339 text, in UTC. ValueError for anything else."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone: write RFC 3339, such as 2026-01-01T10:00:00Z")
    return moment.astimezone(UTC)


def clip(text: str, limit: int = MAX_MESSAGE_BYTES) -> str:
    """At most `limit` bytes (UTF-8) of a text: its head, where the cause stands, marked where it was cut."""
    data = text.encode()
    if len(data) <= limit:
        return text
    return data[: limit - len("…".encode())].decode(errors="ignore") + "…"


def set_condition(
    conditions: Iterable[Condition],
    type_: ConditionType,
    *,
    status: ConditionStatus,
    reason: Reason,
    message: str = "",
    now: datetime,
    generation: int,
) -> tuple[Condition, ...]:
    """The conditions with one replaced (in place) or added (at the end); its time moves only when `status` does."""
    before = tuple(conditions)
    old = next((c for c in before if c.type == type_), None)
    changed = old is None or old.status != status
    new = Condition(
        type=type_.value,
        status=status,
        reason=reason.value,
        message=clip(message),
        last_transition_time=format_time(now) if old is None or changed else old.last_transition_time,
        observed_generation=generation,
    )
    if old is None:
        return (*before, new)
    return tuple(new if c.type == type_ else c for c in before)


def condition(status: RolloutJobStatus, type_: ConditionType) -> Condition | None:
    """The condition of this type, None if it was never set."""
    return next((c for c in status.conditions if c.type == type_), None)


def is_true(status: RolloutJobStatus, type_: ConditionType) -> bool:
    """Whether the condition is there and True."""
    found = condition(status, type_)
    return found is not None and found.status is ConditionStatus.TRUE


def is_finished(status: RolloutJobStatus) -> bool:
    """Whether the job is Complete or Failed; neither ever reverts."""
    return is_true(status, ConditionType.COMPLETE) or is_true(status, ConditionType.FAILED)


def initial_conditions(spec: RolloutJobSpec, now: datetime, generation: int) -> tuple[Condition, ...]:
    """Every condition that the job will ever have, as the first visit sets it."""
    no, unknown = ConditionStatus.FALSE, ConditionStatus.UNKNOWN
    known = {
        ConditionType.SUSPENDED: (unknown, Reason.NOT_CHECKED)
        if spec.suspend
        else (no, Reason.NOT_SUSPENDED),
        ConditionType.COMPLETE: (no, Reason.IN_PROGRESS),
        ConditionType.FAILED: (no, Reason.IN_PROGRESS),
        ConditionType.REPRODUCIBLE: (ConditionStatus.TRUE, Reason.NO_WORKER_REPLACED),
    }
    conditions: tuple[Condition, ...] = ()
    for type_ in ConditionType:
        if type_ is ConditionType.REPRODUCIBLE and spec.determinism is not Determinism.STRICT:
            continue
        status, reason = known.get(type_, (unknown, Reason.NOT_CHECKED))
        conditions = set_condition(
            conditions, type_, status=status, reason=reason, now=now, generation=generation
        )
    return conditions
