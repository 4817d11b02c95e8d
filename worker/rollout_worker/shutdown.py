"""SIGTERM and SIGINT become a request that the collector loop looks at between two steps.

Called by `main`; the loop asks `requested`, and `within` bounds each stage of the way out.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class StopRequest:
    """Set once, by a signal or by code; remembers when, so that stages of the shutdown can be timed."""

    def __init__(self, *, grace_s: float) -> None:
        self.grace_s = grace_s
        self._event = threading.Event()
        self._since: float | None = None
        self.signal_number: int | None = None

    @property
    def requested(self) -> bool:
        """Whether the worker was asked to stop."""
        return self._event.is_set()

    def is_set(self) -> bool:
        """The same, under the name by which waits in the stream ask."""
        return self._event.is_set()

    def request(self, signal_number: int | None = None) -> None:
        """Ask the worker to stop at the next step boundary."""
        if not self._event.is_set():
            self.signal_number = signal_number
            self._since = time.monotonic()
            self._event.set()

    def wait(self, timeout: float) -> bool:
        """Wait until a stop is requested, at most `timeout` seconds; whether it was."""
        return self._event.wait(timeout)

    def may_finish_batch(self) -> bool:
        """Whether a batch in hand may still be finished: within half of the grace time, the rest is for the way out."""
        return self._since is None or time.monotonic() - self._since < self.grace_s / 2


@contextmanager
def stop_on_signals(stop: StopRequest) -> Iterator[None]:
    """SIGTERM and SIGINT request a stop; a second one ends the process at once. The old handlers come back."""

    def handle(number: int, _frame: FrameType | None) -> None:
        if stop.requested:
            os._exit(128 + number)
        stop.request(number)

    before = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
