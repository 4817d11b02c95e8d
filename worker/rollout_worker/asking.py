"""How often a worker that waits asks the stream whether there is news: soon at first, seldom once it has waited for long.

Pure. A wait is made longer by a fiftieth of itself at most (or 50 ms), and a worker that is held back for a minute asks
twice a second instead of twenty times: a thousand of them would otherwise keep a server busy with saying no.
"""

from __future__ import annotations

from dataclasses import dataclass

FIRST_S = 0.001
SOON_S = 0.05
"""Up to here each interval is twice the one before."""
LATE_S = 0.5
PART = 0.02
"""Afterwards it is this part of what was waited, up to LATE_S."""


@dataclass(slots=True)
class Intervals:
    """The intervals of one wait."""

    _next_s: float = FIRST_S
    _waited_s: float = 0.0

    def next_s(self) -> float:
        """How long to wait before asking again."""
        wait_s = self._next_s
        self._waited_s += wait_s
        longest_s = max(SOON_S, min(LATE_S, PART * self._waited_s))
        self._next_s = min(2 * wait_s, longest_s)
        return wait_s
