from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from rollout_cli.local.screen import LiveScreen, PlainScreen, drawing, open_screen
from rollout_cli.local.view import (
    ConditionRow,
    Result,
    View,
    WorkerRow,
    clock,
    plain_line,
    remarkable,
    summary,
    view_of_status,
)

RUNNING = View(
    job="default/tiny",
    state="Running",
    elapsed_s=65.0,
    gateway="http://127.0.0.1:4242",
    frames=1500,
    total_frames=6000,
    frames_per_second=512.4,
    episodes=30,
    mean_return=21.5,
    policy_version=4,
    lag=1,
    workers=(WorkerRow("default-0", 1, "Collecting", 1500, 512.4, 3),),
    ready_workers="1/1",
    worker_restarts=2,
    learner="running",
    learner_restarts=1,
    learner_lines=("version 4",),
)


def test_a_view_in_one_line():
    assert plain_line(RUNNING) == (
        "1:05 | Running | 1,500 frames (25 %) | 512 frames/s | return 21.5 | workers 1/1 | policy 4 (lag 1) | restarts 2+1"
    )


def test_what_is_not_known_is_left_out():
    assert plain_line(View(job="default/tiny", state="Pending", elapsed_s=0.4)) == (
        "0:00 | Pending | 0 frames | workers 0/0 | policy 0"
    )


@pytest.mark.parametrize(
    ("type_", "status", "shown"),
    [
        pytest.param("RedisReady", "True", False, id="right when true"),
        pytest.param("RedisReady", "False", True, id="wrong when false"),
        pytest.param("RedisReady", "Unknown", False, id="not known yet"),
        pytest.param("Backpressured", "False", False, id="right when false"),
        pytest.param("Backpressured", "True", True, id="wrong when true"),
    ],
)
def test_conditions_that_are_worth_a_word(type_, status, shown):
    condition = ConditionRow(type_, status, "Because")

    assert remarkable([condition]) == ([condition] if shown else [])
    assert ("Because" in plain_line(replace(RUNNING, conditions=(condition,)))) is shown


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.9, "0:00"), (59.9, "0:59"), (3600, "1:00:00"), (93784, "26:03:04")]
)
def test_durations(seconds, text):
    assert clock(seconds) == text


def test_the_summary_names_what_came_out():
    lines = summary(RUNNING, Result(mean_return=480.0), curve="runs/tiny-1/curve.png")

    assert lines == [
        "default/tiny: Running after 1:05",
        "  return             480.00 (mean of the last 100 episodes)",
        "  frames             1,500 (25 % of 6,000), 30 episodes",
        "  frames per second  23 (over the whole run)",
        "  restarts           2 of workers, 1 of the learner",
        "  curve              runs/tiny-1/curve.png",
    ]


def test_the_summary_takes_the_streams_return_where_the_learner_left_none():
    assert "  return             21.50 (mean of the last 100 episodes)" in summary(
        RUNNING, Result(), curve=None
    )


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        pytest.param({"mean_return": 3, "curve": "c.png", "more": 1}, Result(3.0, "c.png"), id="good"),
        pytest.param({"mean_return": "3", "curve": 4}, Result(), id="wrong types"),
        pytest.param({"mean_return": True}, Result(), id="a truth is no number"),
        pytest.param([1], Result(), id="no mapping"),
    ],
)
def test_what_a_learner_leaves_is_taken_with_care(document, expected):
    assert Result.of(document) == expected


def test_the_jobs_own_half_of_a_view():
    document = {
        "metadata": {"name": "tiny", "namespace": "rl"},
        "spec": {"collector": {"totalFrames": 60}},
        "status": {
            "state": "Degraded",
            "readyWorkers": "1/2",
            "conditions": [{"type": "Ready", "status": "False", "reason": "WorkersNotReady"}],
            "workerGroups": [{"name": "a", "failures": 2, "disruptions": 1}, {"name": "b"}],
        },
    }

    assert view_of_status(document) == {
        "job": "rl/tiny",
        "state": "Degraded",
        "ready_workers": "1/2",
        "worker_restarts": 3,
        "total_frames": 60,
        "conditions": (ConditionRow("Ready", "False", "WorkersNotReady"),),
    }


def test_a_pipe_gets_a_line_every_few_seconds_and_at_every_change_of_state():
    out = io.StringIO()
    screen = open_screen(out)
    assert isinstance(screen, PlainScreen)
    for second in range(8):
        screen.show(View(job="default/tiny", state="Running", elapsed_s=float(second)))
    screen.show(View(job="default/tiny", state="Complete", elapsed_s=8.0))
    screen.tell("a worker was replaced")

    starts = [line.split(" | ")[:2] for line in out.getvalue().splitlines()]
    assert starts == [
        ["0:00", "Running"],
        ["0:03", "Running"],
        ["0:06", "Running"],
        ["0:08", "Complete"],
        ["a worker was replaced"],
    ]


def test_the_learners_newest_line_is_on_the_pipe_once():
    out = io.StringIO()
    screen = PlainScreen(out)
    screen.show(RUNNING)
    screen.show(replace(RUNNING, elapsed_s=90.0))

    assert out.getvalue().count("learner: version 4") == 1


def test_a_terminal_shows_all_of_it():
    console = Console(file=io.StringIO(), width=110, force_terminal=True, color_system=None)
    view = replace(
        RUNNING,
        conditions=(ConditionRow("WorkersReady", "False", "CrashLoop", "default-0 ended with exit code 1"),),
        workers=tuple(replace(RUNNING.workers[0], name=f"default-{i}") for i in range(25)),
    )
    console.print(drawing(view))
    text = console.file.getvalue()

    for words in (
        "default/tiny: Running",
        "http://127.0.0.1:4242",
        "1,500 of 6,000 (25.0 %)",
        "21.50",
        "4, lag 1",
        "│  worker ",
        "last error",
        "default-19",
        "and 5 more",
        "ready 1/1, 2 restarts",
        "WorkersReady=False CrashLoop: default-0 ended with exit code 1",
        "learner: running, 1 restarts",
        "version 4",
    ):
        assert words in text
    assert "default-20" not in text


def test_the_live_screen_leaves_the_terminal_as_it_was():
    out = io.StringIO()
    screen = LiveScreen(Console(file=out, force_terminal=True, width=100))
    screen.show(RUNNING)
    screen.tell("[bold] is no markup here")
    screen.close()

    assert out.getvalue().count("\x1b[?25l") == out.getvalue().count("\x1b[?25h") == 1
    assert "[bold] is no markup here" in out.getvalue()
