"""Parts of a crew: its settings, a child as the parent sees it, the watch over silence, the shares of environments."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from rollout_worker.envs.arena import ControlPage
from rollout_worker.envs.child import FIRST
from rollout_worker.envs.lookout import LOOK_S

WATCH_S = 0.2
"""A silent wait looks at the children's progress this often."""


@dataclass(frozen=True, slots=True)
class CrewSettings:
    """How the children run. Durations in seconds; `num_threads` is each child's.

    `memory_directory` is where the files of the shared memory are made (None: they are anonymous).
    """

    num_processes: int
    start_method: str = "spawn"
    daemon: bool = False
    num_threads: int = 1
    look_s: float = LOOK_S
    start_timeout_s: float = 120.0
    step_timeout_s: float = 60.0
    close_timeout_s: float = 5.0
    memory_directory: Path | None = None


@dataclass(slots=True)
class Child:
    position: int
    indices: range
    conn: Connection
    wake: int
    process: Any = None
    pidfd: int = -1
    lifeline: int = -1
    number: int = FIRST
    """The command that it was given last."""

    @property
    def pid(self) -> int:
        return int(self.process.pid)

    def is_dead(self) -> bool:
        return bool(readable([self.pidfd], 0.0))


class Watch:
    """Notices a child whose progress word does not change for as long as the limit."""

    def __init__(self, control: ControlPage, limit_s: float) -> None:
        self._control, self._limit_s = control, limit_s
        self._seen: dict[int, tuple[int, float]] = {}
        self._begin = time.monotonic() - WATCH_S

    def begin(self, child: Child) -> None:
        """From now on this child is busy."""
        self._seen[child.position] = (int(self._control.progress[child.position, 0]), time.monotonic())

    def look(self, children: Iterable[Child]) -> list[Child]:
        """Those of the children that have been silent for too long."""
        now = time.monotonic()
        silent = []
        for child in children:
            word = int(self._control.progress[child.position, 0])
            seen, since = self._seen.get(child.position, (word, self._begin))
            if seen != word:
                since = now
            self._seen[child.position] = (word, since)
            if now - since >= self._limit_s:
                silent.append(child)
        return silent


def shares(num_envs: int, num_processes: int) -> list[range]:
    """Contiguous, even shares of the environments, the larger ones first."""
    small, larger = divmod(num_envs, num_processes)
    ranges, start = [], 0
    for position in range(num_processes):
        stop = start + small + (position < larger)
        ranges.append(range(start, stop))
        start = stop
    return ranges


def span(indices: range) -> str:
    if len(indices) == 1:
        return f"environment {indices.start}"
    return f"environments {indices.start} to {indices.stop - 1}"


def readable(fds: Sequence[int], timeout_s: float) -> set[int]:
    """Which of these descriptors can be read (a pidfd: whose process ended) within the time."""
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    return {fd for fd, _ in poll.poll(timeout_s * 1000)}


def close_all(*fds: int) -> None:
    for fd in fds:
        if fd >= 0:
            os.close(fd)
