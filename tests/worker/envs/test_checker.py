"""The checker of environments: whatever is wrong is told with its key, and with what to do about it."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
import toys
import toys_gym
import toys_td
from gymnasium import spaces
from tensordict import TensorDict

from rollout_worker.envs import (
    Bounded,
    Composite,
    EnvSpecFaults,
    GymEnv,
    SerialEnv,
    Unbounded,
    check_env_specs,
)


class Wrong(toys.Count):
    """A gymnasium environment that is wrong in one way."""

    def __init__(self, how: str) -> None:
        super().__init__(99)
        self.how = how

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        observation, info = super().reset(seed=seed)
        wrong = {"no tuple": observation, "nothing": None, "no info": (observation, None)}
        return wrong.get(self.how, (observation, info))

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, info = super().step(action)
        if self.how == "raises":
            raise ZeroDivisionError("oops")
        good = (reward, terminated, truncated, info)
        return {
            "four": (observation, reward, terminated, info),
            "list": [observation, *good],
            "no reward": (observation, None, *good[1:]),
            "reward is nan": (observation, float("nan"), *good[1:]),
            "two rewards": (observation, np.ones(2), *good[1:]),
            "reward is text": (observation, "much", *good[1:]),
            "two flags": (observation, reward, np.array([True, False]), False, info),
            "no flag": (observation, reward, terminated, None, info),
            "step without info": (observation, reward, terminated, truncated, None),
            "shape": (np.zeros(2, np.int64), *good),
            "dtype": (np.array([0.5]), *good),
            "no observation": (None, *good),
            "dict": ({"a": observation}, *good),
        }.get(self.how, (observation, *good))


class WrongTree(toys.Count):
    """A nested observation that is wrong in one way."""

    def __init__(self, how: str) -> None:
        self.how = how
        super().__init__(99)

    def _space(self) -> spaces.Space:
        pair = spaces.Tuple([spaces.Discrete(3), spaces.Dict(deep=spaces.Box(0, 9, (1,), np.float32))])
        return spaces.Dict(
            a=spaces.Box(0, 9, (1,), np.float32), b=spaces.Dict(c=spaces.Discrete(3)), pair=pair
        )

    def _observe(self) -> Any:
        one = np.zeros(1, np.float32)
        good = {"a": one, "b": {"c": 1}, "pair": (1, {"deep": one})}
        match self.how:
            case "missing":
                del good["b"]["c"]
            case "extra":
                good["b"]["x"] = 1
            case "range":
                good["b"]["c"] = 3
            case "below":
                good["a"] = one - 1
            case "nan":
                good["a"] = one * np.nan
            case "flat":
                good["b"] = 1
            case "short tuple":
                good["pair"] = (1,)
            case "deep":
                good["pair"] = (1, {})
        return good


class NoSpaces(gymnasium.Env[Any, Any]):
    """Has no spaces."""


class WrongSpace(toys.Count):
    def _space(self) -> Any:
        return (1,)


class NoSeed(toys.Count):
    """Its reset takes nothing."""

    def reset(self) -> Any:
        return super().reset()


class Limited(toys.Count):
    """Its actions are narrower than its space."""

    def __init__(self) -> None:
        super().__init__(9)
        self.action_space = spaces.Box(5, 9, (1,))

    def step(self, action: Any) -> Any:
        raise ValueError("the action is out of range")


class WrongTd(toys_td.CountEnv):
    """An environment of ours that is wrong in one way."""

    def __init__(self, how: str) -> None:
        super().__init__(99)
        self.__dict__["how"] = how
        if how == "reward spec":
            self.reward_spec = Unbounded((2,))
        if how == "bounds":
            self.observation_spec = Composite(observation=Bounded(low=50, high=51, shape=(1,)))

    def _reset(self, td: Any, **kwargs: Any) -> Any:
        fresh = super()._reset(td, **kwargs)
        match self.how:
            case "dict":
                return {"observation": np.zeros(1)}
            case "nothing":
                return None
            case "batch":
                return TensorDict({"observation": torch.zeros(1, 1)}, batch_size=(1,))
            case "tensor":
                return torch.zeros(1)
        return fresh

    def _step(self, td: Any) -> Any:
        following = super()._step(td)
        match self.how:
            case "no reward":
                del following["reward"]
            case "reward shape":
                following["reward"] = torch.zeros(3)
            case "reward dtype":
                following["reward"] = torch.zeros(1, dtype=torch.float64)
            case "next":
                return TensorDict({"next": following}, batch_size=())
            case "same":
                return td.update(following)
            case "nested":
                following["agents", "obs"] = torch.zeros(1)
            case "step gives nothing":
                return None
            case "raises":
                raise ZeroDivisionError("oops")
        return following


TOLD = [
    (Wrong, "no tuple", ["reset gave an array of int64", "give two values, observation and info"]),
    (Wrong, "nothing", ["reset gave NoneType", "give two values"]),
    (Wrong, "no info", ["reset: 'info' is NoneType", "give a dict"]),
    (
        Wrong,
        "four",
        ["step 1 gave 4 values (ndarray, float, bool, dict)", "give five", "`done` is `terminated`"],
    ),
    (Wrong, "list", ["step 1 gave list", "give five values"]),
    (Wrong, "no reward", ["step 1: 'reward' is NoneType", "give one number"]),
    (Wrong, "reward is nan", ["step 1: 'reward' is nan", "give a finite number"]),
    (Wrong, "two rewards", ["step 1: 'reward' is an array of float64 of shape [2]", "give one number"]),
    (Wrong, "reward is text", ["step 1: 'reward' is str 'much'", "give one number"]),
    (Wrong, "two flags", ["step 1: 'terminated' is an array of bool of shape [2]", "give True or False"]),
    (Wrong, "no flag", ["step 1: 'truncated' is NoneType", "give True or False"]),
    (Wrong, "step without info", ["step 1: 'info' is NoneType", "give a dict"]),
    (
        Wrong,
        "shape",
        ["'observation' has shape [2]; its spec says [1]", "give that shape, or declare this one"],
    ),
    (Wrong, "dtype", ["'observation' has dtype float64; its spec says int64", "convert it, or declare"]),
    (Wrong, "no observation", ["'observation' is NoneType", "give an array of int64 of shape [1]"]),
    (Wrong, "dict", ["'observation' is dict", "give an array of int64 of shape [1]"]),
    (Wrong, "raises", ["step 1 raised ZeroDivisionError: oops", "test_checker.py:"]),
    (WrongTree, "missing", ["('b', 'c') is missing", "give it, or take it out"]),
    (WrongTree, "extra", ["('b', 'x') is not in the observation space", "declare it there, or leave it out"]),
    (WrongTree, "range", ["('b', 'c') holds values that are not in", "n=3", "3 to 3", "declare a wider one"]),
    (WrongTree, "below", ["'a' holds values that are not in", "-1 to -1", "keep to it"]),
    (WrongTree, "nan", ["'a' holds NaN", "give numbers only"]),
    (WrongTree, "flat", ["'b' is int 1; its space is a Dict", "give a dict with the keys ['c']"]),
    (WrongTree, "short tuple", ["'pair' is tuple (1,); its space is a Tuple", "give a tuple of 2 values"]),
    (WrongTree, "deep", ["('pair', 1, 'deep') is missing", "give it"]),
    (WrongTd, "reward spec", ["'reward' has shape [1]; its spec says [2]", "give that shape"]),
    (WrongTd, "bounds", ["'observation' holds values that are not in", "0 to 0", "declare a wider one"]),
    (WrongTd, "dict", ["_reset gave dict", "give a tensordict, `TensorDict({...}, batch_size=[])`"]),
    (WrongTd, "nothing", ["_reset gave NoneType", "give a tensordict"]),
    (WrongTd, "batch", ["the batch size is [1]; the environment's is []"]),
    (WrongTd, "tensor", ["_reset gave Tensor", "give a tensordict"]),
    (WrongTd, "no reward", ["step 1: 'reward' is missing", "give it, or take it out of the spec"]),
    (WrongTd, "reward shape", ["'reward' has shape [3]; its spec says [1]", "give that shape"]),
    (
        WrongTd,
        "reward dtype",
        ["'reward' has dtype torch.float64; its spec says torch.float32", "convert it"],
    ),
    (WrongTd, "next", ["_step gave an entry 'next'", "`step` puts them there"]),
    (WrongTd, "same", ["_step gave the action 'action' too", "give a new tensordict"]),
    (WrongTd, "nested", ["('agents', 'obs') is in no spec", "declare it, or leave it out"]),
    (WrongTd, "step gives nothing", ["_step gave NoneType", "give a tensordict"]),
    (WrongTd, "raises", ["step 1 raised ZeroDivisionError: oops", "test_checker.py:"]),
]


@pytest.mark.parametrize(
    ("kind", "how", "words"), [pytest.param(*each, id=f"{each[0].__name__} {each[1]}") for each in TOLD]
)
def test_what_is_wrong_is_told_with_its_key_and_a_remedy(kind, how, words):
    with pytest.raises(EnvSpecFaults) as caught:
        check_env_specs(kind(how))
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        pytest.param(
            NoSpaces, ["'observation_space' is missing", "'action_space' is missing", "set it"], id="no"
        ),
        pytest.param(WrongSpace, ["'observation_space' is tuple, not a gymnasium space"], id="no space"),
        pytest.param(
            NoSeed, ["reset cannot be called with `seed`", "def reset(self, *, seed=None"], id="seed"
        ),
        pytest.param(Limited, ["step 1 raised ValueError: the action is out of range"], id="actions"),
        pytest.param(lambda: GymEnv(Wrong("no reward")), ["'reward' is NoneType"], id="adapted"),
    ],
)
def test_other_faults(make, words):
    with pytest.raises(EnvSpecFaults) as caught:
        check_env_specs(make())
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: toys_gym.DeclaredNextStep(2), id="resets itself"),
        pytest.param(lambda: toys_gym.SameStep(2), id="in the same step"),
        pytest.param(lambda: toys_gym.Offset(1), id="rewards in arrays"),
        pytest.param(toys.Nested, id="nested"),
        pytest.param(lambda: toys_td.Team(3), id="a group"),
        pytest.param(lambda: SerialEnv(2, toys.Count), id="a batch"),
    ],
)
def test_what_is_right_stays_right(make):
    env = make()
    check_env_specs(env)
    check_env_specs(env)
