"""How a crew ends: asked to close in order, or because something failed. Finds all that went wrong."""

from __future__ import annotations

from rollout_worker.envs.child_messages import Failed
from rollout_worker.envs.commands import Close
from rollout_worker.envs.crew.links import Links
from rollout_worker.envs.crew.losses import CrewFailed
from rollout_worker.envs.crew.waiting import Waiter
from rollout_worker.envs.faults import EnvFault

GATHER_S = 0.5
"""After a failure, the others get this long to report theirs of the same call, and again to close their environments."""


class Ending:
    """The end of one crew. Nobody's process is replaced any more; the processes are killed by whoever asked."""

    def __init__(self, links: Links, waiter: Waiter) -> None:
        self._children, self._orders, self._replies = links.children, links.orders, links.replies
        self._findings, self._waiter = links.findings, waiter

    def in_order(self, limit_s: float) -> list[EnvFault]:
        """Have all environments closed within the time; gives what failed of it."""
        for child in self._children:
            if child.ahead:  # its environments are new, and hold nothing
                child.kill()
        self._orders.give(Close(), call="close")
        silent = self._waiter.gather(limit_s)
        call = self._orders.call
        return [
            *self._reported(),
            *(self._findings.silence_of(child, call, limit_s) for child in silent),
        ]

    def after(self, failure: CrewFailed) -> list[EnvFault]:
        """Find all that failed in this call, and have the other environments closed; gives the faults."""
        pids = {fault.pid for fault in failure.faults}
        stuck = [child for child in self._children if child in failure.found or child.pid in pids]
        for child in stuck:
            child.kill()
        self._waiter.gather(GATHER_S)
        others = [
            child for child in self._children if child not in stuck and not self._replies.has_failed(child)
        ]
        call = self._orders.call
        faults = [
            *failure.faults,
            *self._reported(),
            *(self._findings.death_of(child, call) for child in others if child.is_dead()),
        ]
        self._orders.give(Close(), call="close")
        self._waiter.gather(GATHER_S)
        return faults

    def _reported(self) -> list[EnvFault]:
        """The faults of all children that replied that they failed."""
        faults: list[EnvFault] = []
        for child in self._children:
            if self._replies.has_failed(child):
                try:
                    message = self._findings.receive(child)
                    faults.extend(message.faults if isinstance(message, Failed) else ())
                except (EOFError, OSError):
                    faults.append(self._findings.death_of(child, self._orders.call))
        return faults
