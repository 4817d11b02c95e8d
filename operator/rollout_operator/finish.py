"""How a job ends well, what is left to do for one that is over, and which ended pods are kept. Pure.

Complete and Failed are latches: a job that has one of them gets its end marker, loses its pods (but for the newest
failed ones of each group) and, after `ttlSecondsAfterFinished`, itself. Nothing is ever started for it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from rollout_contract.messages import EndKind, EndMarker
from rollout_contract.names import Slot
from rollout_contract.spec import RolloutJob
from rollout_contract.status import ConditionType, Reason, condition, is_true
from rollout_operator.decisions import CountKind, Delete, Ending, EndingKind, Plan, Why
from rollout_operator.failure import Tally, Verdict, counted_as
from rollout_operator.observed import Observed, SlotView, StreamFacts
from rollout_operator.pods import PodView
from rollout_operator.times import to_seconds

MARKER_RETRY_S = 15.0
"""How soon the end marker is tried again if the stream could not be reached."""
MARKER_GIVE_UP_S = 3600.0
"""After so long nobody waits for it any more."""


def completion_of(facts: StreamFacts | None) -> Ending | None:
    """The job's end, if the stream says so: all frames are there, somebody asked for it, or it was ended before."""
    if facts is None or not facts.is_open:
        return None
    if facts.end is not None and facts.end.kind == EndKind.FAILED:
        reason = facts.end.reason if facts.end.reason in set(Reason) else Reason.FAIL_JOB_RULE
        return Ending(EndingKind.FAILED, Reason(reason), facts.end.message)
    if not facts.is_complete:
        return None
    if facts.total_frames is not None and facts.frames >= facts.total_frames:
        message = f"{facts.frames} of {facts.total_frames} frames appended"
        return Ending(EndingKind.COMPLETE, Reason.TOTAL_FRAMES_REACHED, message)
    message = f"completed by request with {facts.frames} frames"
    if facts.end is not None and facts.end.text:
        message += f": {facts.end.text}"
    return Ending(EndingKind.COMPLETE, Reason.COMPLETED_BY_REQUEST, message)


def state_lost(job: RolloutJob, facts: StreamFacts | None) -> Ending | None:
    """The job's failure, if its stream was open once and its keys are gone."""
    was_open = job.status.stream is not None and job.status.stream.key is not None
    if facts is None or facts.is_open or not was_open:
        return None
    message = "the server no longer holds the job's keys: its data since the last read are lost"
    return Ending(EndingKind.FAILED, Reason.STATE_LOST, message)


def plan_finished(job: RolloutJob, observed: Observed, now: float) -> Plan:
    """What is left to do for a job that is Complete or Failed."""
    completed = to_seconds(job.status.completion_time) or now
    ttl = job.spec.ttl_seconds_after_finished
    if ttl is not None and now >= completed + ttl:
        return Plan(delete_job=True)
    facts = observed.facts
    is_told = facts is not None and (
        not facts.is_open or (facts.end is not None and facts.end.kind != EndKind.SUSPENDED)
    )
    marker = None if is_told or now > completed + MARKER_GIVE_UP_S else end_marker(job)
    kept = {pod.uid for pod in newest_failed(observed.pods, job.spec.pod_retention.failed)}
    delete = tuple(
        Delete(pod, Why.CLEARED if pod.ended else Why.FINISHED)
        for pod in observed.pods
        if pod.deletion_requested is None and pod.uid not in kept
    )
    waits = [completed + ttl - now] if ttl is not None else []
    if marker is not None and facts is None:
        marker = None
        waits.append(MARKER_RETRY_S)
    return Plan(delete=delete, marker=marker, requeue_after_s=min(waits, default=None))


def end_marker(job: RolloutJob) -> EndMarker:
    """What readers are told of a job that is over."""
    is_failed = is_true(job.status, ConditionType.FAILED)
    found = condition(job.status, ConditionType.FAILED if is_failed else ConditionType.COMPLETE)
    reason, message = (found.reason, found.message) if found else ("", "")
    return EndMarker(EndKind.FAILED if is_failed else EndKind.FINISHED, reason, message)


def newest_failed(pods: Iterable[PodView], keep: int) -> tuple[PodView, ...]:
    """The pods that are kept as evidence: of each group the newest that failed."""
    by_group: dict[str, list[PodView]] = {}
    for pod in pods:
        if pod.ended and pod.deletion_requested is None and _is_evidence(pod):
            by_group.setdefault(pod.worker.group, []).append(pod)
    newest = (
        sorted(found, key=lambda p: (p.finished or 0.0, p.name), reverse=True)[:keep]
        for found in by_group.values()
    )
    return tuple(pod for found in newest for pod in found)


def _is_evidence(pod: PodView) -> bool:
    counted = counted_as(pod)
    if counted is not None:
        return counted[0] is not CountKind.DISRUPTION
    return bool(pod.exit_code) and pod.exit_code not in {76, 143}


def cleared(
    views: Mapping[Slot, SlotView],
    *,
    wanted: Collection[Slot],
    verdicts: Mapping[str, Verdict],
    tallies: Mapping[str, Tally],
    keep: int,
) -> tuple[Delete, ...]:
    """Ended pods that are of no more use while the job runs.

    Kept are those that are not counted yet (`tallies`: what the status holds), the last of each wanted slot, which its
    next attempt follows on, and the newest failed ones of each group.
    """
    pods = [pod for view in views.values() for pod in view.pods]
    kept = {pod.uid for pod in newest_failed(pods, keep)}
    kept |= {
        view.last_ended.uid for slot, view in views.items() if slot in wanted and view.last_ended is not None
    }
    return tuple(
        Delete(pod, Why.CLEARED)
        for pod in pods
        if pod.ended
        and pod.deletion_requested is None
        and pod.uid not in kept
        and is_recorded(pod, verdicts, tallies)
    )


def is_recorded(pod: PodView, verdicts: Mapping[str, Verdict], tallies: Mapping[str, Tally]) -> bool:
    """Whether the end of a pod is part of the status, so that the pod may go without its count getting lost."""
    if verdicts[pod.uid].count is None:
        return True
    counted = counted_as(pod)
    if counted is None:
        return False
    kind, number = counted
    tally = tallies.get(pod.worker.group, Tally())
    return number <= (tally.disruptions if kind is CountKind.DISRUPTION else tally.failures)
