"""The status of a job: a pure function of its document, what was observed, what was planned, what became of it.

Called at the end of each reconcile; `write_discipline` says whether the result is worth a write. Everything comes from
sources that survive a restart of the operator: pods, the stream, and the status itself for what is a latch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from rollout_contract import quantities
from rollout_contract.names import Slot
from rollout_contract.spec import Determinism, RolloutJob, groups_of
from rollout_contract.status import (
    Condition,
    ConditionStatus,
    ConditionType,
    Endpoints,
    LastFailure,
    Reason,
    RolloutJobStatus,
    State,
    WorkerGroupStatus,
    clip,
    condition,
    format_time,
    initial_conditions,
    is_finished,
    set_condition,
)
from rollout_contract.unbuilt import not_built
from rollout_operator import live_numbers, readiness
from rollout_operator.deadlines import start_time_of
from rollout_operator.decisions import CountKind, EndingKind, GroupPlan, Motion, Outcome, Plan
from rollout_operator.failure import Tally, counted_as, tallies_of
from rollout_operator.manifests import selector_of
from rollout_operator.observed import Observed, SlotView, StreamFacts, StreamTrouble, bucket
from rollout_operator.pods import PodView
from rollout_operator.shares import seed_for

MAX_FAILURE_BYTES = 512

Finding = tuple[ConditionStatus, Reason, str]
TRUE, FALSE, UNKNOWN = ConditionStatus.TRUE, ConditionStatus.FALSE, ConditionStatus.UNKNOWN


@dataclass(frozen=True, slots=True)
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

    @property
    def views(self) -> Mapping[Slot, SlotView]:
        """Pods by slot."""
        return bucket(self.observed.pods, self.now)

    @property
    def generation(self) -> int:
        """The generation of the spec that was looked at."""
        return self.job.metadata.generation or 1


def status_of(seen: Seen, *, gateway: str | None = None) -> RolloutJobStatus:
    """The status after one reconcile. `gateway`: the job's own URL there, if there is a gateway."""
    job, old, now = seen.job, seen.job.status, seen.now
    if is_finished(old):
        return _finished_status(seen)
    conditions = _conditions(seen)
    groups = _group_statuses(seen)
    ready, desired = sum(g.ready for g in groups), sum(g.desired for g in groups)
    elastic = next((g.name for g in groups_of(job.spec) if g.elastic), None)
    elastic_status = next((g for g in groups if g.name == elastic), None)
    start = start_time_of(job, now)
    return old.model_copy(
        update={
            "observed_generation": seen.generation,
            "state": _state(conditions, seen),
            "start_time": None if start is None else format_time(_moment(start)),
            "completion_time": format_time(_moment(now)) if seen.plan.ending else None,
            "ready_workers": f"{ready}/{desired}",
            "replicas": elastic_status.current if elastic_status else None,
            "ready_replicas": elastic_status.ready if elastic_status else None,
            "selector": selector_of(job.ref, elastic) if elastic else None,
            "seed": _seed(seen),
            "seed_epoch": seen.facts.seed_epoch if seen.facts else old.seed_epoch or 0,
            "conditions": conditions,
            "worker_groups": groups,
            "progress": live_numbers.progress_of(job, seen.facts, seen.observed.pods, now),
            "weights": live_numbers.weights_of(old.weights, seen.facts, seen.observed.pods),
            "stream": live_numbers.stream_of(old.stream, seen.facts),
            "endpoints": Endpoints(gateway=gateway) if gateway else old.endpoints,
            "last_failure": _last_failure(seen),
        }
    )


def rejected_status(
    old: RolloutJobStatus, *, generation: int, reason: Reason, message: str, now: float
) -> RolloutJobStatus:
    """The status of a job whose spec cannot be read: what was known stays, and Accepted says what is wrong."""
    conditions = set_condition(
        old.conditions,
        ConditionType.ACCEPTED,
        status=FALSE,
        reason=reason,
        message=message,
        now=_moment(now),
        generation=generation,
    )
    return old.model_copy(
        update={
            "observed_generation": generation,
            "conditions": conditions,
            "state": old.state or State.PENDING,
        }
    )


def _finished_status(seen: Seen) -> RolloutJobStatus:
    """Nothing of a finished job changes any more, but what still runs of it, and the generation that was seen."""
    groups = tuple(
        group.model_copy(
            update={"current": 0, "ready": 0, "updated": 0, "draining": _ending(seen, group.name)}
        )
        for group in seen.job.status.worker_groups
    )
    replicas = 0 if seen.job.status.replicas is not None else None
    desired = (seen.job.status.ready_workers or "0/0").partition("/")[2]
    return seen.job.status.model_copy(
        update={
            "observed_generation": seen.generation,
            "worker_groups": groups,
            "replicas": replicas,
            "ready_replicas": replicas,
            "ready_workers": f"0/{desired}",
        }
    )


def _ending(seen: Seen, group: str) -> int:
    return sum(1 for pod in seen.observed.pods if pod.worker.group == group and not pod.ended)


# --- conditions -----------------------------------------------------------------------------------------------------


def _conditions(seen: Seen) -> tuple[Condition, ...]:
    moment, generation = _moment(seen.now), seen.generation
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
    if seen.outcome.refusals:
        first = seen.outcome.refusals[0]
        reason = Reason.CREATE_FAILED if first.reason is Reason.POD_REJECTED else first.reason
        return FALSE, reason, f"{first.slot}: {first.message}"
    problem = readiness.worst_problem(seen.plan.groups.values(), seen.views, seen.facts)
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


# --- the rest of the status -----------------------------------------------------------------------------------------


def _state(conditions: Iterable[Condition], seen: Seen) -> State:
    is_so = {c.type: c.status is TRUE for c in conditions}
    if is_so[ConditionType.COMPLETE]:
        return State.COMPLETE
    if is_so[ConditionType.FAILED]:
        return State.FAILED
    if seen.job.spec.suspend:
        return State.SUSPENDED if is_so[ConditionType.SUSPENDED] else State.DRAINING
    if seen.plan.motion is Motion.STARTING and not is_so[ConditionType.READY]:
        return State.PENDING
    if not is_so[ConditionType.READY]:
        return State.DEGRADED
    return State.BACKPRESSURED if is_so[ConditionType.BACKPRESSURED] else State.RUNNING


def _group_statuses(seen: Seen) -> tuple[WorkerGroupStatus, ...]:
    tallies = tallies_of(seen.job.status.worker_groups, seen.observed.pods)
    for count in seen.plan.count:
        group = count.pod.worker.group
        tallies[group] = tallies.get(group, Tally()).including(count.kind, count.number)
    return tuple(
        _group_status(name, plan, seen.observed.pods, seen.views, tallies.get(name, Tally()))
        for name, plan in seen.plan.groups.items()
    )


def _group_status(
    name: str, plan: GroupPlan, pods: Iterable[PodView], views: Mapping[Slot, SlotView], tally: Tally
) -> WorkerGroupStatus:
    own = [pod for pod in pods if pod.worker.group == name]
    live = [pod for pod in own if pod.alive]
    return WorkerGroupStatus(
        name=name,
        desired=plan.desired,
        current=len(live),
        ready=readiness.ready_slots(plan, views),
        updated=sum(1 for pod in live if pod.template_hash == plan.template_hash),
        draining=sum(1 for pod in own if pod.ending),
        failures=tally.failures,
        disruptions=tally.disruptions,
        template_hash=plan.template_hash,
    )


def _seed(seen: Seen) -> int:
    if seen.facts is not None and seen.facts.seed is not None:
        return seen.facts.seed
    return seed_for(seen.job) if seen.job.status.seed is None else seen.job.status.seed


def _last_failure(seen: Seen) -> LastFailure | None:
    failed = [count.pod for count in seen.plan.count if count.kind is not CountKind.DISRUPTION]
    failed += _counted_and_not_written(seen)
    if not failed:
        return seen.job.status.last_failure
    pod = max(failed, key=lambda p: (p.finished or 0.0, p.name))
    time = seen.now if pod.finished is None else min(pod.finished, seen.now)
    return LastFailure(
        group=pod.worker.group,
        worker=pod.worker.index,
        attempt=pod.worker.attempt,
        container=pod.container,
        exit_code=pod.exit_code,
        reason=pod.pod_reason or pod.reason or None,
        message=clip(pod.message, MAX_FAILURE_BYTES) or None,
        time=format_time(_moment(time)),
    )


def _counted_and_not_written(seen: Seen) -> list[PodView]:
    """Pods whose failure an earlier reconcile counted, and then died before it wrote the status."""
    written = tallies_of(seen.job.status.worker_groups, ())
    counted = ((pod, *count) for pod in seen.observed.pods if (count := counted_as(pod)) is not None)
    return [
        pod
        for pod, kind, number in counted
        if kind is not CountKind.DISRUPTION and number > written.get(pod.worker.group, Tally()).failures
    ]


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
