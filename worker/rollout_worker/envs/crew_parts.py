"""Parts of a crew: its settings, a child as the parent sees it, the watch over silence, the shares of environments."""

from __future__ import annotations

import os
import select
import signal
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from rollout_worker.envs.arena import ControlPage
from rollout_worker.envs.child import FIRST
from rollout_worker.envs.commands import NO_WORDS, Command, Request, Words
from rollout_worker.envs.faults import EnvFault
from rollout_worker.envs.lookout import LOOK_S
from rollout_worker.envs.transfer import Traffic

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
class Task:
    """What a child was given to do. `say` sends what does not fit words; `request` is there where that asks something of
    environments."""

    command: Command
    number: int
    call: str
    is_alone: bool
    say: Callable[[Connection], None] | None = None
    request: Request | None = None


@dataclass(slots=True)
class Child:
    """A place in the crew, and the process that fills it now."""

    position: int
    indices: range
    conn: Connection = None  # type: ignore[assignment]  # there is one while there is a process
    wake: int = -1
    process: Any = None
    pidfd: int = -1
    lifeline: int = -1
    is_forked_here: bool = True
    """Whether this process is the parent, and no server of multiprocessing's."""
    number: int = FIRST
    """The command that it was given last."""
    words: Words = NO_WORDS
    """What lies in its row of commands."""
    task: Task | None = None
    """The same with all that belongs to it, kept where a process is replaced."""
    ahead: deque[Task] = field(default_factory=deque)
    """What a process that takes another's place has to be given yet."""
    steps: int = 0
    """Step commands given to this process."""
    faults: list[EnvFault] = field(default_factory=list)
    """How its processes were lost in a row, without a good step in between."""
    traffic: Traffic = field(default_factory=Traffic)
    instead: Any = None
    """What stands for the answer that a lost process owed."""

    @property
    def pid(self) -> int:
        return int(self.process.pid)

    def is_dead(self) -> bool:
        return self.pidfd < 0 or bool(readable([self.pidfd], 0.0))

    def kill(self) -> None:
        """Send the process SIGKILL, if there is one."""
        if self.pidfd >= 0:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    def reap(self, timeout_s: float) -> None:
        """Wait for the end of the process, which is ending.

        multiprocessing waits for the end of a pipe, which processes that an environment has forked hold open.
        """
        if self.is_forked_here and self.pidfd >= 0 and readable([self.pidfd], timeout_s):
            self.process.join()
        else:
            self.process.join(timeout_s)

    def end(self, timeout_s: float) -> None:
        """Kill the process, wait for its end, and give back what it was held by."""
        self.kill()
        if self.process is not None:
            self.reap(timeout_s)
            with suppress(ValueError):
                self.process.close()
        if self.conn is not None:
            self.conn.close()
        close_all(self.wake, self.pidfd, self.lifeline)
        self.wake = self.pidfd = self.lifeline = -1


class Watch:
    """Notices a child whose progress word does not change for as long as the limit, or, where a process is just being
    started in its place, for as long as a start may take."""

    def __init__(self, control: ControlPage, limit_s: float, start_limit_s: float) -> None:
        self._control, self._limit_s, self._start_limit_s = control, limit_s, start_limit_s
        self._seen: dict[int, tuple[int, float]] = {}
        self._begin = time.monotonic() - WATCH_S

    def limit_of(self, child: Child) -> float:
        """How long a child may be silent, in seconds."""
        return self._start_limit_s if child.ahead else self._limit_s

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
            if now - since >= self.limit_of(child):
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
