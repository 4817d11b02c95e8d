from __future__ import annotations

from dataclasses import replace

import pytest

from rollout_cli.local.view import View
from rollout_cli.local.watch import FrameRate, last_lines, with_numbers, without_numbers
from rollout_contract.keys import JobKeys
from rollout_contract.messages import Heartbeat
from rollout_stream.progress import Counters, EpisodeRecord, Progress
from rollout_stream.progress_calls import parse_progress

BASE = View(job="default/tiny", state="Running", elapsed_s=5.0)


def beat(index: int, *, version: int, seen: float) -> Heartbeat:
    return Heartbeat(
        "default", index, 0, "Collecting", frames=10, frames_per_second=5.0, policy_version=version, seen=seen
    )


def progress(**changes) -> Progress:
    answers = [
        (100, 0), [b"frames", b"0"], [b"total", b"50"], [b"seed", b"1", b"seed_epoch", b"0", b"command_epoch", b"0"],
        [], [], [], [], [b"newest", b"7"],
    ]  # fmt: skip
    return replace(parse_progress(answers, JobKeys("x")), **changes)


def test_numbers_come_from_the_stream():
    found = progress(
        counters=Counters(frames=30, acked_frames=20, unacked_frames=10, episodes=9),
        workers=(beat(0, version=6, seen=99.0), beat(1, version=2, seen=50.0)),
        episodes=tuple(EpisodeRecord(value, 3, 1, 30, "default-0") for value in (1.0, 2.0)),
    )

    view = with_numbers(BASE, found, rate=12.5)

    assert (view.frames, view.total_frames, view.frames_per_second, view.percent) == (30, 50, 12.5, 60.0)
    assert (view.mean_return, view.episodes, view.acked_frames, view.unacked_frames) == (1.5, 9, 20, 10)
    assert (view.policy_version, view.lag) == (7, 1)  # a lost worker's version is not waited for
    assert [(w.name, w.state, w.frames_per_second) for w in view.workers] == [
        ("default-0", "Collecting", 5.0),
        ("default-1", "Lost", 0.0),
    ]


def test_without_redis_the_last_numbers_stand():
    last = replace(BASE, frames=30, total_frames=50, acked_frames=20, mean_return=3.0, policy_version=7)

    view = without_numbers(replace(BASE, state="Degraded"), last, trouble="Redis does not answer")

    assert (view.state, view.frames, view.acked_frames, view.trouble) == (
        "Degraded",
        30,
        20,
        "Redis does not answer",
    )
    assert without_numbers(BASE, None, trouble="away") == replace(BASE, trouble="away")


@pytest.mark.parametrize(
    ("points", "rate"),
    [
        pytest.param([(0, 0)], None, id="nothing yet"),
        pytest.param([(0, 0), (5, 0), (6, 100)], 100.0, id="the wait before the first frame does not count"),
        pytest.param([(0, 0), (1, 100), (2, 300)], 150.0, id="two seconds"),
        pytest.param(
            [(t, 10 * t) for t in range(30)] + [(t, 290 + 100 * (t - 29)) for t in range(30, 60)],
            100.0,
            id="window",
        ),
        pytest.param([(0, 5), (0, 5)], None, id="no time"),
    ],
)
def test_frames_per_second(points, rate):
    meter = FrameRate()
    found = [meter.add(float(time), frames) for time, frames in points]

    assert found[-1] == rate


def test_last_lines_are_those_with_words():
    assert last_lines("a\n\nb\n  \nc\n", 2) == ["b", "c"]
