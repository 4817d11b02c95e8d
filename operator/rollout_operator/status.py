"""The status of a job after one reconcile: conditions, counters, numbers, the last failure. Pure.

Called at the end of each reconcile; `status_writes` says whether the result is worth a write.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

from rollout_contract.names import Slot
from rollout_contract.spec import groups_of
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
    format_time,
    is_finished,
    set_condition,
)
from rollout_operator import live_numbers, readiness
from rollout_operator.conditions import Seen, conditions_of
from rollout_operator.deadlines import start_time_of
from rollout_operator.decisions import CountKind, GroupPlan, Motion
from rollout_operator.failure import Tally, counted_as, tallies_of
from rollout_operator.manifests import selector_of
from rollout_operator.observed import SlotView
from rollout_operator.pods import PodView
from rollout_operator.shares import seed_for

MAX_FAILURE_BYTES = 512


def status_of(seen: Seen, *, gateway: str | None = None) -> RolloutJobStatus:
    """The status after one reconcile. `gateway`: the job's own URL there, if there is a gateway."""
    job, old, now = seen.job, seen.job.status, seen.now
    if is_finished(old):
        return _finished_status(seen)
    conditions = conditions_of(seen)
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
        status=ConditionStatus.FALSE,
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


def _state(conditions: Iterable[Condition], seen: Seen) -> State:
    is_so = {c.type: c.status is ConditionStatus.TRUE for c in conditions}
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
    before = pod.hindrance if pod.exit_code is None else None
    return LastFailure(
        group=pod.worker.group,
        worker=pod.worker.index,
        attempt=pod.worker.attempt,
        container=before.name if before else pod.container,
        exit_code=before.exit_code if before else pod.exit_code,
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
