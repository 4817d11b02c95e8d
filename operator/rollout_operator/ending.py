"""The end of the process has a bound, whatever still waits for whatever: the API server, a name server, Redis, a library.

Every part of the program ends within a bound of its own; this one is for what nobody foresaw, and for what Python itself
waits for at its end (threads that look up an address). It is a thread, so that a blocked event loop cannot hold it up.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable

log = logging.getLogger(__name__)

END_WITHIN_S = 15.0
"""From the request, or the end of the first part, to the end of the process. The pod's grace time is 30 s."""


class EndLimit:
    """Ends the process some seconds after `start`, if it is still there. It is never stopped: the end has begun."""

    def __init__(
        self, *, within_s: float = END_WITHIN_S, code: int, leave: Callable[[int], object] = os._exit
    ) -> None:
        self._within_s = within_s
        self._code = code
        self._leave = leave
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None

    def start(self) -> None:
        """The end begins now; calling it again changes nothing."""
        with self._lock:
            if self._timer is not None:
                return
            self._timer = threading.Timer(self._within_s, self._end)
            self._timer.daemon = True
            self._timer.start()

    def _end(self) -> None:
        threads = ", ".join(sorted({thread.name for thread in threading.enumerate()}))
        log.critical(
            "the end takes longer than %.0f s and is cut short; threads: %s", self._within_s, threads
        )
        for handler in logging.getLogger().handlers:
            handler.flush()
        self._leave(self._code)
