"""A run that is asked to end does so: in order, by force, and in any case within a bound."""

from __future__ import annotations

import asyncio
import os
import pty
import signal
import subprocess
import sys
import threading
import time

import pytest

from rollout_cli.local.stopping import Stop, stopping

LONG_S = 600.0


class Hands:
    """What a Stop does to processes, written down instead."""

    def __init__(self, **bounds: float) -> None:
        self.done: list[str | int] = []
        self._news = threading.Condition()
        bounds = {"within_s": LONG_S, "killed_within_s": LONG_S, **bounds}
        self.stop = Stop(kill=lambda: self._note("kill"), leave=self._note, **bounds)

    def _note(self, what: str | int) -> None:
        with self._news:
            self.done.append(what)
            self._news.notify_all()

    def until(self, *done: str | int) -> None:
        with self._news:
            assert self._news.wait_for(lambda: self.done == list(done), 60), self.done


def until_asked(stop: Stop) -> None:
    end = time.monotonic() + 60
    while not stop.is_asked:
        assert time.monotonic() < end
        time.sleep(0.001)


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)],
    ids=["SIGINT", "SIGTERM", "SIGHUP"],
)
def test_the_first_signal_asks_the_second_kills_the_third_leaves(number, code):
    hands = Hands()
    before = signal.getsignal(number)
    with stopping(hands.stop) as stop:
        assert not stop.is_asked
        signal.raise_signal(number)
        until_asked(stop)
        assert (stop.name, stop.code, hands.done) == (number.name, code, [])
        signal.raise_signal(signal.SIGTERM)
        hands.until("kill")
        signal.raise_signal(signal.SIGTERM)
        hands.until("kill", code)
    assert signal.getsignal(number) is before
    assert signal.set_wakeup_fd(-1) == -1


async def test_a_signal_wakes_the_loop_also_one_from_before_there_was_any():
    with stopping(Hands().stop) as stop:
        asked = stop.attach()
        signal.raise_signal(signal.SIGTERM)
        await asyncio.wait_for(asked.wait(), 60)
        assert stop.attach().is_set()


@pytest.mark.parametrize("how", ["signal", "second signal", "own end"])
def test_an_end_that_takes_too_long_is_cut_short_though_the_main_thread_is_stuck(how, capsys, caplog):
    hands = Hands(within_s=LONG_S if how == "second signal" else 0.05, killed_within_s=0.05)
    expected = {"signal": ("kill", 143), "second signal": ("kill", "kill", 143), "own end": ("kill", 7)}[how]
    with stopping(hands.stop) as stop:
        if how == "own end":
            stop.begin_end(7)
        for _ in range({"signal": 1, "second signal": 2}.get(how, 0)):
            signal.raise_signal(signal.SIGTERM)
        hands.until(*expected)
    assert "cut short" in capsys.readouterr().err
    assert "in until" in caplog.text, "where this thread was"


def test_an_end_in_time_is_left_alone():
    hands = Hands(within_s=0.2)
    with stopping(hands.stop) as stop:
        stop.begin_end(0)
    time.sleep(0.3)  # past its bound, which must not act any more: nothing can be waited for
    assert hands.done == []


STUCK = """
import os
from rollout_cli.local.stopping import Stop, stopping

with stopping(Stop(within_s=0.2)):
    print("stuck", flush=True)
    os.write(1, b"x" * 10_000_000)
"""


LEFT = """
import time
from rollout_cli.local.stopping import Stop, stopping

with stopping(Stop(within_s=0.1)) as stop:
    stop.begin_end(3)
    time.sleep(600)
"""


def test_a_terminal_gets_its_cursor_back():
    ours, theirs = pty.openpty()
    try:
        done = subprocess.run([sys.executable, "-c", LEFT], stdout=theirs, stderr=subprocess.PIPE, timeout=60)
        assert (done.returncode, b"cut short" in done.stderr) == (3, True)
        assert os.read(ours, 100) == b"\x1b[?25h"
    finally:
        os.close(ours)
        os.close(theirs)


def test_a_process_whose_output_nobody_takes_ends_within_the_bound():
    """For real: the thread that would say so is stuck, too."""
    with subprocess.Popen(
        [sys.executable, "-c", STUCK], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        try:
            assert process.stdout.readline() == b"stuck\n"
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 143
        finally:
            process.kill()
