"""GymEnv: spaces, encodings, infos, pictures, seeds, and environments that reset themselves."""

from __future__ import annotations

import copy
import functools
import multiprocessing
import pickle
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
import toys
import toys_gym
from gymnasium import spaces

from rollout_worker.envs import (
    Binary,
    Categorical,
    GymEnv,
    MultiOneHot,
    NonTensor,
    OneHot,
    ParallelEnv,
    SerialEnv,
    Unbounded,
    make_env,
)
from rollout_worker.envs.autoreset import ordinary


def flat(td: Any, key: Any = "observation") -> Any:
    return td.get(key).squeeze(-1).tolist()


SELF_RESETTING = [
    pytest.param(toys_gym.NextStep, id="next step, not declared"),
    pytest.param(toys_gym.DeclaredNextStep, id="next step, declared"),
    pytest.param(lambda k: gymnasium.wrappers.Autoreset(toys.Count(k)), id="gymnasium's wrapper"),
    pytest.param(lambda k: gymnasium.wrappers.TimeLimit(toys_gym.NextStep(k), 99), id="under a wrapper"),
    pytest.param(toys_gym.SameStep, id="same step"),
    pytest.param(
        functools.partial(toys_gym.SameStep, name="terminal_observation"), id="same step, older name"
    ),
    pytest.param(toys.Count, id="not at all"),
]


@pytest.mark.probe("P-32")
@pytest.mark.parametrize("factory", SELF_RESETTING)
def test_every_frame_is_a_transition_whoever_resets(factory):
    got = GymEnv(factory(3)).rollout(9, break_when_any_done=False)
    assert flat(got) == [0, 1, 2] * 3
    assert flat(got, ("next", "observation")) == [1, 2, 3] * 3
    assert flat(got, ("next", "reward")) == [1.0] * 9
    assert flat(got, ("next", "done")) == [False, False, True] * 3


@pytest.mark.probe("P-32")
@pytest.mark.parametrize("factory", SELF_RESETTING)
@pytest.mark.parametrize("num_processes", [0, 1])
def test_so_it_is_in_a_batch(factory, num_processes):
    env = make_env(functools.partial(factory, 3), num_envs=2, num_processes=num_processes)
    try:
        got = env.rollout(6, break_when_any_done=False)
    finally:
        env.close()
    assert flat(got, ("next", "observation")) == [[1, 2, 3, 1, 2, 3]] * 2
    assert flat(got) == [[0, 1, 2, 0, 1, 2]] * 2


@pytest.mark.probe("P-32")
def test_the_action_of_a_filler_is_given_again():
    env = GymEnv(toys_gym.NextStep(1))
    taken = [0, 1, 1, 0]
    actions = iter(taken)
    env.rollout(4, lambda td: td.set("action", torch.tensor(next(actions))), break_when_any_done=False)
    assert env.env.unwrapped.given == taken


def test_a_lost_last_observation_is_an_error():
    env = GymEnv(toys_gym.SameStep(1, name=None))
    with pytest.raises(KeyError, match="put it there as 'final_obs'"):
        env.rollout(1)


def test_what_does_not_reset_itself_is_left_alone():
    env = toys.Count()
    assert ordinary(env) is env
    wrapped = ordinary(toys_gym.NextStep(2))
    twin = copy.deepcopy(wrapped)
    GymEnv(twin).rollout(5, break_when_any_done=False)
    assert (wrapped.unwrapped.n_step, twin.unwrapped.n_step) == (0, 5)
    assert pickle.loads(pickle.dumps(wrapped)).unwrapped.k == 2  # noqa: S301 (its own bytes)


@pytest.mark.parametrize("seed", [None, 3])
def test_a_seed_begins_anew_even_where_an_episode_waits(seed):
    env = GymEnv(toys_gym.SameStep(1))
    env.rollout(1)
    before = env.env.unwrapped.n_reset
    env.set_seed(seed)
    env.reset()
    assert env.env.unwrapped.n_reset == before + (seed is not None)


def test_every_space_has_a_leaf():
    env = GymEnv(toys_gym.Spaces(99))
    td = env.reset()
    last = env.env.last
    assert td["box"].dtype == torch.float64
    assert td["from_two"].item() == last["from_two"] - 2
    assert td["several"].tolist() == (last["several"] - 1).tolist()
    assert (td["text"], td["sequence"]) == (last["text"], last["sequence"])
    assert np.array_equal(td["graph"].nodes, last["graph"].nodes)
    assert td["one_of"] == last["one_of"]
    assert td["pair", "1", "deep"].dtype == torch.int32
    assert td.get("graph") is not last["graph"]
    for key in ("box", "bits", "from_two", "several", "flag", ("pair", "0")):
        assert env.observation_spec[key].is_in(td[key]), key
    assert isinstance(env.observation_spec["sequence"], NonTensor)


@pytest.mark.parametrize(
    "make", [SerialEnv, functools.partial(ParallelEnv, num_processes=1, mp_start_method="fork")]
)
def test_every_space_in_a_batch(make):
    env = make(2, functools.partial(toys_gym.Spaces, 99))
    try:
        got = env.rollout(3)
    finally:
        env.close()
    assert got["from_two"].max() <= 2
    assert len(got["text"]) == 2
    assert got["graph"][1][2].nodes.shape[1] == 2
    assert env.observation_spec["from_two"].is_in(got["from_two"][:, 0])


def test_a_space_of_somebody_else_is_refused():
    with pytest.raises(TypeError, match="'observation' is Unknown, which has no spec"):
        GymEnv(toys_gym.Alien())


@pytest.mark.parametrize("kind", list(toys.Actions.SPACES))
@pytest.mark.parametrize("is_categorical", [True, False])
def test_actions_arrive_in_their_space(kind, is_categorical):
    env = GymEnv(toys.Actions(kind), categorical_action_encoding=is_categorical)
    env.rollout(5)
    assert len(env.env.given) == 5


def test_one_hot_actions():
    env = GymEnv(toys.Actions("discrete"), categorical_action_encoding=False)
    assert env.action_spec == OneHot(3)
    env.step(env.reset().set("action", torch.tensor([False, False, True])))
    assert env.env.last == 7
    several = GymEnv(toys.Actions("multi"), categorical_action_encoding=False)
    assert several.action_spec == MultiOneHot([2, 3])
    several.step(several.reset().set("action", torch.tensor([False, True, False, False, True])))
    assert several.env.last.tolist() == [1, 2]
    assert GymEnv(toys.Actions("discrete")).action_spec == Categorical(3)


@pytest.mark.parametrize("num_processes", [0, 1])
def test_one_hot_actions_in_a_batch(num_processes):
    env = make_env("CartPole-v1", num_envs=2, num_processes=num_processes, categorical_action_encoding=False)
    try:
        assert env.action_spec.shape == (2, 2)
        assert env.rollout(3)["action"].sum(-1).eq(1).all()
    finally:
        env.close()


def test_texts_as_actions():
    env = GymEnv(toys_gym.Speaking())
    env.step(env.reset().set_non_tensor("action", "go"))
    env.rand_step(env.reset())
    assert env.env.given[0] == "go"
    assert spaces.Text(4).contains(env.env.given[1])


def test_declared_infos_become_observations():
    specs = {
        "lives": Unbounded((), dtype=torch.int64),
        "mask": Binary(2, dtype=torch.bool),
        ("deep", "name"): NonTensor(),
    }
    got = GymEnv(toys_gym.Informed(), infos=specs).rollout(3)
    assert got["lives"].tolist() == [3, 2, 1]
    assert got["next", "lives"].tolist() == [2, 1, 0]
    assert got["mask"].tolist() == [[False, False], [True, True], [False, True]]
    assert got["next", "deep", "name"] == ["s1", "s2", "s3"]
    with pytest.raises(ValueError, match="name of an observation"):
        GymEnv(toys_gym.Informed(), infos={"observation": Unbounded()})


def test_reset_takes_gymnasiums_keywords():
    env = GymEnv(toys_gym.Informed())
    env.reset(seed=4, options={"level": 2})
    assert (env.env.seeds[-1], env.env.options) == (4, {"level": 2})


def test_pictures():
    env = GymEnv(toys_gym.Painted(), from_pixels=True)
    got = env.rollout(3)
    assert set(env.observation_spec.keys()) == {"pixels"}
    assert got["next", "pixels"][:, 0, 0, 0].tolist() == [1, 2, 3]
    assert env.observation_spec.is_in(env.reset())
    both = GymEnv(toys_gym.Painted(), from_pixels=True, pixels_only=False)
    assert set(both.observation_spec.keys()) == {"observation", "pixels"}
    assert env.render().shape == (2, 3, 3)
    with pytest.raises(TypeError, match="render_mode is 'rgb_array'"):
        GymEnv(toys_gym.Painted("human"), from_pixels=True)


@pytest.mark.parametrize(("size", "ok"), [(1, True), (2, False)])
def test_rewards_of_one_element(size, ok):
    env = GymEnv(toys_gym.Offset(size))
    if ok:
        assert flat(env.rollout(2), ("next", "reward")) == [0.5, 0.5]
    else:
        with pytest.raises(TypeError, match=r"shape \[2\]; expected is one number"):
            env.rollout(1)


@pytest.mark.probe("P-24")
def test_a_seed_fixes_all_episodes():
    env = GymEnv(toys.Rng(3))
    env.set_seed(5)
    first = env.rollout(30, break_when_any_done=False)["observation"]
    env.set_seed(5)
    again = env.rollout(30, break_when_any_done=False)["observation"]
    assert torch.equal(first, again)
    assert len(first.unique()) == 30


@pytest.mark.probe("P-02")
def test_observations_are_copies():
    env = GymEnv(toys.Alias(3))
    first = env.rollout(7, break_when_any_done=False)
    kept = first.clone()
    env.rollout(7, break_when_any_done=False)
    assert (first == kept).all()
    assert flat(first) == [0, 1, 2, 0, 1, 2, 0]


def test_keywords_for_what_is_made_are_refused():
    with pytest.raises(TypeError, match="max_episode_steps cannot be given"):
        GymEnv(toys.Count(), max_episode_steps=3)


def test_the_plain_form_needs_no_torch_in_children(monkeypatch):
    monkeypatch.setattr(
        multiprocessing, "get_start_method", lambda **_: None
    )  # other tests may have settled it
    env = make_env(toys.Count, num_envs=1, num_processes=1)
    try:
        assert env.report()[0]["has_torch"] is False
    finally:
        env.close()
