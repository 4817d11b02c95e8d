"""A child as its parent sees it: the place in the crew, the process that fills it now, and what that was given to do."""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

from rollout_worker.envs.commands import FIRST, NO_WORDS, Command, Request, Words
from rollout_worker.envs.crew.descriptors import close_all, readable
from rollout_worker.envs.faults import EnvFault
from rollout_worker.envs.transfer import Traffic

Say = Callable[[Connection], None]
"""Sends a child what does not fit words."""


@dataclass(slots=True)
class Task:
    """What a child was given to do. `say` sends what does not fit words; `request` is there where that asks something of
    environments."""

    command: Command
    number: int
    call: str
    is_alone: bool
    say: Say | None = None
    request: Request | None = None


@dataclass(slots=True, eq=False)
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
