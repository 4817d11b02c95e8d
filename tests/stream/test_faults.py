"""What is promised when servers and credentials fail. Each test has a server of its own."""

from __future__ import annotations

import signal
import threading
import time

import pytest

from rollout_contract.errors import StateLost, StreamFull, StreamUnavailable
from rollout_contract.messages import AppendStatus, Heartbeat, ReserveStatus
from rollout_contract.names import JobRef
from rollout_stream import Control, JobSettings, StreamLimits
from rollout_stream.scripts import script


def test_a_server_that_restarts_with_its_log_keeps_every_answered_batch(make_server, make_rig, tools):
    server = make_server("--appendonly", "yes", "--appendfsync", "always")
    rig = make_rig(server).open(1000, groups=("learner",))
    writer = rig.writer()
    reader = rig.stream().batches("learner", prefetch=2)
    for _ in range(20):
        tools.append(writer, 10, want=10)
    first = [next(reader) for _ in range(5)]
    for batch in first:
        batch.ack()
    server.kill()
    back = threading.Timer(0.3, server.start)
    back.start()
    try:
        assert tools.append(writer, 10, want=10).status in (AppendStatus.OK, AppendStatus.DUPLICATE)
    finally:
        back.join(120)
    while writer.reserve(10).status == ReserveStatus.GRANTED:
        tools.append(writer, 10, want=10)
    seen = [b.header.sequence for b in first]
    for batch in reader:
        seen.append(batch.header.sequence)
        batch.ack()
    assert sorted(seen) == list(range(1, 101))
    assert rig.counters().frames == 1000


def test_a_batch_in_flight_when_the_server_dies_is_there_once(make_server, make_rig, tools):
    server = make_server("--appendonly", "yes", "--appendfsync", "always")
    rig = make_rig(server).open(None)
    writer = rig.writer()
    stop = threading.Event()
    errors: list[BaseException] = []

    def write():
        try:
            while not stop.is_set():
                tools.append(writer, 1)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for _ in range(2):
            before = rig.counters().frames
            tools.wait_until(lambda before=before: rig.counters().frames > before + 50)
            server.kill()
            server.start()
    finally:
        stop.set()
        thread.join(120)
    assert errors == []
    assert rig.counters().frames == writer.next_sequence - 1 == rig.entries()


def test_a_server_that_was_emptied_is_lost_state_for_everybody(make_server, make_rig, tools):
    server = make_server()
    rig = make_rig(server).open(1000)
    writer = rig.writer()
    reader = rig.stream().batches("learner")
    tools.append(writer, 10)
    next(reader).ack()
    server.kill()
    server.start()
    for call in (
        lambda: tools.append(writer, 10),
        lambda: writer.heartbeat(Heartbeat("cpu", 0, 0, "x")),
        lambda: next(reader),
    ):
        with pytest.raises(StateLost, match=r"gone|lost"):
            call()
    assert rig.redis.execute_command("KEYS", "*batches*") == []


@pytest.mark.parametrize("policy", ["Block", "DropNewest"])
def test_a_server_without_memory_answers_full_and_recovers(make_server, make_rig, tools, policy):
    server = make_server("--maxmemory", "12mb", "--maxmemory-policy", "noeviction")
    limits = StreamLimits(max_bytes=None, on_full=policy)
    rig = make_rig(server).open(None, groups=("learner",), limits=limits)
    writer = rig.writer()
    beat = Heartbeat("cpu", 0, 0, "Backpressured")
    sent = 0
    while (reply := writer.append(*tools.frame_of(writer, 50_000), heartbeat=beat)).status == AppendStatus.OK:
        sent += 1
    assert reply.status == AppendStatus.FULL
    assert sent >= 5
    assert rig.counters().oom == 1
    assert rig.entries() == sent, "nothing was written"
    assert writer.heartbeat(beat).status in (ReserveStatus.WAIT, ReserveStatus.FULL), "heartbeats go on"
    writer.reserve(10)
    reader = rig.stream().batches("learner", prefetch=1)
    for number in range(sent):
        batch = next(reader)
        assert batch.header.sequence == number + 1
        batch.ack()
    assert writer.append(*tools.frame_of(writer, 50_000)).status == AppendStatus.OK


def test_weights_without_memory_are_an_error_and_leave_nothing(make_server, make_rig):
    from rollout_stream import safetensors

    server = make_server("--maxmemory", "12mb", "--maxmemory-policy", "noeviction")
    rig = make_rig(server).open(None)
    size = 20 * 1024 * 1024
    data = safetensors.build_header([("w", "uint8", (size,))]) + bytes(size)
    with pytest.raises(StreamFull, match="out of memory"):
        rig.stream().weights.publish(data, allow_nonfinite=True)
    assert rig.redis.execute_command("KEYS", "*upload*") == []
    assert rig.control.read_progress().newest_version == 0


def test_a_wrong_password_is_said_with_the_address_and_without_the_password(make_server):
    server = make_server(tcp=True, password="s3cr3t-probe-42")
    started = time.monotonic()
    for password in ("wr0ng-probe-43", None):
        with Control.connect(
            server.url, job=JobRef("a", "b", "12345678"), password=password, patience_s=170
        ) as control:
            with pytest.raises(
                StreamUnavailable, match=f"127.0.0.1:{server.port} refuses the credentials"
            ) as caught:
                control.check_server()
            chain = [caught.value, caught.value.__cause__]
            assert not any("probe" in str(e) or "probe" in repr(e) for e in chain)
    assert time.monotonic() - started < 60, "a wrong password is not retried"


def test_a_server_that_is_not_there_is_an_error_within_the_patience(make_server):
    server = make_server(tcp=True)
    server.kill()
    with Control.connect(server.url, job=JobRef("a", "b", "12345678"), patience_s=0.5) as control:
        started = time.monotonic()
        with pytest.raises(StreamUnavailable, match=f"127.0.0.1:{server.port} cannot be reached"):
            control.check_server()
        assert time.monotonic() - started < 60


def test_a_writer_that_is_told_to_stop_waits_no_longer(make_server, make_rig, tools):
    """A second is promised; the quickest of three shows it where others compute."""
    server = make_server()
    rig = make_rig(server).open(None)
    stops = [threading.Event() for _ in range(3)]
    writers = [rig.writer(index, patience_s=170, stop=stop) for index, stop in enumerate(stops)]
    server.kill()
    told: list[float] = []

    def tell(stop):
        told.append(time.monotonic())
        stop.set()

    took = []
    for writer, stop in zip(writers, stops, strict=True):
        timer = threading.Timer(0.2, tell, (stop,))
        timer.start()
        with pytest.raises(StreamUnavailable):
            tools.append(writer, 1)
        ended = time.monotonic()
        timer.join()
        took.append(ended - told[-1])
    assert 0 < min(took) < 1


def test_a_server_that_stands_still_is_waited_for(make_server, make_rig, tools):
    server = make_server()
    rig = make_rig(server).open(None)
    writer = rig.writer()
    server.process.send_signal(signal.SIGSTOP)
    threading.Timer(0.5, server.process.send_signal, [signal.SIGCONT]).start()
    assert tools.append(writer, 1).status == AppendStatus.OK


@pytest.mark.probe("P-35")
@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl"])
def test_a_server_that_throws_keys_away_is_named(make_server, policy):
    server = make_server("--maxmemory-policy", policy)
    with Control.connect(server.url, job=JobRef("a", "b", "12345678")) as control:
        info = control.check_server()
    assert info.is_policy_known
    (problem,) = info.problems
    assert policy in problem
    assert "noeviction" in problem


def test_a_server_that_does_not_tell_its_policy_is_unknown(make_server):
    server = make_server()
    client = server.client()
    client.execute_command(
        "ACL", "SETUSER", "small", "on", ">pw-of-small", "~*", "+ping", "+evalsha", "+eval", "+script|load"
    )
    url = server.url.replace("unix://", "unix://small@")
    with Control.connect(url, job=JobRef("a", "b", "12345678"), password="pw-of-small") as control:
        info = control.check_server()
    client.close()
    assert not info.is_policy_known
    assert info.problems == ()


def test_the_smallest_rights_are_enough(make_server, make_rig, tools):
    """No CONFIG, no KEYS, no channels, keys of this platform only: what the documentation tells to grant."""
    server = make_server()
    admin = server.client()
    admin.execute_command(
        "ACL", "SETUSER", "rollout", "on", ">pw-rollout", "~rollout:*", "resetchannels",
        "-@all", "+@stream", "+@hash", "+@string", "+@set", "+@list", "+@keyspace", "+@scripting", "+@connection",
        "+@transaction", "+time", "+info", "-keys", "-flushall", "-flushdb",
    )  # fmt: skip
    server.url = server.url.replace("unix://", "unix://rollout@")
    server.password = "pw-rollout"
    rig = make_rig(server).open(20, groups=("learner",))
    writer = rig.writer()
    writer.reserve(20)
    tools.append(writer, 10, want=10, returns=[1.0])
    tools.append(writer, 10, want=10)
    with rig.stream() as stream:
        for batch in stream.batches():
            batch.ack()
    rig.control.touch()
    assert rig.counters().acked_frames == 20
    rig.control.delete()
    admin.close()


def test_opening_a_job_without_memory_makes_nothing(make_server, make_rig):
    server = make_server("--maxmemory", "100kb", "--maxmemory-policy", "noeviction")
    rig = make_rig(server)
    with pytest.raises(StreamFull, match="out of memory"):
        rig.control.open_job(JobSettings(uid=rig.job.uid, seed=1))
    assert rig.redis.execute_command("KEYS", "*") == []


def test_the_appends_text_is_small():
    """It is sent with every batch."""
    assert len(script("append").text) < 12_000
