"""Why workers are not ready: the worst that is the matter with a job's pods, as a reason and a sentence. Pure.

Read by the condition WorkersReady and by the startup deadline, so that both say the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rollout_contract.names import Slot
from rollout_contract.status import Reason
from rollout_operator.decisions import GroupPlan
from rollout_operator.failure import describe
from rollout_operator.observed import LOST_AFTER_S, SlotView, StreamFacts
from rollout_operator.pod_parts import OtherContainer
from rollout_operator.pods import PodView

_WAITING_REASONS: Mapping[str, Reason] = {
    reason.value: reason
    for reason in (
        Reason.INVALID_IMAGE_NAME,
        Reason.ERR_IMAGE_NEVER_PULL,
        Reason.IMAGE_PULL_BACK_OFF,
        Reason.ERR_IMAGE_PULL,
        Reason.CREATE_CONTAINER_CONFIG_ERROR,
        Reason.CREATE_CONTAINER_ERROR,
        Reason.RUN_CONTAINER_ERROR,
        Reason.UNSCHEDULABLE,
        Reason.SCHEDULING_GATED,
    )
}
_SEVERITY: tuple[Reason, ...] = (
    Reason.WORKER_LIMIT_EXCEEDED,
    *_WAITING_REASONS.values(),
    Reason.WORKER_BACKING_OFF,
    Reason.WORKER_LOST,
    Reason.STARTING,
    Reason.WORKERS_NOT_READY,
)
"""The worst first: what never heals by itself, what rarely does, what does."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One worker's reason not to be ready."""

    reason: Reason
    message: str


def ready_slots(plan: GroupPlan, views: Mapping[Slot, SlotView]) -> int:
    """Wanted slots of a group with a ready worker."""
    found = (views.get(slot) for slot in plan.wanted)
    return sum(1 for view in found if view is not None and view.live is not None and view.live.ready)


def worst_problem(
    groups: Iterable[GroupPlan], views: Mapping[Slot, SlotView], facts: StreamFacts | None
) -> Problem | None:
    """The worst that keeps a wanted worker from being ready; None: all are ready (or have done their share)."""
    problems = [
        problem
        for group in groups
        for slot in sorted(group.wanted - group.done)
        if (problem := _problem_of(slot, group, views.get(slot), facts)) is not None
    ]
    if not problems:
        return None
    worst = min(problems, key=lambda problem: _SEVERITY.index(problem.reason))
    others = len(problems) - 1
    more = f" (and {others} more not ready)" if others else ""
    return Problem(worst.reason, worst.message + more)


def _problem_of(
    slot: Slot, group: GroupPlan, view: SlotView | None, facts: StreamFacts | None
) -> Problem | None:
    live = view.live if view else None
    if live is not None:
        return _problem_of_pod(live, facts)
    ended = view.last_ended if view else None
    if slot in group.given_up and ended is not None:
        return Problem(
            Reason.WORKER_LIMIT_EXCEEDED, f"{describe(ended)}; it stays down (backoffLimitPerWorker)"
        )
    if slot in group.backing_off and ended is not None:
        return Problem(Reason.WORKER_BACKING_OFF, f"{describe(ended)}; its replacement waits")
    if view is not None and view.occupied:
        return _problem_of_ending(slot, view)
    return Problem(Reason.WORKERS_NOT_READY, f"{slot}: no worker yet")


def _problem_of_ending(slot: Slot, view: SlotView) -> Problem:
    pod = next(p for p in view.pods if not p.ended)
    if pod.cut_off:
        wait = f"it is replaced {pod.grace_s + LOST_AFTER_S:.0f} s after it was asked to end, or when it has ended"
        return Problem(Reason.WORKER_LOST, f"{_cut_off(pod)}; {wait}")
    return Problem(Reason.WORKERS_NOT_READY, f"{slot}: the last worker is still ending")


def _cut_off(pod: PodView) -> str:
    return f"{pod.slot}: pod {pod.name}: its node {pod.node} does not answer"


def _problem_of_pod(pod: PodView, facts: StreamFacts | None) -> Problem | None:
    if pod.ready:
        if facts is not None and _is_silent(pod, facts):
            return Problem(Reason.WORKER_LOST, f"{pod.slot}: no heartbeat for more than 15 s")
        return None
    if pod.cut_off:
        return Problem(Reason.WORKER_LOST, _cut_off(pod))
    reason = _WAITING_REASONS.get(pod.reason)
    if reason is not None and pod.started is None:
        what = f" {pod.image}" if "Image" in pod.reason and pod.image and pod.image not in pod.message else ""
        return Problem(reason, f"{pod.slot}: pod {pod.name}:{what} {pod.message or reason.value}")
    if pod.hindrance is not None:
        return _hindered(pod, pod.hindrance)
    if pod.reason == "ContainerCreating" and pod.mounts:
        # A kubelet tells of a missing one in events only, which nobody may read for this.
        needs = f"it needs {', '.join(pod.mounts)}: while one of them is missing, it stays so"
        return Problem(Reason.STARTING, f"{pod.slot}: pod {pod.name} is set up on {pod.node}; {needs}")
    state = "starting" if pod.started is not None else "waiting to run"
    detail = f" ({pod.reason})" if pod.reason and pod.reason != "ContainerCreating" else ""
    if pod.phase == "Pending" and pod.node and not pod.reason:
        detail = f" (node {pod.node} has not taken it yet)"
    return Problem(Reason.STARTING, f"{pod.slot}: {state}{detail}")


def _hindered(pod: PodView, other: OtherContainer) -> Problem:
    """What another container of its pod keeps it from."""
    waiting = _WAITING_REASONS.get(other.reason, Reason.STARTING)
    reason = waiting if other.exit_code is None else Reason.WORKERS_NOT_READY
    effect = "" if pod.started is None else "; a pod is ready only while all its containers are"
    return Problem(reason, f"{pod.slot}: pod {pod.name}: {other.said}{effect}")


def _is_silent(pod: PodView, facts: StreamFacts) -> bool:
    """Only a worker that has been heard of can fall silent."""
    beat = facts.heartbeats.get(pod.slot)
    return beat is not None and beat.attempt == pod.worker.attempt and facts.fresh_heartbeat(pod) is None
