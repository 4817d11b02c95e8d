"""Notices children that do not get on."""

from __future__ import annotations

import time
from collections.abc import Iterable

from rollout_worker.envs.arena import ControlPage
from rollout_worker.envs.crew.children import Child

WATCH_S = 0.2
"""A silent wait looks at the children's progress this often."""


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
