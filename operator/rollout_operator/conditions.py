"""The conditions of a job: a pure function of its document, what was observed, what was planned, what became of it.

One function per condition; `status` puts them beside the counters and numbers. Everything comes from sources that survive
a restart of the operator: pods, the stream, and the status itself for what is a latch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property

from rollout_contract import quantities
from rollout_contract.names import Slot
from rollout_contract.spec import Determinism, RolloutJob, groups_of
from rollout_contract.status import (
    Condition,
    ConditionStatus,
    ConditionType,
    Reason,
    condition,
    initial_conditions,
    set_condition,
)
from rollout_contract.unbuilt import not_built
from rollout_operator import live_numbers, readiness
from rollout_operator.decisions import EndingKind, Motion, Outcome, Plan
from rollout_operator.observed import Observed, SlotView, StreamFacts, StreamTrouble

Finding = tuple[ConditionStatus, Reason, str]
TRUE, FALSE, UNKNOWN = ConditionStatus.TRUE, ConditionStatus.FALSE, ConditionStatus.UNKNOWN


@dataclass(frozen=True)
class Seen:
    """Everything that a status is made of."""

    job: RolloutJob
    observed: Observed
    plan: Plan
    outcome: Outcome
    now: float

    @property
    def facts(self) -> StreamFacts | None:
        """The stream's facts, None in trouble."""
        return self.observed.facts

    @cached_property
    def views(self) -> Mapping[Slot, SlotView]:
        """Pods by slot."""
        return self.observed.slots(self.now)

    @property
    def generation(self) -> int:
        """The generation of the spec that was looked at."""
        return self.job.metadata.generation or 1


def conditions_of(seen: Seen) -> tuple[Condition, ...]:
    """Every condition of the job, each with the time of its last change."""
    moment, generation = datetime.fromtimestamp(seen.now, UTC), seen.generation
    conditions = seen.job.status.conditions or initial_conditions(seen.job.spec, moment, generation)
    findings: dict[ConditionType, Finding] = {type_: judge(seen) for type_, judge in _JUDGES.items()}
    findings[ConditionType.READY] = _ready(seen, findings)
    if seen.job.spec.determinism is Determinism.STRICT:
        findings[ConditionType.REPRODUCIBLE] = _reproducible(seen)
    for type_, (status, reason, message) in findings.items():
        conditions = set_condition(
            conditions,
            type_,
            status=status,
            reason=reason,
            message=message,
            now=moment,
            generation=generation,
        )
    return conditions


def _accepted(seen: Seen) -> Finding:
    faults = not_built(seen.job.spec)
    if faults:
        return FALSE, Reason.NOT_IMPLEMENTED, "; ".join(map(str, faults))
    rejected = [r for r in seen.outcome.refusals if r.reason is Reason.POD_REJECTED]
    if rejected:
        return FALSE, Reason.POD_REJECTED, f"{rejected[0].slot}: {rejected[0].message}"
    for name, plan in seen.plan.groups.items():
        if plan.clamped_from is not None:
            message = f"replicas {plan.clamped_from} is outside of the bounds of group {name}: {plan.desired} are kept"
            return TRUE, Reason.REPLICAS_CLAMPED, message
    return TRUE, Reason.SPEC_VALID, ""


def _redis_ready(seen: Seen) -> Finding:
    trouble = seen.observed.stream if isinstance(seen.observed.stream, StreamTrouble) else seen.outcome.stream
    if trouble is not None:
        return trouble.status, trouble.reason, trouble.message
    if seen.plan.ending is not None and seen.plan.ending.reason is Reason.STATE_LOST:
        return FALSE, Reason.STATE_LOST, seen.plan.ending.message
    return TRUE, Reason.CONNECTED, ""


def _workers_ready(seen: Seen) -> Finding:
    if seen.plan.ending is not None:
        return _kept_problem(seen)
    if seen.job.spec.suspend:
        return FALSE, Reason.JOB_SUSPENDED, ""
    if not any(plan.desired for plan in seen.plan.groups.values()):
        return TRUE, Reason.SCALED_TO_ZERO, ""
    problem = readiness.worst_problem(seen.plan.groups.values(), seen.views, seen.facts)
    if seen.outcome.refusals:
        first = seen.outcome.refusals[0]
        message = f"{first.slot}: {first.message}"
        if problem is None:
            return TRUE, Reason.ALL_READY, f"the edited template waits: {message}"
        reason = Reason.CREATE_FAILED if first.reason is Reason.POD_REJECTED else first.reason
        return FALSE, reason, message
    if problem is None:
        return TRUE, Reason.ALL_READY, ""
    return FALSE, problem.reason, problem.message


def _kept_problem(seen: Seen) -> Finding:
    """At the end, the reason why workers were not ready is evidence."""
    problem = readiness.worst_problem(seen.plan.groups.values(), seen.views, seen.facts)
    if problem is None or (seen.plan.ending and seen.plan.ending.kind is EndingKind.COMPLETE):
        return FALSE, Reason.JOB_FINISHED, ""
    return FALSE, problem.reason, problem.message


def _backpressured(seen: Seen) -> Finding:
    facts = seen.facts
    if seen.plan.ending is not None:
        return FALSE, Reason.JOB_FINISHED, ""
    if facts is None:
        return UNKNOWN, Reason.REDIS_NOT_READY, ""
    if facts.is_backpressured:
        limit = f" of {facts.max_unacked_frames}" if facts.max_unacked_frames else ""
        size = quantities.format_bytes(facts.unacked_bytes)
        return TRUE, Reason.ABOVE_WATERMARK, f"{facts.unacked_frames}{limit} frames ({size}) wait for an ack"
    return FALSE, Reason.BELOW_WATERMARK, ""


def _weights_stale(seen: Seen) -> Finding:
    if seen.plan.ending is not None:
        return FALSE, Reason.JOB_FINISHED, ""
    if seen.facts is None:
        return UNKNOWN, Reason.REDIS_NOT_READY, ""
    return live_numbers.staleness_of(seen.job.spec.weights, seen.facts, seen.observed.pods)


_MOTION: Mapping[Motion, Finding] = {
    Motion.STARTING: (UNKNOWN, Reason.STARTING, ""),
    Motion.MOVING: (FALSE, Reason.FRAMES_ADVANCING, ""),
    # Unknown, so that the time of the next change to False tells since when frames should come again.
    Motion.HELD_BACK: (UNKNOWN, Reason.HELD_BACK, ""),
    Motion.UNKNOWN: (UNKNOWN, Reason.REDIS_NOT_READY, ""),
}


def _stalled(seen: Seen) -> Finding:
    ending = seen.plan.ending
    if ending is not None and ending.reason is Reason.STALLED_DEADLINE_EXCEEDED:
        return TRUE, Reason.NO_PROGRESS, ending.message
    if ending is not None:
        return FALSE, Reason.JOB_FINISHED, ""
    if seen.job.spec.suspend:
        return UNKNOWN, Reason.JOB_SUSPENDED, ""
    return _MOTION[seen.plan.motion]


def _suspended(seen: Seen) -> Finding:
    if not seen.job.spec.suspend or seen.plan.ending is not None:
        return FALSE, Reason.NOT_SUSPENDED, ""
    left = len(seen.observed.pods)
    if left:
        return FALSE, Reason.DRAINING, f"{left} workers are still there"
    return TRUE, Reason.SUSPENDED, ""


def _ended(kind: EndingKind) -> Callable[[Seen], Finding]:
    def judge(seen: Seen) -> Finding:
        ending = seen.plan.ending
        if ending is None:
            return FALSE, Reason.IN_PROGRESS, ""
        if ending.kind is kind:
            return TRUE, ending.reason, ending.message
        return FALSE, Reason.JOB_FINISHED, ""

    return judge


def _ready(seen: Seen, findings: Mapping[ConditionType, Finding]) -> Finding:
    if seen.plan.ending is not None:
        return FALSE, Reason.JOB_FINISHED, ""
    if seen.job.spec.suspend:
        return FALSE, Reason.JOB_SUSPENDED, ""
    if findings[ConditionType.ACCEPTED][0] is FALSE:
        return FALSE, Reason.NOT_ACCEPTED, findings[ConditionType.ACCEPTED][2]
    if findings[ConditionType.REDIS_READY][0] is FALSE:
        return FALSE, Reason.REDIS_NOT_READY, findings[ConditionType.REDIS_READY][2]
    below = _below_min_available(seen)
    if below:
        return FALSE, Reason.BELOW_MIN_AVAILABLE, below
    status, reason, message = findings[ConditionType.WORKERS_READY]
    if status is TRUE:
        scaled = reason is Reason.SCALED_TO_ZERO
        return TRUE, reason if scaled else Reason.WORKERS_READY, message
    return FALSE, Reason.WORKERS_NOT_READY, message


def _below_min_available(seen: Seen) -> str:
    for group in groups_of(seen.job.spec):
        plan = seen.plan.groups.get(group.name)
        ready = readiness.ready_slots(plan, seen.views) if plan else 0
        if plan and ready < min(group.min_available, plan.desired):
            return f"group {group.name}: {ready} workers are ready, minAvailable is {group.min_available}"
    return ""


def _reproducible(seen: Seen) -> Finding:
    old = condition(seen.job.status, ConditionType.REPRODUCIBLE)
    if old is not None and old.status is FALSE:
        return FALSE, Reason(old.reason), old.message
    attempts = {pod.slot: pod.worker.attempt for pod in seen.observed.pods if pod.worker.attempt > 0}
    if seen.facts is not None:
        attempts |= {slot: attempt for slot, attempt in seen.facts.attempts.items() if attempt > 0}
    if not attempts:
        return TRUE, Reason.NO_WORKER_REPLACED, ""
    slot, attempt = min(attempts.items())
    return (
        FALSE,
        Reason.WORKER_REPLACED,
        f"worker {slot} was replaced: attempt {attempt} makes other data than the first",
    )


_JUDGES: Mapping[ConditionType, Callable[[Seen], Finding]] = {
    ConditionType.ACCEPTED: _accepted,
    ConditionType.REDIS_READY: _redis_ready,
    ConditionType.WORKERS_READY: _workers_ready,
    ConditionType.BACKPRESSURED: _backpressured,
    ConditionType.WEIGHTS_STALE: _weights_stale,
    ConditionType.STALLED: _stalled,
    ConditionType.SUSPENDED: _suspended,
    ConditionType.COMPLETE: _ended(EndingKind.COMPLETE),
    ConditionType.FAILED: _ended(EndingKind.FAILED),
}
