"""Environments and policies of the worker's tests: imported by the worker under test, never by the tests themselves."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces


class Count(gymnasium.Env[np.ndarray, int]):
    """Counts its steps: observation int64 `[1]`, `start` after reset, +1 per step; reward 1; terminated on step `k`."""

    def __init__(self, k: int = 5, start: int = 0) -> None:
        self.observation_space = spaces.Box(-(2**31), 2**31, (1,), np.int64)
        self.action_space = spaces.Discrete(2)
        self.k, self.start, self.count = k, start, 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.count = 0
        return np.array([self.start]), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.count += 1
        return np.array([self.start + self.count]), 1.0, self.count >= self.k, False, {}


class Rng(Count):
    """Draws every observation from its own generator: float64 `[2]`."""

    def __init__(self, k: int = 10) -> None:
        super().__init__(k)
        self.observation_space = spaces.Box(0.0, 1.0, (2,), np.float64)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        return self.np_random.random(2), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        _, reward, terminated, truncated, info = super().step(action)
        return self.np_random.random(2), reward * float(action), terminated, truncated, info


class Fault(Count):
    """Fails in the way `how` says, in step `at` of environment `env`."""

    def __init__(self, how: str, at: int = 10, env: int = 1, env_index: int = 0) -> None:
        super().__init__(k=1_000_000)
        self.how = how if env_index == env else ""
        self.at = at
        if how == "float":
            self.observation_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
        if self.how == "constructor":
            raise ValueError("boom-constructor")

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        observation, reward, terminated, truncated, info = super().step(action)
        if self.how and self.count >= self.at:
            match self.how:
                case "raise":
                    return self.deeper()
                case "sleep":
                    time.sleep(3600)
                case "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                case "exit":
                    os._exit(3)
                case "shape":
                    observation = np.zeros(7, dtype=np.int64)
                case "nan-reward":
                    reward = float("nan")
        return observation, reward, terminated, truncated, info

    def deeper(self) -> tuple[np.ndarray, float, bool, bool, dict]:
        raise ValueError("boom-step")


class Linear(torch.nn.Module):
    """Acts with the sign of one weight; the weight itself is recorded, so that a batch tells which version made it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def forward(self, observation: torch.Tensor) -> dict[str, torch.Tensor]:
        ones = torch.ones(len(observation))
        return {"action": torch.bernoulli(ones / 2).long(), "version": ones * self.weight}


def make_linear(observation_spec: Any, action_spec: Any) -> Linear:
    return Linear()


def make_raising(observation_spec: Any, action_spec: Any) -> Any:
    calls = iter(range(5))

    def policy(observation: torch.Tensor) -> torch.Tensor:
        if next(calls, None) is None:
            raise RuntimeError("boom-policy")
        return torch.zeros(len(observation), dtype=torch.int64)

    return policy


def make_nan(observation_spec: Any, action_spec: Any) -> Any:
    def policy(observation: torch.Tensor) -> dict[str, torch.Tensor]:
        nothing = torch.full((len(observation),), float("nan"))
        return {"action": torch.zeros(len(observation), dtype=torch.int64), "value": nothing}

    return policy


def make_failing(observation_spec: Any, action_spec: Any) -> Any:
    raise KeyError("boom-factory")


def make_wrong_shape(observation_spec: Any, action_spec: Any) -> Any:
    return lambda observation: torch.zeros(len(observation), 3, dtype=torch.int64)


def make_clashing(observation_spec: Any, action_spec: Any) -> Any:
    def policy(observation: torch.Tensor) -> dict[str, torch.Tensor]:
        action = torch.zeros(len(observation), dtype=torch.int64)
        return {"action": action, "observation": observation + 1}

    return policy


not_callable = 3


class Marked(Linear):
    """Marks every frame that it acts on with 1; random frames have 0 there."""

    def forward(self, observation: torch.Tensor) -> dict[str, torch.Tensor]:
        mark = torch.ones(len(observation))
        return {"action": torch.zeros(len(observation), dtype=torch.int64), "mark": mark}


def make_marked(observation_spec: Any, action_spec: Any) -> Marked:
    return Marked()
