"""An environment that gives pictures as large as Atari's, and takes about as long: to measure what moving them costs."""

from __future__ import annotations

import multiprocessing
import os
import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from benchmarks.harness import Work

SHAPE = (84, 84, 4)
STEP_S = 300e-6
"""A step's own time: Pong, stacked and resized, takes about this."""


class Pictures(gymnasium.Env[Any, Any]):
    """Computes for a while, then gives a picture."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(0, 255, SHAPE, np.uint8)
        self.action_space = spaces.Discrete(6)
        self.picture = np.zeros(SHAPE, dtype=np.uint8)
        self.number = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.picture, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        end = time.thread_time() + STEP_S
        while time.thread_time() < end:
            pass
        self.number += 1
        self.picture[0, 0, 0] = self.number % 256
        return self.picture, 0.0, False, False, {}


def _steps(number: int) -> None:
    env = Pictures()
    env.reset()
    for _ in range(number):
        env.step(0)


def alone(num_envs: int) -> Work:
    """The environments' own time: as many processes as there are processors step them, and nothing is moved."""
    processes = min(num_envs, len(os.sched_getaffinity(0)))
    portion = 64

    def work() -> int:
        share = portion * num_envs // processes
        running = [
            multiprocessing.get_context("fork").Process(target=_steps, args=(share,))
            for _ in range(processes)
        ]
        for process in running:
            process.start()
        for process in running:
            process.join()
        return share * processes

    return work
