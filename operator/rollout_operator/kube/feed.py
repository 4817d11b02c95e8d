"""Hands on what changed: jobs at once, pods after a moment, in which a hundred of a job's pods become one look.

Between the watches and the queue; belongs to one event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from rollout_operator.cluster import JobKey

PODS_SETTLE_S = 0.25
"""How long news of pods are gathered: a kubelet reports a start in three or four steps."""


class Feed:
    """Passes keys on to one receiver; before `open` they are dropped, for the first lists name every job anyway."""

    def __init__(self, *, settle_s: float = PODS_SETTLE_S) -> None:
        self._settle_s = settle_s
        self._receiver: Callable[[JobKey], None] = lambda key: None
        self._gathered: set[JobKey] = set()

    def open(self, receiver: Callable[[JobKey], None]) -> None:
        """From now on pass keys on to this receiver."""
        self._receiver = receiver

    def job_changed(self, key: JobKey) -> None:
        """A job changed."""
        self._receiver(key)

    def pods_changed(self, key: JobKey) -> None:
        """A pod of the job changed."""
        if not self._gathered:
            asyncio.get_running_loop().call_later(self._settle_s, self._pass_on)
        self._gathered.add(key)

    def _pass_on(self) -> None:
        gathered, self._gathered = self._gathered, set()
        for key in sorted(gathered):
            self._receiver(key)
