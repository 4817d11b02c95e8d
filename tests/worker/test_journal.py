"""What a worker tells of itself: start, progress, waits, versions, restarts, end. Never secrets or arguments."""

from __future__ import annotations

import json
import logging
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from rollout_contract.messages import WorkerState
from rollout_contract.names import WorkerId
from rollout_stream import RolloutStream
from rollout_worker import journal as module
from rollout_worker.journal import MOST_REPORT_S, REPORT_EVERY_S, WAIT_TOLD_AFTER_S, Journal
from rollout_worker.standing import Standing

COLLECTING, FULL, PAUSED = WorkerState.COLLECTING, WorkerState.BACKPRESSURED, WorkerState.PAUSED


class Told:
    """A journal with a clock that is moved by hand."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self.caplog = caplog
        self.now, self.restarts = 1000.0, 0
        self.standing = Standing()
        document: Any = type("D", (), {"worker": WorkerId("cpu", 3, 1)})
        self.journal = Journal(document, lambda: self.standing, lambda: self.restarts, clock=lambda: self.now)

    def after(self, seconds: float, *, batches: int = 0) -> list[str]:
        """What is told once so much time has passed, and so many batches were made."""
        self.now += seconds
        self.standing.batches += batches
        self.standing.frames += 100 * batches
        self.journal.look()
        return self.lines()

    def turn(self, state: WorkerState) -> None:
        if state is not self.standing.state:
            self.journal.turned(state)
        self.standing.state = state

    def lines(self) -> list[str]:
        found = [record.getMessage() for record in self.caplog.records if record.levelno >= logging.INFO]
        self.caplog.clear()
        assert all(line.startswith("worker cpu-3-1 ") for line in found)
        return [line.removeprefix("worker cpu-3-1 ") for line in found]


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Told:
    caplog.set_level(logging.DEBUG, "rollout_worker")
    return Told(caplog)


def test_progress_comes_by_time_and_not_by_batches(told: Told) -> None:
    told.turn(COLLECTING)
    assert told.after(REPORT_EVERY_S - 1, batches=50) == []
    told.standing.loaded_version = 4
    assert told.after(1, batches=10) == [
        "60 batches, 6,000 frames in 30 s (200 frames/s), 6,000 frames in all; Collecting, policy version 4"
    ]
    assert told.after(REPORT_EVERY_S, batches=1)[0].startswith(
        "1 batch, 100 frames in 30 s (3 frames/s), 6,100"
    )
    told.restarts = 2
    assert told.after(REPORT_EVERY_S, batches=1)[0].endswith("policy version 4, replaced 2 environments")
    assert told.after(REPORT_EVERY_S, batches=1)[0].endswith("policy version 4")


def test_a_worker_that_makes_nothing_says_so_less_and_less_often(told: Told) -> None:
    told.turn(PAUSED)
    gaps, last = [], told.now
    while len(gaps) < 8:
        if any(line.startswith("0 batches") for line in told.after(10)):
            gaps.append(told.now - last)
            last = told.now
    assert gaps[:5] == [30, 60, 120, 240, 480]
    assert gaps[5:] == [MOST_REPORT_S] * 3
    told.turn(COLLECTING)
    told.after(MOST_REPORT_S, batches=1)
    assert len(told.after(REPORT_EVERY_S, batches=1)) == 1


def test_a_wait_is_told_when_it_lasts_and_so_is_its_end(told: Told) -> None:
    told.turn(COLLECTING)
    told.turn(FULL)
    assert told.after(WAIT_TOLD_AFTER_S / 2) == []
    assert told.after(WAIT_TOLD_AFTER_S) == ["waits: the stream is full, its readers are behind"]
    assert told.after(1) == []
    told.turn(COLLECTING)
    assert told.lines() == ["goes on after 4.0 s"]


def test_waits_that_come_and_go_are_one_line_and_a_sum(told: Told) -> None:
    lines = []
    for _ in range(10):
        told.turn(FULL)
        lines += told.after(2.5)
        told.turn(COLLECTING)
        lines += told.after(0.4, batches=1)
    assert [line for line in lines if line.startswith("waits")] == [lines[0]]
    assert sum(line.startswith("goes on") for line in lines) == 1
    assert told.after(2)[0].endswith("policy version 0, waited 25.0 s")


def test_short_waits_are_not_told(told: Told) -> None:
    for _ in range(20):
        told.turn(FULL)
        assert told.after(0.5) == []
        told.turn(COLLECTING)
        assert told.after(0.5, batches=1) == []


def test_versions_are_told_now_and_then(told: Told) -> None:
    for version in range(1, 31):
        told.journal.loaded(version, 0.25)
        told.now += 1
    assert told.lines() == [f"loaded policy version {version} in 0.25 s" for version in (1, 11, 21)]


def test_the_end_has_reason_and_totals(told: Told) -> None:
    told.turn(FULL)
    told.after(10, batches=3)
    told.lines()
    told.turn(WorkerState.DRAINING)
    told.journal.ended("drained on SIGTERM")
    assert told.lines() == [
        "drained on SIGTERM; made 3 batches, 300 frames in 10 s (30 frames/s), policy version 0, waited 10.0 s"
    ]


def test_every_state_in_which_nothing_is_made_has_a_reason() -> None:
    idle = {state for state in WorkerState} - {COLLECTING}
    assert set(module.WAITS) == idle - {WorkerState.STARTING, WorkerState.DRAINING, WorkerState.FAILED}


# --- the real program


def wait_until(holds: Callable[[], bool], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


SECRET_ARGUMENT = "arg-s3cr3t-77"


@pytest.mark.timeout(400)
@pytest.mark.probe("P-54")
def test_the_log_of_a_job_from_start_to_end(rig: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLOUT_LOG_LEVEL", "debug")
    monkeypatch.setenv("ROLLOUT_LOG_FORMAT", "json")
    env = {"entrypoint": "worker_toys:Count", "kwargs": {"k": 4}, "envsPerWorker": 4, "processes": 2}
    job = rig(env=env, groups=("learner",), weights={"startPolicy": "WaitForWeights"})
    process = job.start()
    wait_until(lambda: "waits: the policy version" in job.log())
    with RolloutStream.connect(job.server.url, job=str(job.job), password="s3cr3t-probe-42") as stream:
        stream.weights.publish({"weight": torch.zeros(1)})
        reader = stream.batches("learner")
        while not reader.is_over:
            batch = reader.next_within(0.5)
            if batch is not None:
                batch.ack()
    assert process.wait(120) == 0

    lines = [json.loads(line) for line in job.log().splitlines()]
    ours = [line for line in lines if line["logger"] == "rollout_worker"]
    assert {line["worker"] for line in ours} == {"default-0-0"}
    assert {line["job"] for line in ours} == {str(job.job)}
    start, *_, end = [line["message"] for line in ours]
    assert (
        "starts: 4 environments worker_toys:Count in 2 processes, policy worker_toys:make_linear on Cpu"
        in start
    )
    assert "Sync batches of 64 frames" in start
    assert end.startswith(
        "worker default-0-0 finished, the job's frames are complete; made 10 batches, 640 frames in"
    )
    events = [event for line in ours if (event := line.get("event", "progress")) != "progress"]
    assert events == ["waits", "loaded", "resumed", "first batch", "ended"]
    assert ours[-1]["frames"] == 640
    assert "s3cr3t" not in job.log()


@pytest.mark.timeout(400)
def test_the_log_of_a_worker_that_is_told_to_stop(rig: Callable[..., Any]) -> None:
    job = rig(
        env={"entrypoint": "worker_toys:Count", "envsPerWorker": 4, "processes": 1},
        groups=("learner",),
        max_unacked_frames=64,
    )
    process = job.start()
    wait_until(lambda: "waits: the stream is full" in job.log())
    process.send_signal(signal.SIGTERM)
    assert process.wait(120) == 143
    lines = job.log().splitlines()
    assert "INFO rollout_worker: worker default-0-0 of job" in lines[0]
    assert any("first batch: 64 frames, made in" in line for line in lines)
    assert "worker default-0-0 drained on SIGTERM; made 1 batch, 64 frames in" in lines[-1]
    assert ", waited " in lines[-1]


@pytest.mark.timeout(400)
def test_arguments_are_not_told_and_an_error_comes_last(rig: Callable[..., Any]) -> None:
    kwargs = {"k": 4, "unknown": SECRET_ARGUMENT}
    job = rig(env={"entrypoint": "worker_toys:Count", "kwargs": kwargs, "envsPerWorker": 2, "processes": 1})
    process = job.start()
    assert process.wait(120) not in {0, 143}
    assert "starts: 2 environments worker_toys:Count" in job.log().splitlines()[0]
    assert "unexpected keyword argument 'unknown'" in job.log().splitlines()[-1]
    assert SECRET_ARGUMENT not in job.log()


@pytest.mark.timeout(400)
def test_wrong_settings_are_named(rig: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLOUT_LOG_LEVEL", "loud")
    job = rig()
    process = job.start()
    assert process.wait(120) == 2
    assert "ROLLOUT_LOG_LEVEL" in job.log()
