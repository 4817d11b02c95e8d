"""The three deadlines, and whether frames should be coming at all. Pure.

startupDeadlineSeconds: from the start (or from when workers were first wanted) until the job was up once: a ready
worker, and `minAvailable` in every group. stalledDeadlineSeconds: from the last frame, or from when nothing held the
workers back any more. activeDeadlineSeconds: from the start, which each resume sets anew.

Held back is not stalled: back-pressure, pacing, waiting for weights and a job without workers are somebody's wish, and
last as long as they want; `activeDeadlineSeconds` bounds them. While the stream cannot be seen, nothing is judged.
What happened before is read from the condition Stalled: its reason tells whether the job has been up, the time of its
last change to False tells since when frames should come.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rollout_contract.messages import Heartbeat
from rollout_contract.names import Slot
from rollout_contract.spec import RolloutJob
from rollout_contract.status import ConditionStatus, ConditionType, Reason, condition
from rollout_operator.decisions import Ending, EndingKind, GroupPlan, Motion
from rollout_operator.observed import Observed, SlotView, StreamFacts
from rollout_operator.readiness import ready_slots, worst_problem
from rollout_operator.scale import WAITING_STATES
from rollout_operator.times import to_seconds

_NEVER_UP = frozenset({Reason.NOT_CHECKED, Reason.STARTING, Reason.JOB_SUSPENDED})
"""Reasons of Stalled before the job was up for the first time since its start."""


@dataclass(frozen=True, slots=True)
class Timing:
    """What the clock says of a job."""

    motion: Motion
    ending: Ending | None
    next_deadline: float | None
    """The next time at which this would change by itself."""


def start_time_of(job: RolloutJob, now: float) -> float | None:
    """When the job started or was last resumed; None while it is suspended."""
    if job.spec.suspend:
        return None
    return to_seconds(job.status.start_time) or now


def timing_of(
    job: RolloutJob,
    observed: Observed,
    now: float,
    *,
    groups: Mapping[str, GroupPlan],
    views: Mapping[Slot, SlotView],
) -> Timing:
    """Motion and deadlines of a job that is neither suspended nor over."""
    start = start_time_of(job, now)
    if start is None:
        return Timing(Motion.UNKNOWN, None, None)
    motion, motion_deadline = _motion(job, observed, now, groups, views)
    active = job.spec.active_deadline_seconds
    active_deadline = None if active is None else start + active
    if active_deadline is not None and now >= active_deadline:
        message = f"the job has run for {now - start:.0f} s, activeDeadlineSeconds is {active}"
        return Timing(motion, Ending(EndingKind.FAILED, Reason.DEADLINE_EXCEEDED, message), None)
    if motion_deadline is not None and now >= motion_deadline:
        if motion is Motion.STARTING:
            return Timing(motion, _startup_ending(job, observed, groups, views), None)
        return Timing(Motion.STALLED, _stall_ending(job, observed.facts, groups, views), None)
    known = [deadline for deadline in (motion_deadline, active_deadline) if deadline is not None]
    return Timing(motion, None, min(known, default=None))


def _motion(
    job: RolloutJob,
    observed: Observed,
    now: float,
    groups: Mapping[str, GroupPlan],
    views: Mapping[Slot, SlotView],
) -> tuple[Motion, float | None]:
    facts = observed.facts
    if not _has_been_up(job, facts, now, groups, views):
        return Motion.STARTING, _startup_deadline(job, now, groups)
    if facts is None:
        return Motion.UNKNOWN, None
    if is_held_back(facts, groups, views):
        return Motion.HELD_BACK, None
    old = condition(job.status, ConditionType.STALLED)
    since = to_seconds(old.last_transition_time) if old and old.status is ConditionStatus.FALSE else None
    since = now if since is None else since
    if facts.last_frame_age is not None:
        since = max(since, now - facts.last_frame_age)
    return Motion.MOVING, since + job.spec.stalled_deadline_seconds


def _has_been_up(
    job: RolloutJob,
    facts: StreamFacts | None,
    now: float,
    groups: Mapping[str, GroupPlan],
    views: Mapping[Slot, SlotView],
) -> bool:
    old = condition(job.status, ConditionType.STALLED)
    if old is not None and old.reason not in _NEVER_UP:
        return True
    start = start_time_of(job, now)
    age = facts.last_frame_age if facts is not None else None
    if age is not None and start is not None and now - age > start:
        return True
    minimum = {group.name: group.min_available for group in job.spec.worker_groups}
    ready = {name: ready_slots(group, views) for name, group in groups.items()}
    return sum(ready.values()) > 0 and all(
        ready[name] >= min(minimum.get(name, 0), group.desired) for name, group in groups.items()
    )


def is_held_back(facts: StreamFacts, groups: Mapping[str, GroupPlan], views: Mapping[Slot, SlotView]) -> bool:
    """Whether nobody may expect frames: no worker is wanted, or all that run have to wait for a learner."""
    if not any(group.desired for group in groups.values()) or facts.is_backpressured:
        return True
    ready = [view.live for view in views.values() if view.live is not None and view.live.ready]
    beats: list[Heartbeat | None] = [facts.fresh_heartbeat(pod) for pod in ready]
    return bool(beats) and all(beat is not None and beat.state in WAITING_STATES for beat in beats)


def _startup_deadline(job: RolloutJob, now: float, groups: Mapping[str, GroupPlan]) -> float | None:
    if not any(group.desired for group in groups.values()):
        return None
    start = start_time_of(job, now) or now
    workers = condition(job.status, ConditionType.WORKERS_READY)
    # A job that was scaled to zero counted as ready; its clock runs from when workers were wanted again.
    if workers is not None and workers.status is ConditionStatus.TRUE:
        start = now
    elif workers is not None and workers.status is ConditionStatus.FALSE:
        start = max(start, to_seconds(workers.last_transition_time) or 0.0)
    return start + job.spec.startup_deadline_seconds


def _startup_ending(
    job: RolloutJob, observed: Observed, groups: Mapping[str, GroupPlan], views: Mapping[Slot, SlotView]
) -> Ending:
    limit = job.spec.startup_deadline_seconds
    message = (
        f"not ready within startupDeadlineSeconds ({limit}): {_what_is_wrong(job, observed, groups, views)}"
    )
    return Ending(EndingKind.FAILED, Reason.STARTUP_DEADLINE_EXCEEDED, message)


def _what_is_wrong(
    job: RolloutJob, observed: Observed, groups: Mapping[str, GroupPlan], views: Mapping[Slot, SlotView]
) -> str:
    for type_ in (ConditionType.ACCEPTED, ConditionType.REDIS_READY):
        found = condition(job.status, type_)
        if found is not None and found.status is ConditionStatus.FALSE:
            return f"{found.reason}: {found.message}"
    problem = worst_problem(groups.values(), views, observed.facts)
    said = condition(job.status, ConditionType.WORKERS_READY)
    # What refused a pod is known only from the attempt to create it, and stands in the condition.
    if (problem is None or problem.reason is Reason.WORKERS_NOT_READY) and said is not None and said.message:
        return f"{said.reason}: {said.message}"
    return f"{problem.reason.value}: {problem.message}" if problem else "workers are missing"


def _stall_ending(
    job: RolloutJob,
    facts: StreamFacts | None,
    groups: Mapping[str, GroupPlan],
    views: Mapping[Slot, SlotView],
) -> Ending:
    limit = job.spec.stalled_deadline_seconds
    frames = facts.frames if facts else 0
    problem = worst_problem(groups.values(), views, facts)
    detail = f"; {problem.message}" if problem else "; every worker is up and none of them delivers"
    message = f"no new frame for stalledDeadlineSeconds ({limit}) after {frames} frames{detail}"
    return Ending(EndingKind.FAILED, Reason.STALLED_DEADLINE_EXCEEDED, message)
