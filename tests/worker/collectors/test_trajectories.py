"""Ids of trajectories: the rows of the collectors' table, and a loop that says the same in plain words."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from rollout_worker.collectors.trajectories import TrajectoryIds


def done_of(lengths: list[int], num_steps: int, *, offset: int = 0) -> np.ndarray:
    """Done flags of environments whose episodes have these lengths, from step `offset` on."""
    steps = np.arange(offset + 1, offset + num_steps + 1)
    return np.array([steps % length == 0 for length in lengths])


def numbered(ids: TrajectoryIds, done: np.ndarray) -> list[list[int]]:
    out = np.full(done.shape, -7, dtype=np.int64)
    ids.number(done, out)
    return out.tolist()


@pytest.mark.row("C-49")
def test_ids_are_drawn_in_order_of_frames_then_environments() -> None:
    ids = TrajectoryIds(2)
    assert numbered(ids, done_of([5, 5], 6)) == [[0, 0, 0, 0, 0, 2], [1, 1, 1, 1, 1, 3]]
    assert numbered(ids, done_of([5, 5], 6, offset=6)) == [[2, 2, 2, 2, 4, 4], [3, 3, 3, 3, 5, 5]]
    ids = TrajectoryIds(2)
    assert numbered(ids, done_of([3, 5], 6)) == [[0, 0, 0, 2, 2, 2], [1, 1, 1, 1, 1, 3]]
    assert numbered(ids, done_of([3, 5], 6, offset=6)) == [[4, 4, 4, 5, 5, 5], [3, 3, 3, 3, 6, 6]]


@pytest.mark.row("C-50")
def test_a_trajectory_keeps_its_id_over_a_batch_border() -> None:
    ids = TrajectoryIds(1)
    batches = [numbered(ids, done_of([3], 5, offset=5 * k))[0] for k in range(3)]
    assert batches == [[0, 0, 0, 1, 1], [1, 2, 2, 2, 3], [3, 3, 4, 4, 4]]


@pytest.mark.row("C-52")
def test_a_reset_from_outside_draws_fresh_ids() -> None:
    ids = TrajectoryIds(2)
    numbered(ids, done_of([5, 5], 3))
    ids.renew(np.array([False, True]))
    assert numbered(ids, done_of([9, 9], 2)) == [[0, 0], [2, 2]]
    ids.renew()
    assert numbered(ids, done_of([1, 9], 1)) == [[3], [4]]
    ids.renew()
    assert ids.current.tolist() == [5, 6], "5 was drawn at the end of the episode and no frame had it"


@pytest.mark.row("C-52")
def test_an_id_without_a_frame_is_kept() -> None:
    ids = TrajectoryIds(2, base=10)
    ids.renew()
    ids.renew()
    assert ids.current.tolist() == [10, 11]


def by_loop(done: np.ndarray, base: int) -> list[list[int]]:
    num_envs, num_steps = done.shape
    current, following = list(range(base, base + num_envs)), base + num_envs
    out = [[0] * num_steps for _ in range(num_envs)]
    for step in range(num_steps):
        for env in range(num_envs):
            out[env][step] = current[env]
        for env in range(num_envs):
            if done[env, step]:
                current[env], following = following, following + 1
    return out


@given(
    st.lists(hnp.arrays(bool, st.tuples(st.just(3), st.integers(1, 9))), min_size=1, max_size=4),
    st.integers(0, 2**62),
)
def test_the_arithmetic_is_the_loop(batches: list[np.ndarray], base: int) -> None:
    ids = TrajectoryIds(3, base=base)
    got = [numbered(ids, done) for done in batches]
    whole = by_loop(np.concatenate(batches, axis=1), base)
    assert np.concatenate([np.array(g) for g in got], axis=1).tolist() == whole


@pytest.mark.probe("P-15")
def test_fewer_rows_are_the_first_environments() -> None:
    ids = TrajectoryIds(3)
    assert numbered(ids, np.array([[True], [False]])) == [[0], [1]]
    assert ids.current.tolist() == [3, 1, 2]
