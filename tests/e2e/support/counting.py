"""Mounted into workers: environments whose observations say what was stepped, the ways in which one goes wrong, a policy."""

import time

import gymnasium
import numpy as np
from torch import nn, zeros


class Counter(gymnasium.Env):
    """Observation: steps of this episode, and of this environment."""

    observation_space = gymnasium.spaces.Box(-1e9, 1e9, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, wait_ms=0, raise_at=None, hog_at=None):
        self.wait_ms, self.raise_at, self.hog_at = wait_ms, raise_at, hog_at
        self.total, self.hoard = 0, []

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return self._observe(), {}

    def step(self, action):
        time.sleep(self.wait_ms / 1000)
        self.steps += 1
        self.total += 1
        if self.total == self.raise_at:
            raise RuntimeError(f"step {self.total} is one too many")
        while self.hog_at is not None and self.total >= self.hog_at:
            self.hoard.append(np.ones(4 << 20))  # until the kernel has had enough
        return self._observe(), 1.0, self.steps >= 50, False, {}

    def _observe(self):
        return np.array([self.steps, self.total], np.float32)


class Started(gymnasium.Env):
    """Observation: what it was told to start at, and steps of this episode."""

    observation_space = Counter.observation_space
    action_space = Counter.action_space

    def __init__(self, start=0.0, limit=50):
        assert isinstance(start, float), f"start came as {type(start).__name__}"
        self.start, self.limit = start, limit

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return self._observe(), {}

    def step(self, action):
        self.steps += 1
        return self._observe(), 1.0, self.steps >= self.limit, False, {}

    def _observe(self):
        return np.array([self.start, self.steps], np.float32)


class Zero(nn.Module):
    """Does the same thing, whatever it sees."""

    def forward(self, observation):
        return zeros(observation.shape[:-1], dtype=int)


def make_env(**kwargs):
    return Counter(**kwargs)


def make_started(**kwargs):
    return Started(**kwargs)


def make_policy(observation_spec, action_spec):
    return Zero()
