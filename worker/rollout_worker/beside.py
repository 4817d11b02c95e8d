"""Work that goes on in a thread of its own while a block runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

END_WITHIN_S = 5.0
"""The last call gets this long after the end of the block."""


@contextmanager
def beside(work: Callable[[], None], *, name: str, pause_s: Callable[[], float]) -> Iterator[None]:
    """Call `work` again and again until the block ends, each time after a pause of as many seconds as are due then."""
    ended = threading.Event()

    def run() -> None:
        while not ended.wait(pause_s()):
            work()

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(END_WITHIN_S)
