"""Whether a new status is worth a write, and which events go with it. Pure.

What conditions and counters say is written at once. Numbers of the stream, and the wording of a message alone, are
written at most every `progressIntervalSeconds`, and only if something moved by enough.
"""

from __future__ import annotations

from collections.abc import Iterator

from rollout_contract.status import ConditionStatus, ConditionType, RolloutJobStatus
from rollout_operator.cluster import Event, EventKind
from rollout_operator.conditions import Seen
from rollout_operator.decisions import CountKind, Outcome, Plan
from rollout_operator.failure import describe
from rollout_operator.settings import OperatorSettings
from rollout_operator.times import to_seconds

FIRST_STATUS_S = 2.0
"""A new job's first status is written so long after its workers were made at the latest."""
_NUMBERS = {"progress", "weights", "stream"}


def is_worth_writing(
    old: RolloutJobStatus, new: RolloutJobStatus, *, now: float, settings: OperatorSettings
) -> bool:
    """Whether the status is to be written now."""
    if _facts(old) != _facts(new) or _opened(old) != _opened(new):
        return True
    written = to_seconds(old.progress.update_time) if old.progress else None
    # Times have whole seconds: an interval of one second must not become two.
    if written is not None and now - written < settings.progress_interval_s - 0.5:
        return False
    if old.conditions != new.conditions:
        return True
    before, after = _numbers(old), _numbers(new)
    return any(
        _moved(before.get(name), value, settings.progress_change) for name, value in after.items()
    ) or bool(before.keys() - after.keys())


def is_told_in_a_moment(seen: Seen) -> bool:
    """Whether a new job's first status waits: its workers, made a moment ago and without trouble, are coming up, and one
    status will say what became of all of them."""
    plan, pods = seen.plan, seen.observed.pods
    if seen.job.status.conditions or seen.outcome != Outcome() or plan.count or plan.ending is not None:
        return False
    if plan.is_fresh:
        return bool(plan.create)
    are_coming = all(seen.now - pod.created < FIRST_STATUS_S and not pod.ended for pod in pods)
    return are_coming and any(not pod.ready for pod in pods)


def _facts(status: RolloutJobStatus) -> RolloutJobStatus:
    conditions = tuple(c.model_copy(update={"message": ""}) for c in status.conditions)
    return status.model_copy(update={name: None for name in _NUMBERS} | {"conditions": conditions})


def _opened(status: RolloutJobStatus) -> str | None:
    return status.stream.key if status.stream else None


def _numbers(status: RolloutJobStatus) -> dict[str, object]:
    parts = status.model_dump(include=_NUMBERS, exclude_none=True)
    flat = {f"{part}.{name}": value for part, values in parts.items() for name, value in values.items()}
    return {name: value for name, value in flat.items() if not name.endswith("_time")}


def _moved(before: object, after: object, part: float) -> bool:
    if isinstance(before, int) and isinstance(after, int):
        return before != after and abs(after - before) >= part * abs(before)
    return before != after


def events_of(old: RolloutJobStatus, new: RolloutJobStatus, plan: Plan) -> tuple[Event, ...]:
    """What people should hear of: failures, and conditions that changed."""
    return (*_failures(plan), *_transitions(old, new))


def _failures(plan: Plan) -> Iterator[Event]:
    for count in plan.count:
        is_free = count.kind is CountKind.DISRUPTION
        kind = EventKind.NORMAL if is_free else EventKind.WARNING
        yield Event(kind, "WorkerDisrupted" if is_free else "WorkerFailed", describe(count.pod))


_GOOD_WHEN_TRUE = {
    ConditionType.ACCEPTED,
    ConditionType.REDIS_READY,
    ConditionType.READY,
    ConditionType.COMPLETE,
}
_GOOD_WHEN_TRUE |= {ConditionType.WORKERS_READY, ConditionType.SUSPENDED, ConditionType.REPRODUCIBLE}


_HEADLINES = {ConditionType.REDIS_READY, ConditionType.READY, ConditionType.COMPLETE, ConditionType.SUSPENDED}
"""Conditions whose ordinary changes are told; of the others only what is wrong."""
_TOLD_BY_ANOTHER = {"JobFinished", "JobSuspended"}
"""Reasons of a condition that follows on another one, which is told."""


def _transitions(old: RolloutJobStatus, new: RolloutJobStatus) -> Iterator[Event]:
    before = {c.type: (c.status, c.reason) for c in old.conditions}
    for condition in new.conditions:
        if before.get(condition.type) == (condition.status, condition.reason):
            continue
        if condition.status is ConditionStatus.UNKNOWN:
            continue
        is_good = (condition.status is ConditionStatus.TRUE) == (condition.type in _GOOD_WHEN_TRUE)
        is_ordinary = is_good or condition.reason in _EXPECTED
        if is_ordinary and (condition.type not in _HEADLINES or condition.reason in _TOLD_BY_ANOTHER):
            continue
        if (
            condition.type not in before
            and is_ordinary
            and not (is_good and condition.type == ConditionType.READY)
        ):
            continue  # how a job begins is worth an event only where it is up, or where something is wrong
        kind = EventKind.NORMAL if is_ordinary else EventKind.WARNING
        message = f"{condition.type}={condition.status.value}: {condition.message or condition.reason}"
        yield Event(kind, condition.reason, message)


_EXPECTED = {
    "JobFinished",
    "JobSuspended",
    "InProgress",
    "NotSuspended",
    "Draining",
    "Starting",
    "WorkersNotReady",
}
"""Reasons that belong to the ordinary course of things; what is really wrong has a reason of its own."""
