"""The streams over real servers: what is read, what is refused, and what a trouble is called."""

from __future__ import annotations

import asyncio
import socket
import ssl
from contextlib import asynccontextmanager
from dataclasses import replace
from uuid import uuid4

import pytest
import redis.asyncio
from operator_builders import SETTINGS, make_job

from rollout_contract.errors import RolloutFailed, StreamFull, StreamUnavailable
from rollout_contract.keys import JobKeys
from rollout_contract.messages import EndMarker, Heartbeat, ReserveStatus
from rollout_contract.names import WorkerId
from rollout_contract.status import ConditionStatus, Reason
from rollout_operator.cluster import JobKey
from rollout_operator.observed import StreamFacts, StreamTrouble
from rollout_operator.redis_streams import RedisStreams
from rollout_operator.shares import max_unacked_frames
from rollout_operator.troubles import trouble_of, trouble_of_server
from rollout_stream.connection import ServerAddress
from rollout_stream.server_check import ServerInfo
from rollout_stream.stream import RolloutStream
from rollout_stream.writer import StreamWriter


@asynccontextmanager
async def streams_at(port, *, settings=SETTINGS, clock=None, **address):
    found = ServerAddress(host="127.0.0.1", port=port, **address)
    options = {"clock": clock} if clock else {}
    streams = RedisStreams(settings, reach=lambda job: found, **options)
    try:
        yield streams
    finally:
        await streams.close()


async def test_a_job_is_opened_found_again_and_read(servers):
    job = make_job(seed=7, stream={"groups": ["learner"]})
    port = servers.start()
    async with streams_at(port) as streams:
        assert await streams.look(job) == StreamFacts(is_open=False, key=JobKeys.of(job.ref).batches)
        await streams.open(job)
        await streams.open(job)
        facts = await streams.look(job)
        assert (facts.is_open, facts.frames, facts.total_frames, facts.seed) == (True, 0, 10_000, 7)
        assert (facts.max_unacked_frames, facts.in_tune) == (max_unacked_frames(job.spec), True)
        assert (facts.end, facts.is_complete, facts.last_frame_age) == (None, False, None)


async def test_workers_are_seen_and_their_reservations_released(servers):
    job = make_job()
    port = servers.start()
    async with streams_at(port) as streams:
        await streams.open(job)
        worker = WorkerId("default", 1, 3)
        with StreamWriter.connect(
            f"redis://127.0.0.1:{port}", job=job.ref, worker=worker, patience_s=60
        ) as writer:
            assert writer.reserve(100).status is ReserveStatus.GRANTED
            writer.heartbeat(Heartbeat(group="default", index=1, attempt=3, state="Collecting"))
            facts = await streams.look(job)
            assert (facts.attempts, facts.reservations) == ({worker.slot: 3}, {worker.slot: 100})
            assert facts.heartbeats[worker.slot].state == "Collecting"
            await streams.release(job, worker)
            assert (await streams.look(job)).reservations == {}
            assert writer.reserve(100).status is ReserveStatus.FENCED


async def test_an_attempt_that_was_announced_is_never_given_again(servers):
    """What stands in the stream survives the operator; what is known not to exist is known to this process only."""
    job, first, second = make_job(), WorkerId("default", 0, 0), WorkerId("default", 1, 2)
    url = servers.start()
    async with streams_at(url) as streams:
        await streams.open(job)
        await streams.announce(job, [first, second])
        assert (await streams.look(job)).attempts == {first.slot: 0, second.slot: 2}

        streams.withdraw(job, [first, second])
        assert (await streams.look(job)).attempts == {second.slot: 1}
        streams.confirm(job, [second])  # it was found after all
        assert (await streams.look(job)).attempts == {second.slot: 2}
        await streams.announce(job, [first])  # created at last
        assert (await streams.look(job)).attempts == {first.slot: 0, second.slot: 2}
        streams.withdraw(job, [first])
    async with streams_at(url) as another:
        assert (await another.look(job)).attempts == {first.slot: 0, second.slot: 2}


async def test_edits_reach_the_stream(servers):
    job = make_job()
    async with streams_at(servers.start()) as streams:
        await streams.open(job)
        edited = make_job(collector={"totalFrames": 20_000}, stream={"maxUnackedFrames": 500})
        assert not (await streams.look(edited)).in_tune
        await streams.tune(edited)
        facts = await streams.look(edited)
        assert (facts.in_tune, facts.total_frames, facts.max_unacked_frames) == (True, 20_000, 500)
        endless = make_job(collector={"totalFrames": None})
        await streams.tune(endless)
        assert (await streams.look(endless)).total_frames is None


@pytest.mark.probe("P-41")
@pytest.mark.parametrize(
    ("edit", "read", "expected"),
    [
        pytest.param({"weights": {"maxStaleness": 2}}, lambda c: c.limits.max_staleness, 2, id="maxStaleness"),
        pytest.param({"weights": {"onStale": "Tag"}}, lambda c: c.limits.on_stale, "Tag", id="onStale"),
        pytest.param({"weights": {"keepVersions": 5}}, lambda c: c.limits.keep_versions, 5, id="keepVersions"),
        pytest.param({"stream": {"groups": ["b", "c"]}}, lambda c: c.groups, ("b", "c"), id="groups"),
        pytest.param({"collector": {"initRandomFrames": 70}}, lambda c: c.init_random_frames, 70, id="initRandomFrames"),
        pytest.param({"stream": {"claimIdleSeconds": 9}}, lambda c: c.limits.claim_idle_seconds, 9, id="claimIdleSeconds"),
    ],
)  # fmt: skip
async def test_each_edit_reaches_the_stream(servers, edit, read, expected):
    first = {"stream": {"groups": ["a", "b"]}, "collector": {"initRandomFrames": 100}}
    job, edited = make_job(**first), make_job(**{**first, **edit})
    async with streams_at(servers.start()) as streams:
        await streams.open(job)
        assert (await streams.look(job)).in_tune
        assert not (await streams.look(edited)).in_tune
        await streams.tune(edited)
        assert (await streams.look(edited)).in_tune
        progress = await streams._control(job).read_progress()
        assert read(progress.control) == expected
        assert {group.name for group in progress.groups} == set(edited.spec.stream.groups or ())


async def test_random_frames_that_were_made_stay_made_whatever_is_edited_when(servers):
    def job(random):
        return make_job(collector={"initRandomFrames": random})

    async with streams_at(servers.start()) as streams:
        await streams.open(job(100))
        client = streams._sessions[streams._reach(job(100))].client
        budget = JobKeys.of(job(100).ref).budget
        await client.execute_command("HSET", budget, "random_left", 20)  # 80 were made
        for edit, left in ((50, 0), (100, 20), (300, 220)):
            await streams.tune(job(edit))
            assert int(await client.execute_command("HGET", budget, "random_left")) == left


async def test_a_suspended_stream_can_be_reopened_and_a_finished_one_cannot(servers):
    job = make_job()
    async with streams_at(servers.start()) as streams:
        await streams.open(job)
        await streams.finish(job, EndMarker("suspended", "Suspended"))
        facts = await streams.look(job)
        assert (facts.is_paused_by_marker, facts.is_complete) == (True, False)
        await streams.reopen(job)
        assert (await streams.look(job)).end is None
        await streams.finish(job, EndMarker("failed", "Stalled", "no frames"))
        await streams.finish(job, EndMarker("finished"))
        await streams.reopen(job)
        assert (await streams.look(job)).end == EndMarker("failed", "Stalled", "no frames")


async def test_readers_of_a_deleted_job_are_told(servers):
    job, anew = make_job(redis={"keyTTLSecondsAfterFinished": 60}), make_job(metadata={"uid": str(uuid4())})
    port = servers.start()
    async with streams_at(port) as streams:
        await streams.open(job)
        await streams.look(job)
        with RolloutStream.connect(
            f"redis://127.0.0.1:{port}", job=f"{job.ref.namespace}/{job.ref.name}"
        ) as stream:
            await streams.forget(JobKey("rl", "a"))
            with pytest.raises(RolloutFailed, match="JobDeleted: the job was deleted"):
                await asyncio.to_thread(lambda: next(iter(stream.batches())))
        async with redis.asyncio.Redis(port=port) as client:
            assert 0 < await client.ttl(JobKeys.of(job.ref).control) <= 60

        await streams.open(anew)
        await streams.forget(JobKey("rl", "a"))  # not looked at yet: nothing is known of it
        assert (await streams.look(anew)).end is None


async def test_a_job_made_anew_ends_the_stream_of_the_former(servers):
    former, anew = make_job(), make_job(metadata={"uid": str(uuid4())})
    async with streams_at(servers.start()) as streams:
        for job in (former, anew):
            await streams.open(job)
            assert (await streams.look(job)).end is None
        assert (await streams.look(former)).end == EndMarker("failed", "JobDeleted", "the job was deleted")


@pytest.mark.parametrize("ends", [True, False], ids=["Complete", "keys deleted"])
async def test_what_is_over_is_not_ended_again(servers, ends):
    job, marker = make_job(), EndMarker("finished", "FramesReached")
    port = servers.start()
    async with streams_at(port) as streams:
        await streams.open(job)
        await streams.look(job)
        await (streams.finish(job, marker) if ends else streams.delete(job))
        await streams.forget(JobKey("rl", "a"))
        facts = await streams.look(job)
        assert facts.end == marker if ends else not facts.is_open


async def test_keys_are_kept_alive_while_the_job_runs_and_expire_after_its_end(servers):
    now = 0.0
    job = make_job(redis={"keyTTLSecondsAfterFinished": 400})
    key = JobKeys.of(job.ref).control
    async with streams_at(servers.start(), clock=lambda: now) as streams:
        await streams.open(job)
        client = streams._sessions[streams._reach(job)].client
        await streams.look(job)

        async def ttl():
            return await client.execute_command("TTL", key)

        async def shorten():
            for name in await client.execute_command("KEYS", "*"):
                await client.execute_command("EXPIRE", name, 200)

        await shorten()
        await streams.look(job)
        assert await ttl() <= 200
        now = 101.0
        await streams.look(job)
        assert await ttl() > 200
        await shorten()
        await streams.forget(JobKey("rl", "a"))
        await streams.look(job)
        assert await ttl() > 200
        await streams.finish(job, EndMarker("finished"))
        assert 0 < await ttl() <= 400


async def test_a_server_that_was_emptied_is_seen_as_not_open(servers):
    job = make_job()
    async with streams_at(servers.start()) as streams:
        await streams.open(job)
        client = streams._sessions[streams._reach(job)].client
        await client.execute_command("FLUSHALL")
        facts = await streams.look(job)
        assert (facts.is_open, facts.frames) == (False, 0)


async def test_probe_p_35_a_server_that_may_evict_is_refused_until_it_is_set_right(servers):
    port = servers.start(maxmemory_policy="allkeys-lru")
    async with streams_at(port) as streams:
        trouble = await streams.look(make_job())
        assert trouble.reason is Reason.EVICTION_POLICY
        assert "allkeys-lru" in trouble.message
        assert "noeviction" in trouble.message
        client = streams._sessions[streams._reach(make_job())].client
        await client.execute_command("CONFIG", "SET", "maxmemory-policy", "noeviction")
        assert isinstance(await streams.look(make_job()), StreamFacts)


async def test_probe_p_35_a_server_that_does_not_tell_needs_a_word_of_trust(servers):
    port = servers.start()
    async with redis.asyncio.Redis(host="127.0.0.1", port=port) as admin:
        await admin.execute_command("ACL", "SETUSER", "default", "-info", "-config")
    async with streams_at(port) as streams:
        trouble = await streams.look(make_job())
    assert (trouble.reason, trouble.status) == (Reason.EVICTION_POLICY, ConditionStatus.UNKNOWN)
    async with streams_at(port, settings=replace(SETTINGS, trust_unknown_eviction=True)) as streams:
        assert isinstance(await streams.look(make_job()), StreamFacts)


async def test_probe_p_54_a_wrong_password_is_said_without_it(servers):
    port = servers.start(requirepass="s3cr3t-probe-42")
    for password in (None, "s3cr3t-probe-43"):
        async with streams_at(port, password=password) as streams:
            trouble = await streams.look(make_job())
            assert trouble.reason is Reason.AUTHENTICATION_FAILED
            assert f"127.0.0.1:{port}" in trouble.message
            assert "s3cr3t" not in trouble.message + repr(streams._sessions)


async def test_a_server_that_is_not_there_is_said_with_its_address():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        async with streams_at(port) as streams:
            trouble = await streams.look(make_job())
    assert trouble.reason is Reason.UNREACHABLE
    assert f"127.0.0.1:{port}" in trouble.message


def chained(error, cause):
    """An error with its cause."""
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        pytest.param(StreamUnavailable("away"), Reason.UNREACHABLE, id="away"),
        pytest.param(StreamFull("no memory"), Reason.OUT_OF_MEMORY, id="out of memory"),
        pytest.param(
            chained(StreamUnavailable("x"), ssl.SSLError("bad certificate")), Reason.TLS_FAILED, id="tls"
        ),
        pytest.param(
            StreamUnavailable("Redis refuses the credentials"), Reason.AUTHENTICATION_FAILED, id="refused"
        ),
    ],
)
def test_troubles_have_reasons(error, reason):
    assert trouble_of(error) == StreamTrouble(reason, str(error))


def test_a_server_that_is_too_old_is_said():
    info = ServerInfo("redis", "5.0.1", "noeviction", 0, 0, True, False)
    assert trouble_of_server(info, trust_unknown_eviction=False).reason is Reason.UNSUPPORTED_SERVER
