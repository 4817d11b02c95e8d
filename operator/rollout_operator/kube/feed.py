"""Hands on what changed: jobs at once, pods after a moment, in which a hundred of a job's pods become one look.

Between the watches and the queue; belongs to one event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from rollout_operator.cluster import JobKey

PODS_SETTLE_S = 0.25
"""How long news of pods are gathered: a kubelet reports a start in three or four steps."""
PODS_EVERY_S = 1.5
"""A job's pods are looked at this often at most, however many of them start or end."""


class Feed:
    """Passes keys on to one receiver; before `open` they are dropped, for the first lists name every job anyway."""

    def __init__(self, *, settle_s: float = PODS_SETTLE_S, every_s: float = PODS_EVERY_S) -> None:
        self._settle_s = settle_s
        self._every_s = every_s
        self._receiver: Callable[[JobKey], None] = lambda key: None
        self._gathering: set[JobKey] = set()
        self._passed: dict[JobKey, float] = {}
        """When a key was last passed on because of its pods; only those of the last moment."""

    def open(self, receiver: Callable[[JobKey], None]) -> None:
        """From now on pass keys on to this receiver."""
        self._receiver = receiver

    def job_changed(self, key: JobKey) -> None:
        """A job changed."""
        self._receiver(key)

    def pods_changed(self, key: JobKey) -> None:
        """A pod of the job changed."""
        if key in self._gathering:
            return
        self._gathering.add(key)
        loop = asyncio.get_running_loop()
        due = self._passed.get(key, float("-inf")) + self._every_s
        loop.call_later(max(self._settle_s, due - loop.time()), self._pass_on, key)

    def _pass_on(self, key: JobKey) -> None:
        now = asyncio.get_running_loop().time()
        if len(self._passed) > len(self._gathering):
            self._passed = {k: at for k, at in self._passed.items() if now - at < self._every_s}
        self._gathering.discard(key)
        self._passed[key] = now
        self._receiver(key)
