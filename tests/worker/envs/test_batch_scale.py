"""Many environments, many steps, many opens: what it costs does not grow, and one copy of each observation is kept."""

from __future__ import annotations

import gc
import os
import resource
import time
from pathlib import Path

import numpy as np
import pytest
import toys

from rollout_worker.envs import GymEnv, ParallelEnv, SerialEnv, open_envs

FORKED = {"mp_start_method": "fork", "num_processes": 2}


def resident() -> int:
    """Resident bytes of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def shared_of(pid: int) -> int:
    """Bytes of the shared block that a process maps."""
    sizes = []
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        if "rollout-arena" in line:
            low, high = line.split()[0].split("-")
            sizes.append(int(high, 16) - int(low, 16))
    return sum(sizes)


@pytest.mark.parametrize("more", [{}, {"use_buffers": False}], ids=["block", "direct"])
def test_a_thousand_environments(more):
    with ParallelEnv(1000, toys.Count, create_env_kwargs={"k": 3}, **FORKED, **more) as env:
        td = env.rand_action(env.reset())
        for _ in range(4):
            _, td = env.step_and_maybe_reset(td)
        assert td["observation"].squeeze(-1).tolist() == [1] * 1000
        assert list(env.n_reset) == [2] * 1000


def test_sixty_four_environments_start_soon():
    begin = time.monotonic()
    with ParallelEnv(64, GymEnv, create_env_kwargs={"env_name": "CartPole-v1"}, num_processes=2) as env:
        env.reset()
        assert len(env.vector.pids) == 2
    assert time.monotonic() - begin < 30  # the promise is 5 s on an idle machine


def test_one_copy_of_each_observation_is_shared():
    with open_envs(
        toys.Big, num_envs=4, num_steps=8, num_blocks=1, num_processes=2, start_method="fork"
    ) as envs:
        envs.reset()
        frame = int(np.prod(toys.Big.SHAPE))
        observations = 4 * 8 * frame * 2  # of the root, and under next
        for pid in (*envs.pids, os.getpid()):
            assert observations <= shared_of(pid) < observations + 4 * frame + 2**17


@pytest.mark.parametrize("kind", [SerialEnv, ParallelEnv])
def test_memory_stays_flat(kind):
    more = FORKED if kind is ParallelEnv else {}
    steps = 1_000_000 // 8 if os.environ.get("SOAK") else 4_000
    with kind(8, toys.Count, **more) as env:
        td = env.rand_action(env.reset())
        for _ in range(500):
            _, td = env.step_and_maybe_reset(td)
        gc.collect()
        before = resident()
        for _ in range(steps):
            _, td = env.step_and_maybe_reset(td)
            td = env.rand_action(td)
        gc.collect()
        assert resident() - before < 8 * 2**20


@pytest.mark.probe("P-10")
@pytest.mark.parametrize("more", [{}, {"use_buffers": False}, {"memmap": True, "shared_memory": False}])
def test_fifty_short_runs_leave_nothing(more, leftovers):
    def run():
        with ParallelEnv(2, toys.Count, **FORKED, **more) as env:
            env.rollout(2)

    run()
    before, memory = leftovers(), resident()
    for _ in range(50 if os.environ.get("SOAK") else 10):
        run()
    assert leftovers() == before
    assert resident() - memory < 20 * 2**20
