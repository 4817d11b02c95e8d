"""How many workers a group has, and which slots those are: scaling up and down, and the choice of victims. Pure.

One decision-maker: the same look at the job always gives the same slots, and a victim that was asked to end stays the
victim. A slot is taken while it has any pod, also one that has ended and waits for its replacement.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rollout_contract.messages import WorkerState
from rollout_contract.names import Slot
from rollout_contract.spec import RolloutJobSpec, WorkerGroup
from rollout_operator.observed import SlotView, StreamFacts
from rollout_operator.pods import PodView

WAITING_STATES = frozenset({WorkerState.PAUSED, WorkerState.BACKPRESSURED, WorkerState.WAITING_FOR_WEIGHTS})
"""A worker in one of these has nothing in hand that its end would cost."""


def desired_of(group: WorkerGroup, spec: RolloutJobSpec) -> int:
    """Workers that the group should have, within its bounds."""
    if not group.elastic:
        return group.replicas if group.replicas is not None else 1
    highest = spec.replicas if group.max_replicas is None else min(spec.replicas, group.max_replicas)
    return max(group.min_replicas, highest)


def clamped_from(group: WorkerGroup, spec: RolloutJobSpec) -> int | None:
    """`replicas` as written, if the group's bounds do not allow it."""
    return spec.replicas if group.elastic and desired_of(group, spec) != spec.replicas else None


def wanted_slots(
    group: str, desired: int, *, views: Mapping[Slot, SlotView], facts: StreamFacts | None
) -> frozenset[Slot]:
    """The slots that the group's workers fill: those that have pods, less the victims or plus the lowest free ones."""
    taken = [slot for slot in views if slot.group == group]
    if len(taken) > desired:
        by_loss = sorted(taken, key=lambda slot: victim_order(views[slot], facts))
        return frozenset(by_loss[len(taken) - desired :])
    free = (Slot(group, index) for index in range(desired + len(taken)))
    added = [slot for slot in free if slot not in views][: desired - len(taken)]
    return frozenset(taken) | frozenset(added)


def victim_order(view: SlotView, facts: StreamFacts | None) -> tuple[int, int, float, int]:
    """Sorts slots by what their end costs, the cheapest first.

    Leaving already, without a worker, pending, not ready, waiting; then the fewest frames in hand, then the youngest.
    """
    pod = view.live
    if pod is None:
        return (0 if view.occupied else 1, 0, 0.0, -view.slot.index)
    in_hand = facts.reservations.get(view.slot, 0) if facts else 0
    return (_stage(pod, facts), in_hand, -pod.created, -view.slot.index)


def _stage(pod: PodView, facts: StreamFacts | None) -> int:
    if pod.started is None:
        return 2
    if not pod.ready:
        return 3
    beat = facts.fresh_heartbeat(pod) if facts else None
    return 4 if beat is not None and beat.state in WAITING_STATES else 5


def next_attempt(slot: Slot, view: SlotView | None, facts: StreamFacts) -> int:
    """The attempt that a new process of the slot has: one more than any that was given or is known of, 0 for the first.

    A pod that is gone may still run on a node that is cut off. What was given stands in the stream (`announce`), so that
    no two processes ever have the same number, whoever saw what of them.
    """
    seen: Iterable[int] = (
        view.highest_attempt if view else -1,
        facts.attempts.get(slot, -1),
        beat.attempt if (beat := facts.heartbeats.get(slot)) else -1,
    )
    return 1 + max(seen)
