"""How a run is asked to end, and that it does: signals, and a bound on the end that nothing can hold up.

Entered by `run` around everything else. The first signal asks the run to end in order, the second kills what it started,
the third leaves. They reach a thread of their own through the descriptor that Python writes them to, so an event loop
that is stuck (its output is taken by nobody, a disk hangs) is ended too. Each part of the end has a bound of its own;
the one here is for their sum, and for what nobody foresaw.
"""

from __future__ import annotations

import asyncio
import io
import logging
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from rollout_cli.local.outcome import code_of_signal
from rollout_cli.local.processes import kill_descendants

log = logging.getLogger(__name__)

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
END_WITHIN_S = 45.0
"""From the first signal, or the end of the job, to the end of the run: workers and learner have 10 s each to end, then
they are killed, then the gateway and Redis end."""
KILLED_WITHIN_S = 10.0
"""From the second signal on: nothing is left to be waited for but the kernel."""
WORDS_S = 2.0
"""How long saying why may take: the log's disk, or the reader of our output, may be what hangs."""


class Stop:
    """What the user asked for. `kill` ends all that the run started, `leave` this process, with an exit code."""

    def __init__(
        self,
        *,
        within_s: float = END_WITHIN_S,
        killed_within_s: float = KILLED_WITHIN_S,
        kill: Callable[[], object] = kill_descendants,
        leave: Callable[[int], object] | None = None,
    ) -> None:
        self.number: int | None = None
        """The first signal; None: there was none."""
        self._within_s = within_s
        self._killed_within_s = killed_within_s
        self._kill = kill
        self._leave = leave or _leave
        self._count = 0
        self._code = 1
        self._ends_by: float | None = None
        self._is_over = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._asked: asyncio.Event | None = None
        self._read, self._write = socket.socketpair()
        self._write.setblocking(False)
        self._thread = threading.Thread(target=self._watch, name="run-end", daemon=True)

    @property
    def is_asked(self) -> bool:
        """Whether a signal has come."""
        return self.number is not None

    @property
    def name(self) -> str:
        """The first signal's name."""
        return signal.Signals(self.number or signal.SIGINT).name

    @property
    def code(self) -> int:
        """The exit code of a run that was asked to end."""
        return code_of_signal(self.number or signal.SIGINT)

    def attach(self) -> asyncio.Event:
        """An event of the running loop: set by the first signal, also by one that came before."""
        self._loop, self._asked = asyncio.get_running_loop(), asyncio.Event()
        if self.number is not None:
            self._asked.set()
        return self._asked

    def begin_end(self, code: int) -> None:
        """The run ends by itself, with this code: from now on the end has its bound."""
        self._code = code
        self._bound(self._within_s)
        self._poke()

    @contextmanager
    def _watching(self) -> Iterator[None]:
        self._thread.start()
        before = signal.set_wakeup_fd(self._write.fileno(), warn_on_full_buffer=False)
        handlers = {number: signal.signal(number, lambda *_: None) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(before)
            self._is_over = True
            self._poke()
            self._thread.join()
            self._read.close()
            self._write.close()

    def _poke(self) -> None:
        with suppress(OSError):  # full: it is awake anyway
            self._write.send(b"\0")

    # --- in the thread

    def _watch(self) -> None:
        while not self._is_over:
            by = self._ends_by
            self._read.settimeout(None if by is None else max(0.001, by - time.monotonic()))
            try:
                numbers = self._read.recv(64)
            except TimeoutError:
                if not self._is_over:
                    self._cut_short()
                return
            for number in numbers:
                if number in SIGNALS:
                    self._note(number)

    def _note(self, number: int) -> None:
        self._count += 1
        if self._count == 1:
            self.number, self._code = number, code_of_signal(number)
            self._bound(self._within_s)
            self._ask()
        elif self._count == 2:
            self._bound(self._killed_within_s)
            self._kill()
        else:
            self._leave(self._code)

    def _ask(self) -> None:
        loop, asked = self._loop, self._asked
        if loop is not None and asked is not None:
            with suppress(RuntimeError):  # the loop is closed: the run is at its end
                loop.call_soon_threadsafe(asked.set)

    def _bound(self, within_s: float) -> None:
        by = time.monotonic() + within_s
        self._ends_by = by if self._ends_by is None else min(by, self._ends_by)

    def _cut_short(self) -> None:
        _within_words_s(self._say_why)
        self._kill()
        self._leave(self._code)

    def _say_why(self) -> None:
        log.critical("the run did not end in time and is cut short\n%s", stacks(self._loop))
        print(
            "rolloutctl: the run did not end in time and is cut short: see its logs/run.log", file=sys.stderr
        )


def _leave(code: int) -> None:
    _within_words_s(_show_cursor)
    os._exit(code)


def _within_words_s(write: Callable[[], None]) -> None:
    words = threading.Thread(target=write, name="run-end-words", daemon=True)
    words.start()
    words.join(WORDS_S)


def _show_cursor() -> None:
    """The live screen hides it, and nobody closes that any more."""
    if sys.stdout.isatty():
        os.write(sys.stdout.fileno(), b"\x1b[?25h")


@contextmanager
def stopping(stop: Stop | None = None) -> Iterator[Stop]:
    """Take the signals over while the block runs. To be entered in the main thread."""
    stop = stop or Stop()
    with stop._watching():
        yield stop


def stacks(loop: asyncio.AbstractEventLoop | None) -> str:
    """Where every thread is, and every task of the loop: what the end was waiting for."""
    text = io.StringIO()
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():
        text.write(f"thread {names.get(ident, ident)}\n{''.join(traceback.format_stack(frame))}")
    if loop is not None:
        with suppress(RuntimeError):  # tasks came and went while they were counted
            for task in asyncio.all_tasks(loop):
                task.print_stack(file=text)
    return text.getvalue()
