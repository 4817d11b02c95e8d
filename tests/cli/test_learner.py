from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from process_ends import is_gone

from rollout_cli.errors import UsageError
from rollout_cli.local.learner import Learner, LearnerFailed, check_program
from rollout_cli.local.restarts import HOPELESS_AFTER, Ended, GiveUp, History, Restart, decide
from rollout_contract.spec import FailurePolicy


def policy(**changes) -> FailurePolicy:
    return FailurePolicy(**{"backoff_limit": 6, "backoff_seconds": 10, **changes})


KILLED = Ended(-9, ran_s=1.0, has_acked=False)
RAISED = Ended(1, ran_s=1.0, has_acked=False)


@pytest.mark.parametrize(
    ("streak", "delay"), [(0, 10.0), (1, 20.0), (2, 40.0), (5, 300.0), (4000, 300.0)], ids=lambda v: str(v)
)
def test_the_wait_doubles_up_to_five_minutes(streak, delay):
    decision = decide(KILLED, History(restarts=2, streak=streak), policy())

    assert isinstance(decision, Restart)
    assert decision.after_s == delay


def test_ten_minutes_of_health_begin_anew():
    decision = decide(Ended(-9, ran_s=601.0, has_acked=True), History(restarts=3, streak=3), policy())

    assert decision == Restart(10.0, History(restarts=4, streak=1))


def test_no_wait_where_none_is_wanted():
    assert decide(KILLED, History(streak=9), policy(backoff_seconds=0, backoff_limit=100)).after_s == 0.0


def test_the_limit_is_the_failure_policys():
    assert isinstance(decide(KILLED, History(restarts=5), policy()), Restart)
    assert isinstance(decide(KILLED, History(restarts=6), policy()), GiveUp)


@pytest.mark.parametrize(
    ("ended", "hopeless"),
    [
        pytest.param(RAISED, True, id="raised, nothing acked"),
        pytest.param(Ended(1, 1.0, has_acked=True), False, id="raised after an ack"),
        pytest.param(KILLED, False, id="killed"),
        pytest.param(Ended(137, 1.0, has_acked=False), False, id="killed below a shell"),
    ],
)
def test_who_raises_again_and_again_without_reading_is_given_up(ended, hopeless):
    decision = decide(ended, History(restarts=2, streak=2, fruitless=HOPELESS_AFTER - 1), policy())

    assert isinstance(decision, GiveUp) is hopeless


@given(st.lists(st.integers(-15, 255).filter(bool), max_size=60), st.integers(0, 40), st.integers(0, 300))
def test_restarts_never_exceed_the_limit_and_waits_are_bounded(codes, limit, backoff):
    history = History()
    for code in codes:
        decision = decide(
            Ended(code, 1.0, has_acked=True), history, policy(backoff_limit=limit, backoff_seconds=backoff)
        )
        if isinstance(decision, GiveUp):
            assert history.restarts == limit
            return
        assert 0.0 <= decision.after_s <= 300.0
        history = decision.history
    assert history.restarts <= limit


class Harness:
    """A learner of some source, and what it told."""

    def __init__(self, tmp_path: Path, source: str, **changes) -> None:
        program = tmp_path / "learner.py"
        program.write_text(source)
        self.told: list[str] = []
        self.acked = 0
        self.learner = Learner(
            program=program,
            environment={**os.environ, "RUN": str(tmp_path)},
            log_file=tmp_path / "learner.log",
            policy=policy(**{"backoff_seconds": 0, **changes}),
            acked_frames=lambda: self.acked,
            tell=self.told.append,
        )


async def test_a_learner_that_ends_well_is_not_started_again(tmp_path):
    harness = Harness(tmp_path, "import sys; print('done'); print('err', file=sys.stderr)")

    await harness.learner.run()

    assert harness.learner.log_file.read_text().splitlines() == ["done", "err"]
    assert (harness.learner.history.restarts, harness.told) == (0, [])


async def test_a_learner_that_fails_is_started_again_until_it_ends_well(tmp_path):
    source = (
        "import os, pathlib, signal\n"
        "runs = pathlib.Path(os.environ['RUN'], 'runs'); n = int(runs.read_text()) if runs.exists() else 0\n"
        "runs.write_text(str(n + 1))\n"
        "if n == 0: raise ValueError('the first time')\n"
        "if n == 1: os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    harness = Harness(tmp_path, source)

    await harness.learner.run()

    assert harness.learner.history.restarts == 2
    assert "exit code 1" in harness.told[0]
    assert harness.told[0].endswith("ValueError: the first time")
    assert "SIGKILL" in harness.told[1]


async def test_a_learner_without_hope_is_given_up_with_its_traceback_last(tmp_path):
    harness = Harness(tmp_path, "def lose():\n    raise KeyError('no such layer')\nlose()", backoff_limit=50)

    with pytest.raises(LearnerFailed) as error:
        await harness.learner.run()

    assert str(error.value).endswith("KeyError: 'no such layer'")
    assert str(harness.learner.log_file) in str(error.value)
    assert harness.learner.history.restarts == HOPELESS_AFTER - 1


async def test_after_the_jobs_failure_a_learner_is_not_started_again(tmp_path):
    harness = Harness(tmp_path, "raise SystemExit(3)")
    harness.learner.is_last = True

    await harness.learner.run()

    assert (harness.learner.history.restarts, harness.told) == (0, [])


async def test_stopping_ends_the_learner_and_what_it_started(tmp_path):
    source = (
        "import os, pathlib, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "pathlib.Path(os.environ['RUN'], 'pids').write_text(f'{os.getpid()} {child.pid}')\n"
        "time.sleep(600)\n"
    )
    harness = Harness(tmp_path, source)
    running = asyncio.create_task(harness.learner.run())
    pids = await asyncio.to_thread(wait_for_text, tmp_path / "pids", words=2)
    running.cancel()
    await harness.learner.stop()
    await harness.learner.stop()

    await asyncio.to_thread(wait_until, lambda: all(is_gone(int(pid)) for pid in pids))


async def test_a_learner_that_does_not_listen_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr("rollout_cli.local.learner.STOP_TIMEOUT_S", 0.2)
    source = (
        "import os, pathlib, signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "pathlib.Path(os.environ['RUN'], 'pids').write_text(str(os.getpid()))\ntime.sleep(600)\n"
    )
    harness = Harness(tmp_path, source)
    running = asyncio.create_task(harness.learner.run())
    (pid,) = await asyncio.to_thread(wait_for_text, tmp_path / "pids", words=1)
    running.cancel()
    await harness.learner.stop()

    assert is_gone(int(pid))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(b"def (:\n", "line 1", id="syntax"),
        pytest.param(b"x = 1\n  y = 2\n", "line 2", id="indentation"),
        pytest.param(b"x\0y", "no Python program", id="null bytes"),
        pytest.param("x = 'é'\n".encode("latin-1"), "no Python program", id="encoding"),
    ],
)
def test_what_is_no_program_is_refused_before_anything_starts(tmp_path, content, message):
    path = tmp_path / "learner.py"
    path.write_bytes(content)

    with pytest.raises(UsageError, match=message):
        check_program(path)


def test_a_missing_program_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"nowhere\.py"):
        check_program(tmp_path / "nowhere.py")


def wait_until(condition, *, deadline_s: float = 60.0) -> None:
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, "the condition did not come true in time"
        time.sleep(0.02)


def wait_for_text(path: Path, *, words: int) -> list[str]:
    wait_until(lambda: path.exists() and len(path.read_text().split()) == words)
    return path.read_text().split()
