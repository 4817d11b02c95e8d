"""Many environments, many steps, many opens: what it costs does not grow, and one copy of each observation is kept."""

from __future__ import annotations

import gc
import os
import resource
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import toys
from process_ends import is_gone

from rollout_worker.envs import GymEnv, ParallelEnv, SerialEnv, open_envs

FORKED = {"mp_start_method": "fork", "num_processes": 2}


def resident(pid: int | str = "self") -> int:
    """Resident bytes of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()


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


def test_sixty_four_environments_cost_no_more_than_their_two_processes():
    """The promise is 5 s on an idle machine. Where others compute, it is the processors' time that tells."""
    begin = computed_s()
    with ParallelEnv(64, GymEnv, create_env_kwargs={"env_name": "CartPole-v1"}, num_processes=2) as env:
        env.reset()
        assert len(env.vector.pids) == 2
    assert computed_s() - begin < 30


def computed_s() -> float:
    """Processor time of this process, and of those children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def test_one_copy_of_each_observation_is_shared():
    with open_envs(
        toys.Big, num_envs=4, num_steps=8, num_blocks=1, num_processes=2, start_method="fork"
    ) as envs:
        envs.reset()
        frame = int(np.prod(toys.Big.SHAPE))
        observations = 4 * 8 * frame * 2  # of the root, and under next
        for pid in (*envs.pids, os.getpid()):
            assert observations <= shared_of(pid) < observations + 4 * frame + 2**17


def test_what_processes_hold_of_the_block_together_is_its_size():
    """The kernel's own account: each page of the block counts once, shared among those that use it."""
    with ParallelEnv(4, toys.Big, **FORKED) as env:
        env.rollout(3)
        observations = 4 * int(np.prod(toys.Big.SHAPE)) * 2  # of the root, and under next
        held = sum(proportional(pid) for pid in (*env.vector.pids, os.getpid()))
        assert observations <= held < 2 * observations  # the roots that wait for the next step are there too


def proportional(pid: int) -> int:
    """Bytes of the shared block that the kernel puts down to a process."""
    lines, found, is_block = Path(f"/proc/{pid}/smaps").read_text().splitlines(), 0, False
    for line in lines:
        if "-" in line.split()[0]:
            is_block = "rollout-arena" in line
        elif is_block and line.startswith("Pss:"):
            found += int(line.split()[1]) * 1024
    return found


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("kind", "more"),
    [(SerialEnv, {}), (ParallelEnv, FORKED), (ParallelEnv, {**FORKED, "use_buffers": False})],
    ids=["serial", "block", "direct"],
)
def test_memory_stays_flat(kind, more):
    steps = (1_000_000 if os.environ.get("SOAK") else 100_000) // 8 // PARTS
    if "use_buffers" in more:
        steps //= 25  # tensordicts through pipes take so much longer
    with kind(8, toys.Count, **more) as env:
        td = env.rand_action(env.reset())
        pids = [os.getpid(), *(env.vector.pids if kind is ParallelEnv else [])]
        for _ in range(500):
            _, td = env.step_and_maybe_reset(td)
        held = [residents(pids)]
        for _ in range(PARTS):
            for _ in range(steps):
                _, td = env.step_and_maybe_reset(td)
                td = env.rand_action(td)
            held.append(residents(pids))
    assert all(most_steady(series) < 2 * 2**20 for series in zip(*held, strict=True))


PARTS = 4


def residents(pids) -> list[int]:
    gc.collect()
    return [resident(pid) for pid in pids]


def most_steady(series) -> int:
    """The least that was added in one part: a leak adds in each, what an allocator or the kernel does by itself does not."""
    return min(late - early for early, late in pairwise(series))


KILLED = """
import os, signal, sys
from rollout_worker.envs import ParallelEnv
if {is_named}:
    def refuse(*_):
        raise OSError(38, "no such files here")
    os.memfd_create = refuse
if __name__ == "__main__":
    env = ParallelEnv(4, "toys:Big", num_processes=2, mp_start_method={method!r})
    env.rollout(2)
    print(*env.vector.pids, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.row("E-155")
@pytest.mark.probe("P-10")
@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
@pytest.mark.parametrize("is_named", [False, True], ids=["anonymous", "in /dev/shm"])
def test_nothing_is_left_of_a_killed_parent(tmp_path, wait_until, method, is_named):
    script = tmp_path / "script.py"
    script.write_text(KILLED.format(is_named=is_named, method=method))
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=False, timeout=150
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    pids = done.stdout.split()
    assert len(pids) == 2
    wait_until(lambda: all(is_gone(int(pid)) for pid in pids), 20.0)  # the promise is 5 s
    assert not [name for name in os.listdir("/dev/shm") if "rollout" in name], "no file there ever has a name"


@pytest.mark.probe("P-10")
@pytest.mark.parametrize("more", [{}, {"use_buffers": False}, {"memmap": True, "shared_memory": False}])
def test_fifty_short_runs_leave_nothing(more, leftovers):
    def run():
        with ParallelEnv(2, toys.Count, **FORKED, **more) as env:
            env.rollout(2)

    run()
    before, held = leftovers(), [resident()]
    for _ in range(PARTS):
        for _ in range(13 if os.environ.get("SOAK") else 3):
            run()
        held.append(resident())
    assert leftovers(before) == {}
    assert most_steady(held) < 4 * 2**20
