"""How often a worker that waits asks: soon at first, at most a fiftieth of the wait too late, seldom in the end."""

from __future__ import annotations

from itertools import pairwise

from rollout_worker.asking import FIRST_S, LATE_S, PART, SOON_S, Intervals


def moments(until_s: float) -> list[float]:
    """When a wait of this length asks."""
    intervals, found = Intervals(), [0.0]
    while found[-1] < until_s:
        found.append(found[-1] + intervals.next_s())
    return found


def test_the_first_questions_come_at_once() -> None:
    asked = moments(1.0)
    assert asked[1] == FIRST_S
    assert sum(moment < 0.1 for moment in asked) >= 6


def test_no_wait_is_made_longer_by_more_than_its_fiftieth() -> None:
    for earlier, later in pairwise(moments(600.0)):
        assert later - earlier <= max(SOON_S, PART * later) + 1e-9


def test_a_long_wait_costs_little() -> None:
    asked = moments(120.0)
    assert sum(60.0 <= moment < 120.0 for moment in asked) <= 60.0 / LATE_S + 1
    assert len(asked) < 500
