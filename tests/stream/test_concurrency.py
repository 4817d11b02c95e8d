"""Many writers at once, some of them killed: every frame once, and the total exactly."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from rollout_contract import wire
from rollout_contract.messages import AppendStatus, ReserveStatus
from rollout_contract.names import Slot
from rollout_stream import StreamLimits

# Programs that start where others compute take long.
pytestmark = pytest.mark.timeout(400)

PROGRAM = str(Path(__file__).parent / "writer_program.py")


def start(rig, index, attempt, frames=37):
    arguments = [rig.server.url, str(rig.job), rig.job.uid, str(index), str(attempt), str(frames)]
    return subprocess.Popen([sys.executable, PROGRAM, *arguments], stdout=subprocess.PIPE)


def headers_of(rig):
    """The headers of every batch in the stream."""
    entries = rig.redis.execute_command("XRANGE", rig.keys.batches, "-", "+")
    return [wire.decode(fields[1]).header for _, fields in entries if fields[0] == b"b"]


def check_complete(rig, total):
    headers = headers_of(rig)
    ids = [(h.worker, h.sequence) for h in headers]
    progress = rig.control.read_progress()
    assert sum(h.frames for h in headers) == progress.counters.frames == total
    assert len(ids) == len(set(ids))
    assert (progress.reserved_frames, progress.control.ended) == (0, "finished")
    by_slot: dict[Slot, list[int]] = {}
    for header in headers:
        by_slot.setdefault(header.worker.slot, []).append(header.sequence)
    assert all(sequences == list(range(1, len(sequences) + 1)) for sequences in by_slot.values()), (
        "no gap, no repeat"
    )


@pytest.mark.parametrize("total", [10007, 1], ids=["many batches", "fewer frames than writers"])
def test_four_processes_meet_an_odd_total_exactly(rig, total):
    rig.open(total, limits=StreamLimits(max_bytes=None))
    workers = [start(rig, index, 0) for index in range(4)]
    try:
        assert [worker.wait(120) for worker in workers] == [0, 0, 0, 0]
    finally:
        for worker in workers:
            worker.kill()
            worker.stdout.close()
            worker.wait()
    check_complete(rig, total)


@pytest.mark.slow
def test_processes_killed_at_any_point_lose_and_repeat_nothing(rig, tools):
    """One slot's process is killed again and again, another one writes all the time."""
    total = 150_001
    rig.open(total, limits=StreamLimits(max_bytes=None))
    dice = random.Random(5)
    steady = start(rig, 1, 0, frames=11)
    running = [steady]
    try:
        for attempt in range(8):
            victim = start(rig, 0, attempt, frames=37)
            running.append(victim)
            victim.stdout.readline()
            seen = rig.counters().frames
            goal = min(total, seen + dice.randint(0, 3000))
            tools.wait_until(lambda goal=goal: rig.counters().frames >= goal)
            victim.kill()
            victim.wait()
        last = start(rig, 0, rig.control.next_attempt(Slot("cpu", 0)), frames=37)
        running.append(last)
        assert [steady.wait(120), last.wait(120)] == [0, 0]
    finally:
        for worker in running:
            worker.kill()
            worker.stdout.close()
            worker.wait()
    check_complete(rig, total)


def test_threads_race_for_the_last_frames(rig, tools):
    rig.open(1009)
    statuses: list[str] = []

    def work(writer, want):
        reservation = writer.reserve(want)
        while reservation.status != ReserveStatus.FINISHED:
            if reservation.status == ReserveStatus.GRANTED:
                reply = tools.append(writer, reservation.granted, want=want)
                statuses.append(reply.status)
                reservation = reply.next
            else:
                reservation = writer.reserve(want)

    threads = [threading.Thread(target=work, args=(rig.writer(n), 3 + 4 * n)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads)
    assert set(statuses) == {AppendStatus.OK}
    check_complete(rig, 1009)


@pytest.mark.probe("P-37")
def test_lost_answers_are_repeated_and_recognised(rig, tools, make_proxy):
    rig.open(2000)
    proxy = make_proxy()
    direct = rig.server.url
    rig.server.url = proxy.url
    try:
        writer = rig.writer()
    finally:
        rig.server.url = direct
    writer.reserve(10)
    for number in range(200):
        if number % 40 == 17:
            proxy.swallow = 1
        expected = AppendStatus.DUPLICATE if proxy.swallow else AppendStatus.OK
        assert tools.append(writer, 10, want=10).status == expected
    assert proxy.swallowed == 5
    assert rig.counters().duplicates == 5
    check_complete(rig, 2000)
