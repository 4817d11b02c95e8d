"""Vector envs over toy environments, serial and with children, which are closed again and must leave nothing behind."""

from __future__ import annotations

import gc
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rollout_worker.envs import VectorEnv, open_envs

KINDS = [
    pytest.param(0, id="serial"),
    pytest.param(1, id="1 child"),
    pytest.param(3, id="3 children"),
]


@pytest.fixture(params=KINDS)
def num_processes(request: pytest.FixtureRequest) -> int:
    """How many children step the environments; 0: none."""
    return int(request.param)


@pytest.fixture
def open_toys(num_processes: int) -> Iterator[Callable[..., VectorEnv]]:
    """`open_envs` with the parametrised number of children, and small defaults."""
    opened: list[VectorEnv] = []

    def open_(factory: Any, num_envs: int, num_steps: int = 4, **more: Any) -> VectorEnv:
        more.setdefault("num_processes", min(num_processes, num_envs))
        more.setdefault("start_method", "fork")  # the quickest; test_processes goes through all of them
        envs = open_envs(factory, num_envs=num_envs, num_steps=num_steps, **more)
        opened.append(envs)
        return envs

    yield open_
    for envs in opened:
        envs.close()
    assert multiprocessing.active_children() == []


@pytest.fixture
def leftovers() -> Callable[[], dict[str, int]]:
    """Counts what this process holds: children, descriptors, shared memory."""

    def count() -> dict[str, int]:
        gc.collect()
        return {
            "children": len(children_of(os.getpid())),
            "descriptors": len(os.listdir("/proc/self/fd")),
            "shm": len([name for name in os.listdir("/dev/shm") if name.startswith("rollout")]),
            "mappings": sum(
                "rollout-arena" in line for line in Path("/proc/self/maps").read_text().splitlines()
            ),
        }

    return count


def children_of(pid: int) -> list[int]:
    """The process ids of a process' children, of all its threads."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += [int(child) for child in (task / "children").read_text().split()]
    return found


@pytest.fixture
def wait_until() -> Callable[..., None]:
    """Wait for a condition, and fail where it does not come true in time."""

    def wait(condition: Callable[[], bool], deadline_s: float = 10.0) -> None:
        end = time.monotonic() + deadline_s
        while not condition():
            assert time.monotonic() < end, "the condition did not come true in time"
            time.sleep(0.01)

    return wait


@pytest.fixture
def collect() -> Callable[..., dict[str, Any]]:
    """Fill a block with constant actions; gives copies of the leaves, by keys joined with dots."""

    def fill(envs: VectorEnv, block: int = 0, action: float = 0, mode: str = "range") -> dict[str, Any]:
        layout = envs.layout
        envs.begin(block)
        for key in layout.action_keys:
            envs.blocks[block].arrays[key][...] = action
        if mode == "range":
            envs.step_range(block, 0, layout.num_steps)
        else:
            for step in range(layout.num_steps):
                envs.step(block, step)
        return {".".join(key): array.copy() for key, array in envs.blocks[block].arrays.items()}

    return fill
