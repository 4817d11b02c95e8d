"""The asyncio twin says and understands the same as the synchronous classes."""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys

import pytest

from rollout_contract.errors import EpochConflict, JobNotFound, StateLost, StreamUnavailable
from rollout_contract.messages import EndKind
from rollout_contract.names import JobRef
from rollout_stream import Control, JobSettings, StreamLimits, aio


@pytest.fixture
async def control(rig):
    async with aio.AsyncSession.connect(rig.server.url) as session:
        yield aio.Control(session, rig.job)


async def test_a_job_lives_through_the_twin(rig, control, tools):
    settings = JobSettings(uid=rig.job.uid, seed=3, total_frames=10, groups=("learner",))
    assert await control.open_job(settings)
    assert not await control.open_job(settings)
    assert (await control.check_server()).problems == ()
    tools.append(rig.writer(), 5, returns=[2.0])
    ours, theirs = rig.control.read_progress(episodes=5), await control.read_progress(episodes=5)
    assert (ours.counters, ours.episodes, ours.control) == (theirs.counters, theirs.episodes, theirs.control)
    assert (await control.set_seed(9, expected_epoch=0)).epoch == 1
    with pytest.raises(EpochConflict):
        await control.set_seed(9, expected_epoch=5)
    assert await control.command(paused=True) == 1
    await control.set_limits(StreamLimits(max_unacked_frames=7))
    assert (await control.read_control()).limits.max_unacked_frames == 7
    assert await control.finish(EndKind.FINISHED, reason="Completed")
    await control.touch()
    await control.expire(100)
    await control.delete()
    with pytest.raises(StateLost):
        await control.read_progress()


async def test_jobs_are_found_by_name(rig, control):
    rig.open(None)
    assert (await aio.find_job(control.session, "tests", rig.job.name)).uid8 == rig.job.uid8
    with pytest.raises(JobNotFound):
        await aio.find_job(control.session, "tests", "no-such-job")


async def test_a_cancellation_is_never_lost(rig, control):
    """Whenever it comes: sending ends in a task of its own, and the driver's waiting for that may swallow it."""
    rig.open(None)
    turns = 0
    for turns in range(200):
        looking = asyncio.create_task(control.read_progress())
        for _ in range(turns):
            await asyncio.sleep(0)
        if not looking.cancel():
            break
        with pytest.raises(asyncio.CancelledError):
            await looking
    assert 2 < turns < 199, "no cancellation came between the start and the end of a call"
    assert (await control.read_progress()).control.seed == 7  # the session goes on


async def test_a_timeout_around_a_call_is_never_lost(rig, control):
    """It is a cancellation, too."""
    rig.open(None)
    for _ in range(2):  # the first opens a connection
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await control.read_progress()
        assert (await control.read_progress()).control.seed == 7


async def test_an_absent_server_is_an_error_within_the_patience(make_server):
    server = make_server(tcp=True)
    server.kill()
    async with aio.AsyncSession.connect(server.url, patience_s=0.3) as session:
        with pytest.raises(StreamUnavailable, match="cannot be reached"):
            await asyncio.wait_for(aio.Control(session, JobRef("a", "b", "12345678")).read_progress(), 60)


async def test_a_restart_is_survived(make_server, make_rig):
    server = make_server("--appendonly", "yes", "--appendfsync", "always")
    rig = make_rig(server).open(None)
    async with aio.AsyncSession.connect(server.url, patience_s=60) as session:
        control = aio.Control(session, rig.job)
        await control.read_progress()
        await asyncio.to_thread(server.kill)
        start = asyncio.create_task(asyncio.to_thread(server.start))
        assert (await control.read_progress()).counters.frames == 0
        await start


def test_the_twins_have_the_same_methods():
    def methods(cls):
        return {
            name: [p for p in inspect.signature(f).parameters]
            for name, f in vars(cls).items()
            if callable(f) and not name.startswith("_") and name not in ("connect", "close")
        }

    assert methods(Control) == methods(aio.Control)


@pytest.mark.parametrize(
    "module", ["rollout_stream", "rollout_stream.aio", "rollout_stream.control", "rollout_stream.reader"]
)
def test_importing_loads_no_torch(module):
    code = f"import sys, {module}; sys.exit(bool({{'torch', 'tensordict', 'numpy'}} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], timeout=150, check=False).returncode == 0
