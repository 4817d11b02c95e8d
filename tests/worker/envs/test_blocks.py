"""What stands in a block after steps: one body over serial, one child and three children."""

from __future__ import annotations

import numpy as np
import pytest
import toys
import toys_td

from rollout_worker.envs import Leaf
from rollout_worker.envs.commands import Step

COUNTS = [{"k": 3}, {"k": 5}]


@pytest.mark.probe("P-01")
def test_an_end_leaves_the_neighbours_alone(open_toys, collect):
    envs = open_toys("toys:Calls", 2, 15, kwargs=COUNTS)
    envs.reset([1, 2])
    got = collect(envs)
    n, resets, steps = np.moveaxis(got["observation"], -1, 0)
    assert n.tolist() == [[0, 1, 2] * 5, [0, 1, 2, 3, 4] * 3]
    assert resets.tolist() == [
        [r for r in range(1, 6) for _ in range(3)],
        [r for r in range(1, 4) for _ in range(5)],
    ]
    assert steps.tolist() == [list(range(15))] * 2
    assert np.flatnonzero(got["next.done"][0]).tolist() == [2, 5, 8, 11, 14]
    assert np.flatnonzero(got["next.done"][1]).tolist() == [4, 9, 14]
    ended = envs.episodes(0)
    assert sorted(
        zip(ended.env_index.tolist(), ended.returns.tolist(), ended.lengths.tolist(), strict=True)
    ) == [
        *[(0, 3.0, 3)] * 5,
        *[(1, 5.0, 5)] * 3,
    ]


@pytest.mark.probe("P-02")
def test_a_reused_observation_buffer_does_not_reach_the_block(open_toys, collect):
    envs = open_toys(toys.Alias, 2, 7)
    envs.reset()
    first = envs.blocks[0].arrays
    collect(envs, 0)
    collect(envs, 1)
    second = envs.blocks[1].arrays
    assert first["observation",][..., 0].tolist() == [[0, 1, 2, 0, 1, 2, 0]] * 2
    assert first["next", "observation"][..., 0].tolist() == [[1, 2, 3, 1, 2, 3, 1]] * 2
    assert second["observation",][..., 0].tolist() == [[1, 2, 0, 1, 2, 0, 1]] * 2
    assert second["next", "observation"][..., 0].tolist() == [[2, 3, 1, 2, 3, 1, 2]] * 2


@pytest.mark.probe("P-06")
def test_values_types_and_structure_survive(open_toys, collect):
    envs = open_toys(toys.Nested, 3, 3)
    envs.reset()
    got = collect(envs)
    assert envs.layout.root_keys == (("cam",), ("on",), ("pos", "n"), ("pos", "x"))
    for prefix in ("", "next."):
        assert got[prefix + "pos.n"].dtype == np.int64
        assert (got[prefix + "pos.n"] == 9007199254740993).all()
        assert got[prefix + "pos.x"].dtype == np.float64
        assert (got[prefix + "pos.x"] == 9007199254740991.0).all()
        assert got[prefix + "cam"].dtype == np.uint8
        assert got[prefix + "cam"].shape == (3, 3, 2, 2)
        assert (got[prefix + "cam"] == 255).all()
        assert got[prefix + "on"].dtype == np.bool_
        assert got[prefix + "on"].all()
    assert got["next.reward"].dtype == np.float32
    assert (got["next.reward"] == np.float32(0.1)).all()


@pytest.mark.probe("P-07")
def test_texts_follow_the_rules_of_tensors(open_toys, collect):
    envs = open_toys(toys.Text, 2, 5, kwargs=[{"k": 3}, {"k": 99}])
    envs.reset()
    got = collect(envs)
    assert got["observation"].tolist() == [
        [f"w0-s{n}" for n in (0, 1, 2, 0, 1)],
        [f"w1-s{n}" for n in range(5)],
    ]
    assert got["next.observation"].tolist() == [
        [f"w0-s{n}" for n in (1, 2, 3, 1, 2)],
        [f"w1-s{n}" for n in range(1, 6)],
    ]
    again = collect(envs, 1, mode="steps")
    assert again["observation"][1].tolist() == [f"w1-s{n}" for n in range(5, 10)]
    assert [key for key, *_ in envs.blocks[0].leaves() if key[-1] == "observation"] == []


@pytest.mark.probe("P-07")
def test_equal_texts_give_one_entry_per_env(open_toys, collect):
    envs = open_toys(toys.Text, 3, 2, kwargs={"k": 99, "name": "same"})
    envs.reset()
    assert collect(envs)["observation"].tolist() == [["same-s0", "same-s1"]] * 3


@pytest.mark.probe("P-12")
def test_the_root_after_an_end_is_what_the_policy_was_given(open_toys):
    envs = open_toys(toys.Count, 3, 5, kwargs={"k": 4, "start": 100})
    envs.reset()
    acted_on, recorded, following = [], [], []
    for batch in range(2):
        block = envs.blocks[batch].arrays
        envs.begin(batch)
        for step in range(5):
            acted_on.append(int(block["observation",][1, step, 0]))
            block["action",][:, step] = 0
            envs.step(batch, step)
        recorded += block["observation",][1, :, 0].tolist()
        following += block["next", "observation"][1, :, 0].tolist()
    assert acted_on == recorded == [100, 101, 102, 103, 100, 101, 102, 103, 100, 101]
    assert following == [101, 102, 103, 104, 101, 102, 103, 104, 101, 102]


@pytest.mark.probe("P-13")
def test_a_frame_limit_is_ored_in(open_toys, collect):
    leaves = [Leaf(("step_count",), "int64"), Leaf(("next", "step_count"), "int64")]
    kwargs = [{"k": 2}, {"k": 4}, {"k": 1000}]
    envs = open_toys(toys.Count, 3, 8, kwargs=kwargs, max_frames_per_traj=4, extra_leaves=leaves)
    envs.reset()
    got = collect(envs)
    frames = {flag: [np.flatnonzero(row).tolist() for row in got[f"next.{flag}"][..., 0]] for flag in FLAGS}
    assert frames["terminated"] == [[1, 3, 5, 7], [3, 7], []]
    assert frames["truncated"] == [[], [3, 7], [3, 7]]
    assert frames["done"] == [[1, 3, 5, 7], [3, 7], [3, 7]]
    assert got["step_count"].tolist() == [[0, 1] * 4, [0, 1, 2, 3] * 2, [0, 1, 2, 3] * 2]
    assert got["next.step_count"].tolist() == [[1, 2] * 4, [1, 2, 3, 4] * 2, [1, 2, 3, 4] * 2]
    assert not any(got[flag].any() for flag in FLAGS)


FLAGS = ("done", "terminated", "truncated")


def test_a_frame_limit_counts_across_blocks(open_toys, collect):
    envs = open_toys(toys.Count, 2, 5, kwargs={"k": 1000}, max_frames_per_traj=4)
    envs.reset()
    ends = [np.flatnonzero(collect(envs, batch)["next.truncated"][0]).tolist() for batch in (0, 1, 0)]
    assert ends == [[3], [2], [1]]


@pytest.mark.probe("P-05")
def test_a_frame_limit_reaches_every_level(open_toys, collect):
    envs = open_toys(toys_td.Two, 3, 8, max_frames_per_traj=4)
    envs.reset()
    got = collect(envs)
    assert got["next.done"].shape == (3, 8, 1)
    assert got["next.agents.done"].shape == (3, 8, 2, 1)
    for level in ("", "agents."):
        for flag in ("truncated", "done"):
            flags = got[f"next.{level}{flag}"].reshape(3, 8, -1)
            assert np.flatnonzero(flags.all(axis=(0, 2))).tolist() == [3, 7]
            assert np.flatnonzero(flags.any(axis=(0, 2))).tolist() == [3, 7]
        assert not got[f"next.{level}terminated"].any()


@pytest.mark.probe("P-32")
def test_each_frame_is_one_transition(open_toys, collect):
    envs = open_toys(toys.Calls, 2, 30)
    envs.reset()
    got = collect(envs)
    moves = list(
        zip(got["observation"][..., 0].ravel(), got["next.observation"][..., 0].ravel(), strict=True)
    )
    assert {move: moves.count(move) for move in moves} == {(0, 1): 20, (1, 2): 20, (2, 3): 20}
    assert (got["next.reward"] == 1.0).all()
    assert got["next.observation"][:, -1, 2].tolist() == [30, 30]


def test_steps_one_by_one_and_in_one_go_agree(open_toys, collect):
    envs = open_toys(toys.Rng, 5, 25)
    seeds = [11, 12, 13, 14, 15]
    envs.reset(seeds)
    by_range = [collect(envs, 0), collect(envs, 1)]
    envs.reset(seeds)
    by_steps = [collect(envs, 0, mode="steps"), collect(envs, 1, mode="steps")]
    for left, right in zip(by_range, by_steps, strict=True):
        assert left.keys() == right.keys()
        for key in left:
            np.testing.assert_array_equal(left[key], right[key])


def test_ranges_can_be_split_and_overlap_with_the_caller(open_toys, collect):
    envs = open_toys(toys.Rng, 5, 12)
    envs.reset([1, 2, 3, 4, 5])
    whole = collect(envs, 0)
    envs.reset([1, 2, 3, 4, 5])
    envs.begin(1)
    envs.begin_step(1, 0, 7)
    with pytest.raises(RuntimeError, match="finish_step"):
        envs.step(1, 7)
    envs.finish_step()
    envs.step_range(1, 7, 12)
    np.testing.assert_array_equal(whole["next.observation"], envs.blocks[1].arrays["next", "observation"])


def test_cut_ends_what_runs_and_starts_anew(open_toys, collect):
    envs = open_toys(toys.Rng, 3, 4, kwargs=[{"k": 4}, {"k": 3}, {"k": 9}])
    envs.reset([1, 2, 3])
    collect(envs, 0)
    envs.cut(0, 3, [7, 8, 9])
    block = envs.blocks[0].arrays
    assert block["next", "done"][..., 0].tolist() == [[0, 0, 0, 1], [0, 0, 1, 1], [0, 0, 0, 1]]
    assert block["next", "terminated"][..., 0].tolist() == [[0, 0, 0, 1], [0, 0, 1, 0], [0, 0, 0, 0]]
    assert block["next", "truncated"][..., 0].tolist() == [[0, 0, 0, 0], [0, 0, 0, 1], [0, 0, 0, 1]]
    assert sorted(envs.episodes(0).env_index.tolist()) == [0, 1]
    after_cut = collect(envs, 1)
    envs.reset([7, 8, 9])
    np.testing.assert_array_equal(after_cut["observation"], collect(envs, 0)["observation"])


def test_only_marked_envs_are_reset(open_toys, collect):
    envs = open_toys(toys.Calls, 4, 3, kwargs={"k": 9})
    envs.reset()
    collect(envs)
    envs.reset(mask=[True, False, False, True])
    assert envs.carry.arrays["observation",][:, 0].tolist() == [[0, 2, 3], [3, 1, 3], [3, 1, 3], [0, 2, 3]]


def test_blocks_can_be_exchanged_for_others(open_toys, collect):
    envs = open_toys(toys.Count, 3, 3, kwargs={"k": 100})
    envs.reset()
    old = envs.blocks[0].arrays["next", "observation"]
    collect(envs)
    envs.remap(num_steps=5, num_blocks=1)
    assert collect(envs)["observation"][0, :, 0].tolist() == [3, 4, 5, 6, 7]
    assert old[0, :, 0].tolist() == [1, 2, 3]


def test_a_batch_is_one_run_of_aligned_buffers(open_toys, collect):
    envs = open_toys(toys.Nested, 3, 7)
    envs.reset()
    got = collect(envs)
    block = envs.blocks[0]
    data = block.data()
    end = 0
    for leaf, (key, dtype, shape, view) in zip(block.layout.data, block.leaves(), strict=True):
        assert leaf.offset % 64 == 0
        assert leaf.offset - end < 64
        end = leaf.offset + leaf.nbytes
        assert view.nbytes == leaf.nbytes
        assert data[leaf.offset : end] == view
        values = np.frombuffer(view, dtype=dtype).reshape(shape)
        np.testing.assert_array_equal(values, got[".".join(key)])
    assert len(data) == end
    address = np.frombuffer(data, dtype=np.uint8).ctypes.data
    assert address % 64 == 0


def test_tensors_and_arrays_are_one_memory(open_toys):
    envs = open_toys(toys.Count, 2, 3)
    block = envs.blocks[1]
    block.tensors["action",][1, 2] = 1
    assert block.arrays["action",].tolist() == [[0, 0, 0], [0, 0, 1]]


@pytest.mark.parametrize("kind", list(toys.Actions.SPACES))
def test_actions_arrive_as_the_space_has_them(open_toys, kind):
    envs = open_toys(toys.Actions, 3, 4, kwargs={"kind": kind})
    envs.reset()
    block = envs.blocks[0]
    spec = envs.specs.full_action
    drawn = spec.rand((3, 4))
    for key in envs.layout.action_keys:
        block.tensors[key].copy_(drawn[key])
    envs.step_range(0, 0, 4)
    last = envs.get_attr("last")
    assert all(toys.Actions.SPACES[kind].contains(action) for action in last)


def test_an_action_that_the_env_changes_stays_in_the_block(open_toys):
    envs = open_toys(toys.Actions, 2, 2, kwargs={"kind": "box"})
    envs.reset()
    envs.blocks[0].arrays["action",][...] = 0.5
    envs.step_range(0, 0, 2)
    envs.call("spoil")
    assert (envs.blocks[0].arrays["action",] == 0.5).all()


@pytest.mark.probe("P-04")
def test_sums_of_a_wrapper_mean_the_same_everywhere(open_toys, collect):
    envs = open_toys(toys.Total, 2, 7)
    envs.reset()
    assert collect(envs)["next.total"][..., 0].tolist() == [[1, 2, 3, 1, 2, 3, 1]] * 2


@pytest.mark.parametrize("toy", [toys.Calls, toys.Text], ids=["numbers", "texts"])
def test_a_block_that_is_not_filled_hands_its_roots_on(open_toys, toy):
    envs = open_toys(toy, 3, 6, kwargs={"k": 5}, num_blocks=2)
    envs.reset()
    roots, following = [], []
    for batch, steps in enumerate([2, 6, 1, 4, 3]):
        block = envs.blocks[batch % 2]
        envs.begin(block.index)
        envs.step_range(block.index, 0, steps)
        roots += block.arrays["observation",][2, :steps].tolist()
        following += block.arrays["next", "observation"][2, :steps].tolist()
    value = (lambda text: int(text.partition("-s")[2])) if toy is toys.Text else (lambda numbers: numbers[0])
    assert [value(root) for root in roots] == [step % 5 for step in range(16)]
    assert [value(after) for after in following] == [step % 5 + 1 for step in range(16)]


@pytest.mark.parametrize("num_steps", [1, 3])
def test_a_masked_step_leaves_the_others_where_they_are(open_toys, num_steps):
    envs = open_toys(toys.Count, 3, num_steps, kwargs={"k": 9})
    envs.reset()
    for mask in ([True, True, False], [True, False, False]):
        envs.begin(0)
        envs.advance(Step(0, 0, 1, masked=True), mask=mask)
    envs.reset(mask=[False, False, False])
    envs.begin(0)
    assert envs.blocks[0].arrays["observation",][:, 0, 0].tolist() == [2, 1, 0]
    assert envs.get_attr("n_step") == [2, 1, 0]
