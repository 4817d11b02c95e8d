"""Observations, rewards, infos and masks as odd as real ones: every mode hands on the same, and its own copies."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
import toys
import toys_odd
import toys_td
from toys_td import CountEnv

from rollout_worker.envs import (
    GymEnv,
    NonTensor,
    ParallelEnv,
    SerialEnv,
    StepCounter,
    TransformedEnv,
    Unbounded,
)


@pytest.fixture(params=["serial", "block", "direct"])
def gather(request):
    """Make a batch in one mode, do something with it, close it."""

    def do(num_workers, factory, action, **more):
        if request.param == "serial":
            env = SerialEnv(num_workers, factory, **more)
        else:
            more = {"num_processes": 2, "mp_start_method": "fork", **more}
            env = ParallelEnv(num_workers, factory, **more, **DIRECT[request.param])
        with env:
            return action(env)

    return do


DIRECT = {"block": {}, "direct": {"use_buffers": False}}


def frames(num_steps):
    """An action: the roots and the following tensordicts of so many steps, not copied."""

    def do(env):
        td, roots, following = env.reset(), [], []
        for _ in range(num_steps):
            roots.append(td)
            stepped, td = env.step_and_maybe_reset(env.rand_action(td))
            following.append(stepped["next"])
        return roots, following

    return do


def same(found, meant):
    meant = np.asarray(meant)
    assert str(found.dtype) == f"torch.{meant.dtype.name}"
    assert tuple(found.shape) == meant.shape
    assert np.array_equal(found.numpy(), meant)


@pytest.mark.probe("P-06")
@pytest.mark.parametrize("kind", toys_odd.ARRAYS)
def test_odd_arrays_arrive_as_they_are_meant(gather, kind):
    meant = toys_odd.ARRAYS[kind][2]
    roots, following = gather(2, functools.partial(toys_odd.Odd, kind, 3), frames(7))
    for step in range(7):
        for row in range(2):
            same(roots[step]["observation"][row], meant(step % 3))
            same(following[step]["observation"][row], meant(step % 3 + 1))
            assert following[step]["done"][row].tolist() == [step % 3 == 2]
            assert following[step]["reward"][row].tolist() == [1.0]


@pytest.mark.probe("P-06")
def test_the_order_of_a_dicts_keys_is_the_spaces(gather):
    roots, following = gather(2, toys_odd.Shuffled, frames(7))
    for step, (root, then) in enumerate(zip(roots, following, strict=True)):
        for td, n in ((root, step % 3), (then, step % 3 + 1)):
            assert [key for key in td.keys() if key in "abc"] == ["a", "b", "c"]  # noqa: SIM118 (a tensordict's rows are what it iterates over)
            assert list(td["c"].keys()) == ["x", "y"]
            assert td["b"].tolist() == [[n, n]] * 2
            assert (td["c", "x"].tolist(), td["c", "y"].tolist()) == ([n] * 2, [[n]] * 2)


@pytest.mark.probe("P-02")
def test_what_is_changed_in_place_was_copied(gather):
    def do(env):
        found = frames(7)(env)
        env.vector.call("fill", 99)
        return found

    roots, following = gather(2, toys_odd.DeepAlias, do)
    for step, (root, then) in enumerate(zip(roots, following, strict=True)):
        for td, n in ((root, step % 3), (then, step % 3 + 1)):
            assert td["own"].tolist() == [[n, n]] * 2
            assert td["pair", "0"].tolist() == [[n]] * 2
            assert td["pair", "1", "view"].unique().tolist() == [n]
            assert td["flag"].tolist() == [n % 2 == 1] * 2


@pytest.mark.probe("P-02")
def test_infos_that_are_changed_in_place_were_copied(gather):
    roots, following = gather(2, aliasing, frames(7))
    for step, (root, then) in enumerate(zip(roots, following, strict=True)):
        for td, n in ((root, step % 3), (then, step % 3 + 1)):
            assert td["inner", "array"].tolist() == [[n]] * 2
            assert td.get("inner").get("list").tolist() == [[n]] * 2


def aliasing():
    infos = {("inner", "array"): Unbounded((1,), dtype=torch.int64), ("inner", "list"): NonTensor(shape=())}
    return GymEnv(toys_odd.DeepAlias(3), infos=infos)


@pytest.mark.probe("P-03")
def test_results_may_be_overwritten(gather):
    def do(env):
        seen = []
        td = env.rand_action(env.reset())
        for step in range(6):
            stepped, td = env.step_and_maybe_reset(td)
            seen.append(stepped["next", "observation"].clone())
            for key in list(stepped["next"].keys(True, True)):
                value = stepped["next", key] if isinstance(key, str) else stepped[("next", *key)]
                value.fill_(1) if value.dtype == torch.bool else value.fill_(-1)
            mask = torch.tensor([[step % 2 == 0], [False], [step == 3]])
            kept = td["observation"].clone()
            td = env.reset(td.set("_reset", mask))
            seen.append(td["observation"].clone())
            assert (td["observation"][~mask] == kept[~mask]).all()
            td["done"].fill_(True)
            td = env.rand_action(env.reset(td.set("_reset", torch.zeros(3, 1, dtype=torch.bool))))
        return [each.squeeze(-1).tolist() for each in seen]

    found = gather(3, functools.partial(toys.Count, 4), do)
    assert found == EXPECTED_OF_OVERWRITING


EXPECTED_OF_OVERWRITING = [
    *([1, 1, 1], [0, 1, 1]),
    *([1, 2, 2], [1, 2, 2]),
    *([2, 3, 3], [0, 3, 3]),
    *([1, 4, 4], [1, 0, 0]),
    *([2, 1, 1], [0, 1, 1]),
    *([1, 2, 2], [1, 2, 2]),
]


@pytest.mark.probe("P-01")
@pytest.mark.parametrize("lengths", [(1, 7, 2, 3), (1, 1, 1, 1), (5, 1000, 1, 4)])
def test_ends_of_any_pattern_stay_with_their_row(gather, lengths):
    factories = [functools.partial(toys.Calls, length) for length in lengths]
    roots, following = gather(4, factories, frames(11))
    for row, length in enumerate(lengths):
        shown = [root["observation"][row].tolist() for root in roots]
        assert shown == [[n % length, n // length + 1, n] for n in range(11)]
        done = [then["done"][row].item() for then in following]
        assert done == [(n + 1) % length == 0 for n in range(11)]


@pytest.mark.row("E-49")
@pytest.mark.row("E-63")
@pytest.mark.row("E-64")
@pytest.mark.probe("P-03")
@pytest.mark.parametrize("pattern", [(0, 0, 0), (1, 1, 1), (0, 1, 0), (1, 0, 1)])
@pytest.mark.parametrize("kind", ["_step", "_reset"])
@pytest.mark.parametrize("factory", [toys.Calls, functools.partial(toys_td.Words, 9), CountEnv])
def test_masks_of_nobody_of_all_and_of_some(gather, factory, kind, pattern):
    def do(env):
        first = env.step(acted(env.reset()))["next"].exclude("reward")
        mask = torch.tensor(pattern, dtype=torch.bool).unsqueeze(-1)
        if kind == "_reset":
            return first.clone(), env.reset(first.clone().set("_reset", mask)), mask
        return first.clone(), env.step(acted(first.clone()).set("_step", mask))["next"], mask

    before, after, mask = gather(3, factory, do)
    key = "text" if "text" in before else "observation"
    assert set(before.keys(True, True)) <= set(after.keys(True, True))
    for row, is_marked in enumerate(mask.squeeze(-1).tolist()):
        old, new = before[row].get(key), after[row].get(key)
        is_same = old == new if key == "text" else torch.equal(old, new)
        assert is_same is not is_marked


def acted(td):
    if "text" in td:
        return td.set("action", torch.ones(3, 1))
    wide = td["observation"].dtype.is_floating_point
    return td.set("action", torch.ones(3, 1) if wide else torch.ones(3, dtype=torch.int64))


@pytest.mark.probe("P-07")
@pytest.mark.parametrize("k", [2, 50])
def test_texts_of_any_length_and_character(gather, k):
    roots, following = gather(2, functools.partial(toys_odd.Longer, k), frames(9))
    words = toys_odd.Longer.WORDS
    for step, (root, then) in enumerate(zip(roots, following, strict=True)):
        for td, n in ((root, step % k), (then, step % k + 1)):
            text = words[n % len(words)] + str(n)
            assert td.get("observation").tolist() == [text, text]
            assert td[1]["observation"] == text


@pytest.mark.probe("P-04")
@pytest.mark.parametrize(
    "wrapper", ["TimeAwareObservation", "RecordEpisodeStatistics", "FrameStackObservation"]
)
def test_wrappers_that_keep_state_mean_the_same(wrapper):
    factory = functools.partial(wrapped, wrapper)
    more = {"num_processes": 2, "mp_start_method": "fork"}
    runs = []
    for kind, options in (
        (SerialEnv, {}),
        (ParallelEnv, more),
        (ParallelEnv, {**more, "use_buffers": False}),
    ):
        with kind(3, factory, **options) as env:
            env.set_seed(3)
            torch.manual_seed(0)
            runs.append(env.rollout(30, break_when_any_done=False))
    for other in runs[1:]:
        assert (runs[0] == other).all()
        assert set(runs[0].keys(True, True)) == set(other.keys(True, True))
    assert runs[0]["next", "done"].sum() > 3


def wrapped(name):
    import gymnasium

    env = gymnasium.make("CartPole-v1")
    more = {"stack_size": 3} if name == "FrameStackObservation" else {}
    return getattr(gymnasium.wrappers, name)(env, **more)


@pytest.mark.probe("P-05")
@pytest.mark.parametrize(("n", "limit"), [(None, 1), (2, 3), (3, 3), (None, 5)])
def test_limits_reach_every_level_and_leave_ends_alone(n, limit):
    def factory():
        return TransformedEnv(toys_td.Two(n), StepCounter(max_steps=limit, step_count_key="my_steps"))

    length = limit if n is None else min(n, limit)
    for kind, more in ((SerialEnv, {}), (ParallelEnv, {"num_processes": 2, "mp_start_method": "fork"})):
        with kind(3, factory, **more) as env:
            run = env.rollout(8, break_when_any_done=False)
        following = run["next"]
        ends = [(step + 1) % length == 0 for step in range(8)]
        is_truncated = [end and length == limit for end in ends]
        is_terminated = [end and n == length for end in ends]
        for flag, meant in (("done", ends), ("truncated", is_truncated), ("terminated", is_terminated)):
            assert following[flag].shape == (3, 8, 1)
            assert following[flag].squeeze(-1).tolist() == [meant] * 3, flag
        assert following["agents", "truncated"].shape == (3, 8, 2, 1)
        assert following["agents", "truncated"][..., 0, 0].tolist() == [is_truncated] * 3
        assert following["my_steps"].squeeze(-1).tolist() == [[step % length + 1 for step in range(8)]] * 3
