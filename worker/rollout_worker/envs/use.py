"""What becomes of those who use a crew of processes while the interpreter ends."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from multiprocessing import util

LAST_STEP_S = 1.0
"""A thread that uses a crew gets this long to leave, where the interpreter ends."""


class Use:
    """Who uses a crew, and whether that is over, because the interpreter ends. What fails in it then ends its thread without
    a word: nobody is there to hear it."""

    def __init__(self) -> None:
        self.thread = 0
        self.is_over = False

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and self.is_over:
            raise over() from None


def over() -> BaseException:
    """What ends a use that is over."""
    if threading.current_thread() is threading.main_thread():
        return RuntimeError("the interpreter ends, and with it the environments")
    return SystemExit()


def end_with(kill: Callable[[], None], use: Use) -> None:
    """End, by `kill`, a crew that nobody closed.

    A thread that goes on stepping while the interpreter ends would take the process down with it, as soon as it comes back
    from a library that is not written in Python.
    """
    use.is_over = util.is_exiting()
    kill()
    deadline = time.monotonic() + LAST_STEP_S
    while use.is_over and use.thread != threading.get_ident() and use.thread in sys._current_frames():
        if time.monotonic() > deadline:
            return
        time.sleep(0.005)
