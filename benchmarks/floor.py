"""The floor: the cheapest honest way to step gymnasium environments in two processes, with numpy and two semaphores alone.

Each process steps its half of the environments and writes observations, rewards and flags into one shared block, wakes
the parent, and waits for the next step. Little can be cheaper; ours is measured as a fraction of it.
"""

from __future__ import annotations

import mmap
import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from benchmarks.harness import Work

NUM_PROCESSES = 2
STEPS_PER_PORTION = 64
WAIT_S = 60.0
_STOP = 255


def _arrays(memory: mmap.mmap, num_envs: int, width: int) -> dict[str, Any]:
    """The block: one frame of `num_envs` environments with observations of `width` floats."""
    found: dict[str, Any] = {}
    offset = 0
    for name, dtype, shape in (
        ("observation", np.float32, (num_envs, width)),
        ("reward", np.float32, (num_envs,)),
        ("action", np.int64, (num_envs,)),
        ("terminated", np.bool_, (num_envs,)),
        ("truncated", np.bool_, (num_envs,)),
        ("stop", np.uint8, (1,)),
    ):
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        found[name] = np.frombuffer(memory, dtype, int(np.prod(shape)), offset).reshape(shape)
        offset += -(-size // 64) * 64
    return found


def _child(env_name: str, memory: mmap.mmap, shape: tuple[int, int], rows: range, go: Any, done: Any) -> None:
    import gymnasium

    block = _arrays(memory, *shape)
    envs = [gymnasium.make(env_name, disable_env_checker=True) for _ in rows]
    for row, env in zip(rows, envs, strict=True):
        block["observation"][row], _ = env.reset(seed=row)
    done.release()
    while go.acquire(True, WAIT_S) and block["stop"][0] != _STOP:
        actions = block["action"].tolist()
        for row, env in zip(rows, envs, strict=True):
            observation, reward, terminated, truncated, _ = env.step(actions[row])
            if terminated or truncated:
                observation, _ = env.reset()
            block["observation"][row] = observation
            block["reward"][row] = reward
            block["terminated"][row] = terminated
            block["truncated"][row] = truncated
        done.release()


@contextmanager
def floor(env_name: str, num_envs: int, width: int = 4) -> Iterator[Work]:
    """Steps with random discrete actions (0 or 1), drawn beforehand."""
    context = multiprocessing.get_context("fork")
    memory = mmap.mmap(-1, 1 << 20)
    block = _arrays(memory, num_envs, width)
    share = num_envs // NUM_PROCESSES
    gates = [(context.Semaphore(0), context.Semaphore(0)) for _ in range(NUM_PROCESSES)]
    children = [
        context.Process(
            target=_child,
            args=(env_name, memory, (num_envs, width), range(i * share, (i + 1) * share), go, done),
            daemon=True,
        )
        for i, (go, done) in enumerate(gates)
    ]
    for child in children:
        child.start()
    for _, done in gates:
        done.acquire(True, WAIT_S)
    actions = np.random.default_rng(0).integers(0, 2, (STEPS_PER_PORTION, num_envs))

    def work() -> int:
        for action in actions:
            block["action"][:] = action
            for go, _ in gates:
                go.release()
            for _, done in gates:
                done.acquire(True, WAIT_S)
        return num_envs * STEPS_PER_PORTION

    try:
        yield work
    finally:
        block["stop"][0] = _STOP
        for go, _ in gates:
            go.release()
        for child in children:
            child.join()
