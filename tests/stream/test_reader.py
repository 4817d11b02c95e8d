"""Reading: groups, acks, redelivery, bad entries, prefetch, and the ends of a job."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import pytest

from rollout_contract import wire
from rollout_contract.errors import JobNotFound, LayoutMismatch, RolloutFailed
from rollout_contract.messages import EndKind, Heartbeat, Layout
from rollout_contract.names import Slot
from rollout_stream import JobSettings, RolloutStream, StreamLimits

# A learner that is a process of its own starts where others compute.
pytestmark = pytest.mark.timeout(300)

FAST = StreamLimits(claim_idle_seconds=1.0)


@contextmanager
def later(seconds, action, *arguments):
    """Do something beside the block, and have it done by the end of it."""
    timer = threading.Timer(seconds, action, arguments)
    timer.start()
    try:
        yield
    finally:
        timer.join()


def fill(rig, tools, batches, *, frames=2, index=0, **fields):
    writer = rig.writer(index, attempt=rig.control.next_attempt(Slot("cpu", index)))
    for _ in range(batches):
        tools.append(writer, frames, **fields)
    return writer


def sequences(batches):
    found = []
    for batch in batches:
        with batch:
            found.append(batch.header.sequence)
    return found


def test_a_finished_job_ends_the_iterator_by_itself(rig, tools):
    rig.open(20, groups=("learner",))
    fill(rig, tools, 10)
    assert sequences(rig.stream().batches()) == list(range(1, 11))
    assert rig.counters().acked_frames == 20
    assert rig.entries() == 0


def test_a_reader_that_comes_before_the_first_batch_waits_for_it(rig, tools):
    rig.open(4)
    reader = rig.stream().batches()
    with later(0.2, fill, rig, tools, 2):
        assert sequences(reader) == [1, 2]


@pytest.mark.probe("P-36")
def test_a_failed_job_is_raised_with_its_reason_after_everything_was_read(rig, tools):
    rig.open(None, groups=("learner",))
    fill(rig, tools, 3)
    rig.control.finish(
        EndKind.FAILED, reason="BackoffLimitExceeded", message="worker cpu-3: ValueError: boom-7"
    )
    seen = []

    def read():
        for batch in rig.stream().batches():
            seen.append(batch.header.sequence)
            batch.ack()

    with pytest.raises(RolloutFailed, match=r"BackoffLimitExceeded.*boom-7") as caught:
        read()
    assert (seen, caught.value.reason) == ([1, 2, 3], "BackoffLimitExceeded")


def test_a_suspended_job_ends_nothing(rig, tools):
    rig.open(8, groups=("learner",))
    fill(rig, tools, 2)
    rig.control.finish(EndKind.SUSPENDED)
    reader = rig.stream().batches()
    assert [next(reader).header.sequence for _ in range(2)] == [1, 2]
    assert reader.next_within(1.5) is None
    assert not reader.is_over
    rig.control.reopen()
    fill(rig, tools, 2)
    assert [next(reader).header.sequence for _ in range(2)] == [3, 4]


def test_readers_that_wait_are_told_what_stands_still(rig, tools, caplog):
    rig.open(None)
    with caplog.at_level(logging.WARNING, logger="rollout_stream"):
        reader = rig.stream().batches()
        rig.control.notify("no frame came for 30 s (Stalled)")
        tools.wait_until(lambda: "no frame came for 30 s" in caplog.text)
    assert reader.notice == "no frame came for 30 s (Stalled)"


def test_two_readers_of_a_group_share_and_of_two_groups_both_get_all(rig, tools):
    rig.open(400, groups=("a", "b"))
    found: dict[str, list[int]] = {"a1": [], "a2": [], "b": []}
    stream = rig.stream()
    started = threading.Barrier(3)

    def read(name):
        reader = stream.batches(name[0], prefetch=2)
        started.wait(60)
        found[name] = sequences(reader)

    threads = [threading.Thread(target=read, args=(name,)) for name in found]
    for thread in threads:
        thread.start()
    fill(rig, tools, 200)
    for thread in threads:
        thread.join(120)
    assert sorted(found["a1"] + found["a2"]) == list(range(1, 201))
    assert found["b"] == list(range(1, 201))
    assert rig.counters().unacked_frames == 0


READ_AND_HANG = """
import sys, time
from rollout_stream import RolloutStream
stream = RolloutStream.connect(sys.argv[1], job=sys.argv[2])
reader = stream.batches(prefetch=1)
for number in range(50):
    batch = next(reader)
    if number < 40:
        batch.ack()
print("holding", flush=True)
time.sleep(100)
"""


@pytest.mark.probe("P-37")
def test_a_killed_learners_batches_come_again_to_the_next_one(rig, tools):
    rig.open(400, groups=("learner",), limits=FAST)
    fill(rig, tools, 200)
    victim = subprocess.Popen(
        [sys.executable, "-c", READ_AND_HANG, rig.server.url, str(rig.job)], stdout=subprocess.PIPE
    )
    try:
        assert victim.stdout.readline() == b"holding\n"
    finally:
        victim.kill()
        victim.stdout.close()
        victim.wait()
    batches = []
    for batch in rig.stream().batches(prefetch=8):
        batches.append(batch)
        batch.ack()
    ids = [(b.header.worker, b.header.sequence) for b in batches]
    assert len(ids) == len(set(ids))
    assert sorted(s for _, s in ids) == list(range(41, 201))
    held = {b.header.sequence for b in batches if b.redelivered}
    assert set(range(41, 51)) <= held <= set(range(41, 53)), "what was read ahead may come as redelivered too"


def test_a_slow_but_living_reader_keeps_what_it_holds(rig, tools):
    rig.open(4, groups=("learner",), limits=StreamLimits(claim_idle_seconds=3.0))
    fill(rig, tools, 2)
    slow = rig.stream().batches(prefetch=1)
    held = next(slow)
    tools.wait_until(lambda: rig.control.read_progress().groups[0].pending == 2)
    other = rig.stream().batches(prefetch=4)
    assert other.next_within(4.5) is None
    held.ack()
    assert rig.counters().acked_frames == 2


def test_a_reader_that_closes_gives_back_at_once(rig, tools):
    rig.open(8, groups=("learner",))
    fill(rig, tools, 4)
    first = rig.stream().batches(prefetch=4)
    taken = next(first)
    first.close()
    first.close()
    second = rig.stream().batches()
    got = {}
    for batch in second:
        got[batch.header.sequence] = batch.redelivered
        batch.ack()
    assert got == {taken.header.sequence: True, **{n: False for n in (2, 3, 4)}}


def test_a_restarted_reader_with_the_same_name_has_its_batches_at_once(rig, tools):
    rig.open(6, groups=("learner",), limits=StreamLimits(claim_idle_seconds=170.0))
    fill(rig, tools, 3)
    rig.redis.execute_command(
        "XREADGROUP", "GROUP", "learner", "mine", "COUNT", 2, "STREAMS", rig.keys.batches, ">"
    )
    started = time.monotonic()
    assert sorted(sequences(rig.stream().batches(consumer="mine"))) == [1, 2, 3]
    assert time.monotonic() - started < 60, "not only after claimIdleSeconds"


def test_no_more_is_read_ahead_than_asked(rig, tools):
    rig.open(None, groups=("learner",))
    fill(rig, tools, 20)
    reader = rig.stream().batches(prefetch=3)
    tools.wait_until(lambda: rig.control.read_progress().groups[0].pending == 3)
    next(reader)
    tools.wait_until(lambda: rig.control.read_progress().groups[0].pending == 4)
    assert reader.next_within(0.1) is not None
    with pytest.raises(ValueError, match="prefetch"):
        rig.stream().batches(prefetch=0)
    with pytest.raises(ValueError, match="group"):
        rig.stream().batches("no spaces")


def test_unacked_batches_at_the_end_do_not_hold_the_iterator(rig, tools):
    rig.open(6, groups=("learner",))
    fill(rig, tools, 3)
    batches = list(rig.stream().batches())
    assert len(batches) == 3
    for batch in batches:
        batch.ack()
        batch.ack()
    assert rig.counters().acked_frames == 6


def test_an_error_in_the_block_leaves_the_batch_unacked(rig, tools):
    rig.open(2, groups=("learner",))
    fill(rig, tools, 1)
    reader = rig.stream().batches()
    with pytest.raises(ZeroDivisionError), next(reader) as batch:
        raise ZeroDivisionError
    assert not batch.is_acked
    assert rig.counters().unacked_frames == 2


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda frame: frame[:-1], id="truncated"),
        pytest.param(lambda frame: frame[:90] + bytes([frame[90] ^ 1]) + frame[91:], id="a flipped bit"),
        pytest.param(lambda frame: b"", id="empty"),
        pytest.param(lambda frame: b"\x80\x04cos\nsystem\n", id="a pickle"),
    ],
)
def test_a_bad_entry_is_counted_and_never_stops_a_learner(rig, tools, damage, caplog):
    rig.open(6, groups=("learner",))
    writer = rig.writer()
    tools.append(writer, 2)
    header, frame = tools.frame_of(writer, 2)
    writer.append(header, damage(frame))
    tools.append(writer, 2)
    with caplog.at_level(logging.WARNING, logger="rollout_stream"):
        assert sequences(rig.stream().batches()) == [1, 3]
    counters = rig.counters()
    assert (counters.bad, counters.bad_frames, counters.unacked_frames) == (1, 2, 0)
    assert "is set aside" in caplog.text
    ((_, fields),) = rig.redis.execute_command("XRANGE", rig.keys.bad, "-", "+")
    assert fields[::2] == [b"id", b"reason", b"size", b"head"]


def test_a_batch_that_kills_its_readers_is_set_aside(rig, tools):
    rig.open(4, groups=("learner",), limits=FAST)
    fill(rig, tools, 2)
    first = rig.redis.execute_command(
        "XREADGROUP", "GROUP", "learner", "dead", "COUNT", 1, "STREAMS", rig.keys.batches, ">"
    )
    entry = first[0][1][0][0]
    rig.redis.execute_command(
        "XCLAIM", rig.keys.batches, "learner", "dead", 0, entry, "RETRYCOUNT", 5, "IDLE", 10**6, "JUSTID"
    )
    assert sequences(rig.stream().batches()) == [2]
    assert rig.counters().bad == 1


@pytest.mark.probe("P-38")
def test_batches_that_look_different_go_to_nobody(rig, tools):
    rig.open(None, groups=("learner",))
    rig.control.session.run(
        rig.control._calls.declare("data", Layout({"observation": {"dtype": "uint8", "shape": [8]}}))
    )
    writer = rig.writer()
    tools.append(writer, 2)
    header = wire.BatchHeader(
        job=rig.job.uid, worker=writer.worker, sequence=writer.next_sequence, shape=(2, 1), frames=2
    )
    other = wire.encode(header, [wire.Leaf("observation", "uint8", (2, 1, 9), bytes(18))])
    writer.append(header, other)
    tools.append(writer, 2)
    reader = rig.stream().batches()
    assert [next(reader).header.sequence for _ in range(2)] == [1, 3]
    with pytest.raises(LayoutMismatch, match=r"observation: expected float32\[3\], found uint8\[8\]"):
        rig.stream().batches(expect=Layout({"observation": {"dtype": "float32", "shape": [3]}}))


@pytest.mark.probe("P-30")
def test_stale_batches_are_dropped_and_counted_where_the_job_says_so(rig, tools):
    from rollout_stream import safetensors

    rig.open(12, groups=("learner",), limits=StreamLimits(max_staleness=2, on_stale="Drop"))
    writer = rig.writer()
    for version in range(6):
        tools.append(writer, 2, policy_version=(version, version))
    data = safetensors.build_header([("w", "uint8", (1,))]) + b"x"
    stream = rig.stream()
    for _ in range(5):
        stream.weights.publish(data)
    versions = []
    for batch in stream.batches():
        versions.append(batch.header.policy_version[0])
        batch.ack()
    assert versions == [3, 4, 5]
    progress = rig.control.read_progress()
    assert (progress.counters.dropped_batches, progress.counters.dropped_frames) == (3, 6)
    assert progress.worker_counters[Slot("cpu", 0)].stale_frames == 6


def test_rounds_hold_one_batch_of_every_worker_in_order(rig, tools):
    slots = (Slot("cpu", 0), Slot("cpu", 1), Slot("gpu", 0))
    rig.open(22, groups=("learner",), slots=slots)
    writers = [rig.writer(0), rig.writer(1), rig.writer(0, group="gpu")]
    for number in (2, 0, 0, 1, 2, 1, 1, 2, 0, 1, 1):  # worker 1 makes five batches, the others three
        tools.append(writers[number], 2)
        if writers[number].next_sequence == 4 and number != 1:
            beat = Heartbeat(writers[number].worker.group, writers[number].worker.index, 0, "Finished")
            writers[number].heartbeat(beat)
    rounds = []
    for batches in rig.stream().rounds():
        rounds.append([(str(b.header.worker.slot), b.header.sequence) for b in batches])
        for batch in batches:
            batch.ack()
    whole = [[("cpu-0", n), ("cpu-1", n), ("gpu-0", n)] for n in (1, 2, 3)]
    assert rounds == [*whole, [("cpu-1", 4)], [("cpu-1", 5)]]


def test_a_learner_finds_its_job_by_name_or_by_its_variables(rig, tools, monkeypatch):
    rig.open(2, groups=("learner",))
    fill(rig, tools, 1)
    monkeypatch.setenv("ROLLOUT_STREAM_URL", rig.server.url)
    monkeypatch.setenv("ROLLOUT_JOB", str(rig.job))
    with RolloutStream.connect() as stream:
        assert stream.job.uid8 == rig.job.uid8
        assert sequences(stream.batches()) == [1]


def test_a_job_that_is_opened_late_is_waited_for(rig, make_rig):
    def open_late():
        rig.control.open_job(JobSettings(uid=rig.job.uid, seed=1))

    with later(0.3, open_late):
        assert rig.stream().job.uid8 == rig.job.uid8
    with pytest.raises(JobNotFound, match="no-such-job"):
        RolloutStream.connect(rig.server.url, job="tests/no-such-job", wait_for_job_s=0.1)


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param({"url": "http://a"}, id="scheme"),
        pytest.param({"url": "redis://u:s3cr3t@h:port"}, id="port"),
        pytest.param({"job": "a/b/c"}, id="name"),
        pytest.param({"job": "a/{b}"}, id="braces"),
        pytest.param({"url": None}, id="nothing"),
    ],
)
def test_wrong_addresses_are_refused_without_their_secrets(arguments, monkeypatch):
    monkeypatch.delenv("ROLLOUT_STREAM_URL", raising=False)
    with pytest.raises(ValueError, match=r"address|job|stream") as caught:
        RolloutStream.connect(**{"url": "redis://h", "job": "a/b", **arguments})
    assert "s3cr3t" not in str(caught.value)
