"""Waiting for another process without falling asleep at once, and without keeping a processor from others.

Being woken costs more than a step of a small environment takes, so both sides look for what they wait for during a
moment first, giving their processor to whoever wants it. Where that was in vain (slow environments, or nothing to do), or
the processor came back too late (others want it: who sleeps gets it sooner than who gives it away), the looks become
rare, up to one in 64 waits.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

LOOK_S = 400e-6
"""How long a look takes at most: a few times what it costs to fall asleep and be woken again on a virtual machine (100 µs).

With as many processes as processors, what is waited for has to get a processor first: at 100 µs every few looks were in
vain, and CartPole's step took 180 to 300 µs; from 200 µs on it takes 160 to 180.
"""

_MOST_SKIPPED = 64


class Lookout:
    """One side's looks."""

    def __init__(self, look_s: float = LOOK_S) -> None:
        self._look_s = look_s
        self._skipped = 0
        self._to_skip = 0

    def sees(self, is_there: Callable[[], bool]) -> bool:
        """Look for a moment. False where it did not come, or this wait goes without a look: then it is time to sleep."""
        if self._skipped < self._to_skip:
            self._skipped += 1
            return is_there()
        self._skipped = 0
        if is_there():
            self._to_skip = 0
            return True
        deadline = time.perf_counter() + self._look_s
        while True:
            os.sched_yield()
            came, is_late = is_there(), time.perf_counter() >= deadline
            if is_late:
                self._to_skip = min(_MOST_SKIPPED, 2 * self._to_skip + 1)
                return came
            if came:
                self._to_skip = 0
                return True
