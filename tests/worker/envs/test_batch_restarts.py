"""Environments that fail and are replaced in place: what the others see, and what the failed frame looks like."""

from __future__ import annotations

import functools

import pytest
import torch
import toys
import toys_td

from rollout_contract.errors import EnvError
from rollout_worker.envs import open_envs

FACTORIES = [
    pytest.param(functools.partial(toys_td.Crooked, where=3), id="ours"),
    pytest.param(functools.partial(toys.Fault, where=3, only=1), id="gymnasium"),
]


def flags(td, name):
    return td["next", name].squeeze(-1).tolist()


@pytest.mark.parametrize("factory", FACTORIES)
@pytest.mark.parametrize("resets", [True, False], ids=["and reset", "step alone"])
def test_the_frame_of_a_failure_is_marked(make, factory, resets, capfd):
    env = make(3, factory, on_env_error="restart")
    root = env.reset()
    for number in (1, 2, 3, 4, 5, 6):
        td = root.clone()
        td["action"] = torch.ones_like(env.action_spec.rand())
        if resets:
            stepped, root = env.step_and_maybe_reset(td)
        else:
            stepped = env.step(td)
            root = env.maybe_reset(stepped["next"].exclude("reward", "valid").clone())
        fails = number % 3 == 0
        assert flags(stepped, "valid") == [True, not fails, True]
        assert flags(stepped, "truncated") == [False, fails, False]
        assert flags(stepped, "done") == [False, fails, False]
        assert flags(stepped, "terminated") == [False] * 3
        expected = (number - 1) % 3 + (not fails)
        assert stepped["next", "observation"][1].item() == expected
        assert stepped["next", "reward"][1].item() == (not fails)
        assert root["observation"].squeeze(-1).tolist() == [number, 0 if fails else expected, number]
        assert "valid" not in root
    assert env.restarts == [0, 2, 0]
    assert not env.is_closed


def test_an_environment_that_always_fails_is_not_replaced_for_ever(make):
    env = make(2, functools.partial(toys_td.Crooked, where=1), on_env_error="restart")
    td = env.rand_action(env.reset())
    for _ in range(3):
        assert flags(env.step(td), "valid") == [True, False]
    with pytest.raises(EnvError, match="boom") as caught:
        env.step(td)
    assert caught.value.env_index == 1


def test_a_reset_that_fails_once_is_tried_with_another(make):
    toys.FailsOnce.made = 0
    env = make(2, toys.FailsOnce, on_env_error="restart")
    td = env.reset()
    assert td["observation"].squeeze(-1).tolist() == [0, 0]


def test_without_restarts_there_is_no_such_leaf(make):
    env = make(2, toys_td.CountEnv)
    assert "valid" not in env.rand_step(env.reset())["next"]


@pytest.mark.parametrize("num_processes", [0, 2])
def test_a_vector_env_goes_on(num_processes):
    with open_envs(
        toys.Fault,
        kwargs={"where": 3, "only": 1},
        num_envs=3,
        num_steps=8,
        num_processes=num_processes,
        start_method="fork" if num_processes else "spawn",
        restarts=True,
    ) as envs:
        envs.reset([1, 2, 3])
        envs.begin(0)
        envs.step_range(0, 0, 8)
        arrays = envs.blocks[0].arrays
        assert arrays["next", "valid"][:, :, 0].tolist() == [
            [True] * 8,
            [True, True, False] * 2 + [True] * 2,
            [True] * 8,
        ]
        assert arrays["observation",][1, :, 0].tolist() == [0, 1, 2, 0, 1, 2, 0, 1]
        assert arrays["next", "truncated"][1, :, 0].tolist() == [False, False, True] * 2 + [False] * 2
        assert len(envs.episodes(0).env_index) == 0
        assert envs.restarts == [0, 2, 0]


def test_a_replaced_environment_draws_numbers_of_its_own():
    def drawn():
        with open_envs(toys.Breaking, num_envs=1, num_steps=6, num_processes=0, restarts=True) as envs:
            envs.reset([5])
            envs.begin(0)
            envs.step_range(0, 0, 6)
            return envs.blocks[0].arrays["observation",][0, :, 0].tolist()

    first = drawn()
    assert first == drawn()
    assert len(set(first)) == 6
