"""Vector envs over toy environments, serial and with children, which are closed again and must leave nothing behind."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from rollout_worker.envs import ParallelEnv, SerialEnv, VectorEnv, open_envs
from rollout_worker.envs.crew import ending

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


def serial_batch(num_workers: int, factory: Any, **more: Any) -> Any:
    """A batch in this process."""
    return SerialEnv(num_workers, factory, **more)


def child_batch(num_workers: int, factory: Any, **more: Any) -> Any:
    """A batch in one child."""
    more = {"mp_start_method": "fork", "num_processes": 1, "auto_wrap_envs": False, **more}
    return ParallelEnv(num_workers, factory, **more)


def crew_batch(num_workers: int, factory: Any, **more: Any) -> Any:
    """A batch in up to three children."""
    return child_batch(num_workers, factory, **{"num_processes": min(3, num_workers), **more})


def direct_batch(num_workers: int, factory: Any, **more: Any) -> Any:
    """The same, with tensordicts through pipes."""
    return crew_batch(num_workers, factory, **{"use_buffers": False, **more})


BATCHES = [
    pytest.param(serial_batch, id="serial"),
    pytest.param(child_batch, id="one-child"),
    pytest.param(crew_batch, id="children"),
    pytest.param(direct_batch, id="direct"),
]


class BatchMaker:
    """Makes batches in one mode, all closed after the test. `mode` is its name."""

    def __init__(self, make: Callable[..., Any]) -> None:
        self.mode = make.__name__.removesuffix("_batch")
        self._make = make
        self.made: list[Any] = []

    @property
    def is_serial(self) -> bool:
        return self.mode == "serial"

    def __call__(self, num_workers: int, factory: Any, **more: Any) -> Any:
        self.made.append(self._make(num_workers, factory, **more))
        return self.made[-1]


@pytest.fixture(params=BATCHES)
def make(request: pytest.FixtureRequest) -> Iterator[BatchMaker]:
    """Make batched environments, in each mode: in this process, in one child, in several, without buffers."""
    before = multiprocessing.active_children()
    maker = BatchMaker(request.param)
    yield maker
    for env in maker.made:
        env.close(raise_if_closed=False)
    assert [child for child in multiprocessing.active_children() if child not in before] == []


@pytest.fixture
def acting() -> Callable[..., Any]:
    """Put an action into every row of a tensordict: one value per row, or one for all."""

    def act(td: Any, *values: float) -> Any:
        action = torch.tensor(values, dtype=torch.float32)
        shape = (*td.batch_size, 1)
        return td.set("action", action.expand(shape).clone() if len(values) == 1 else action.reshape(shape))

    return act


@pytest.fixture
def column() -> Callable[..., Any]:
    """A leaf as nested lists, without its last dimension."""
    return lambda td, key="observation": td.get(key).squeeze(-1).tolist()


@pytest.fixture
def leftovers() -> Callable[..., dict[str, Any]]:
    """Counts what this process holds: children, descriptors, shared memory. With an earlier count: tells what is more now,
    both numbers. What earlier tests have begun to give back may become less meanwhile.
    """

    def count(since: dict[str, int] | None = None) -> dict[str, Any]:
        gc.collect()
        held = {
            "children": len(children_of(os.getpid())),
            "descriptors": len(os.listdir("/proc/self/fd")),
            "shm": len([name for name in os.listdir("/dev/shm") if name.startswith("rollout")]),
            "mappings": sum(
                "rollout-arena" in line for line in Path("/proc/self/maps").read_text().splitlines()
            ),
        }
        if since is None:
            return held
        return {name: (since[name], number) for name, number in held.items() if number > since[name]}

    return count


def children_of(pid: int) -> list[int]:
    """The process ids of a process' children, of all its threads; a thread may end while it is asked."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found += [int(child) for child in (task / "children").read_text().split()]
    return found


@pytest.fixture
def wait_until() -> Callable[..., None]:
    """Wait for a condition, and fail where it does not come true in time."""

    def wait(condition: Callable[[], bool], deadline_s: float = 60.0) -> None:
        end = time.monotonic() + deadline_s
        while not condition():
            assert time.monotonic() < end, "the condition did not come true in time"
            time.sleep(0.01)

    return wait


@pytest.fixture
def all_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a failure every child has the time to report its own: where others compute, half a second is little."""
    monkeypatch.setattr(ending, "GATHER_S", 60.0)


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
