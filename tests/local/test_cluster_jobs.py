"""Whole jobs on the local cluster: the real loop, a real server, workers as processes (without torch)."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from contextlib import asynccontextmanager
from pathlib import Path

from rollout_cli.local.cluster import REDIS_SECRET, LocalCluster
from rollout_cli.local.job_file import JobFile
from rollout_contract.messages import EndKind
from rollout_contract.podenv import HealthAddress, StreamAddress
from rollout_contract.spec import parse_manifest
from rollout_contract.status import ConditionType, is_true
from rollout_operator import reconcile
from rollout_operator.redis_streams import RedisStreams
from rollout_operator.settings import OperatorSettings
from rollout_stream.aio import AsyncSession, Control
from rollout_stream.connection import ServerAddress

DEADLINE_S = 60.0
TOY = str(Path(__file__).parent / "support" / "toy_worker.py")


def is_running(pid):
    """Whether there is a process of this number."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


class Run:
    """A job that runs."""

    def __init__(self, job_file, cluster, control):
        self.job_file = job_file
        self.cluster = cluster
        self.control = control

    @property
    def job(self):
        return parse_manifest(self.job_file.read())

    @property
    def status(self):
        return self.job.status

    def is_true(self, type_):
        return is_true(self.status, type_)

    def edit(self, **spec):
        self.job_file.update(spec={**self.job_file.read()["spec"], **spec})

    async def pods(self):
        job = self.job
        return sorted(await self.cluster.list_pods(None, job_uid=job.metadata.uid), key=lambda pod: pod.name)

    async def until(self, condition, what):
        deadline = time.monotonic() + DEADLINE_S
        while True:
            found = condition()
            if asyncio.iscoroutine(found):
                found = await found
            if found:
                return found
            assert time.monotonic() < deadline, f"{what}: not within {DEADLINE_S:g} s; {self.status}"
            await asyncio.sleep(0.02)

    async def progress(self):
        return await self.control.read_progress()


@asynccontextmanager
async def running(tmp_path, data_server, *, work_dir=None, **spec):
    path, password = data_server
    address = ServerAddress(socket_path=path, password=password)
    job_file = JobFile(tmp_path)
    document = job_file.create(
        {
            "apiVersion": "rolloutjob.dev/v1alpha1",
            "kind": "RolloutJob",
            "metadata": {"name": "toy"},
            "spec": {
                "env": {"entrypoint": "a:b"},
                "policy": {"entrypoint": "a:b"},
                "collector": {"framesPerBatch": 10, "totalFrames": 2000},
                "stream": {"maxUnackedFrames": 1_000_000},
            }
            | spec,
        }
    )
    settings = OperatorSettings(
        redis=StreamAddress(host="unused", port=1),
        redis_secret=REDIS_SECRET,
        worker_command=(sys.executable, TOY),
        health=HealthAddress(host="127.0.0.1", port=0),
        grace_s=5,
        observe_interval_s=0.2,
        progress_interval_s=1.0,
        progress_change=0.0,
    )
    environ = {**os.environ, "TOY_SOCKET": path}
    streams = RedisStreams(settings, reach=lambda job: address)
    session = AsyncSession(address)
    cluster = LocalCluster(job_file, tmp_path, password=password, environ=environ)
    task = asyncio.create_task(reconcile.run(reconcile.Reconciler(cluster, streams, settings)))
    try:
        yield Run(job_file, cluster, Control(session, parse_manifest(document).ref))
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await cluster.close(grace_s=0)
        await streams.close()
        await session.close()


async def test_a_job_runs_to_its_end(tmp_path, data_server):
    async with running(tmp_path, data_server, replicas=2) as run:
        await run.until(lambda: run.is_true(ConditionType.COMPLETE), "completion")

        async def is_over():
            return not await run.pods() and (await run.progress()).control.ended == "finished"

        await run.until(is_over, "the end of pods and stream")
        status = run.status
        assert (status.progress.frames, status.progress.percent, status.state) == (2000, 100, "Complete")
        assert [g.failures for g in status.worker_groups] == [0]
        assert (await run.progress()).counters.frames == 2000
        assert sorted(p.name for p in (tmp_path / "logs").iterdir()) == [
            "toy-default-0-0.log",
            "toy-default-1-0.log",
        ]


async def test_killed_workers_are_replaced_and_the_total_is_met_exactly(tmp_path, data_server):
    policy = {"backoffLimit": 100, "backoffSeconds": 0}
    go_on = tmp_path / "go-on"
    env = {"entrypoint": "a:b", "kwargs": {"pause_s": 0.02, "batches": 3, "then_until": str(go_on)}}
    async with running(tmp_path, data_server, replicas=2, failurePolicy=policy, env=env) as run:
        killed = set()
        while len(killed) < 6:

            async def fresh():
                if run.status.stream is None:
                    return None
                beats = (await run.progress()).workers
                return [b for b in beats if b.pid and b.pid not in killed and is_running(b.pid)]

            beat = (await run.until(fresh, "a worker to kill"))[0]
            killed.add(beat.pid)
            os.kill(beat.pid, signal.SIGKILL)
        go_on.touch()
        await run.until(lambda: run.is_true(ConditionType.COMPLETE), "completion")
        assert (await run.progress()).counters.frames == 2000
        assert run.status.worker_groups[0].failures == 6
        assert run.status.last_failure.exit_code == 137
        assert "SIGKILL" in run.status.last_failure.message


async def test_a_configuration_error_fails_the_job_at_once(tmp_path, data_server):
    env = {"entrypoint": "a:b", "kwargs": {"exit_code": 64, "for_attempts": 1}}
    async with running(tmp_path, data_server, env=env) as run:
        await run.until(lambda: run.is_true(ConditionType.FAILED), "failure")
        failed = next(c for c in run.status.conditions if c.type == "Failed")
        assert failed.reason == "ConfigurationError"
        assert "worker default-0 attempt 0: exit code 64: ToyError: asked to fail with 64" in failed.message

        async def is_told():
            return (await run.progress()).control.ended == "failed"

        await run.until(is_told, "the end marker")
        (pod,) = await run.pods()
        assert (pod.exit_code, run.status.worker_groups[0].failures) == (64, 1)


async def test_failures_over_the_limit_fail_the_job(tmp_path, data_server):
    env = {"entrypoint": "a:b", "kwargs": {"exit_code": 1, "for_attempts": 99, "after_batches": 2}}
    policy = {"backoffLimit": 2, "backoffSeconds": 0}
    async with running(tmp_path, data_server, env=env, failurePolicy=policy) as run:
        await run.until(lambda: run.is_true(ConditionType.FAILED), "failure")
        failed = next(c for c in run.status.conditions if c.type == "Failed")
        assert failed.reason == "BackoffLimitExceeded"
        assert failed.message.startswith(
            "3 worker failures, backoffLimit is 2; the last: worker default-0 attempt 2"
        )
        progress = await run.progress()
        assert progress.counters.frames == 60


async def test_scaling_while_it_runs(tmp_path, data_server):
    env = {"entrypoint": "a:b", "kwargs": {"pause_s": 0.05}}
    collector = {"framesPerBatch": 10}
    async with running(tmp_path, data_server, env=env, collector=collector) as run:

        async def ready():
            return len([p for p in await run.pods() if p.ready])

        async def has(count):
            return await ready() == count and len(await run.pods()) == count

        await run.until(lambda: has(1), "one worker")
        run.edit(replicas=3)
        await run.until(lambda: has(3), "three workers")
        run.edit(replicas=1)
        await run.until(lambda: has(1), "one worker again")

        async def is_released():
            progress = await run.progress()
            (pod,) = await run.pods()
            return set(progress.reservations) <= {pod.slot}

        await run.until(is_released, "the others' reservations to come back")
        await run.until(lambda: run.status.ready_workers == "1/1", "the status")
        assert run.status.worker_groups[0].failures == 0
        await run.control.finish(EndKind.FINISHED)
        await run.until(lambda: run.is_true(ConditionType.COMPLETE), "completion by request")


async def test_suspend_and_resume(tmp_path, data_server):
    go_on = tmp_path / "go-on"
    env = {"entrypoint": "a:b", "kwargs": {"pause_s": 0.02, "batches": 3, "then_until": str(go_on)}}
    async with running(tmp_path, data_server, env=env, replicas=2) as run:

        async def frames():
            return run.status.stream is not None and (await run.progress()).counters.frames > 50

        await run.until(frames, "some frames")
        run.edit(suspend=True)
        await run.until(lambda: run.is_true(ConditionType.SUSPENDED), "suspension")
        assert await run.pods() == []
        before = (await run.progress()).counters.frames
        assert (await run.progress()).control.ended == "suspended"
        assert run.status.start_time is None
        go_on.touch()
        run.edit(suspend=False)
        await run.until(lambda: run.is_true(ConditionType.COMPLETE), "completion")
        assert before < (await run.progress()).counters.frames == 2000
        assert max((await run.progress()).attempts.values()) == 1
        assert run.status.worker_groups[0].failures == 0


async def test_a_job_that_stands_still_fails_and_its_readers_are_told(tmp_path, data_server):
    env = {"entrypoint": "a:b", "kwargs": {"silent": True}}
    async with running(tmp_path, data_server, env=env, stalledDeadlineSeconds=2) as run:
        await run.until(lambda: run.is_true(ConditionType.FAILED), "failure")
        assert run.is_true(ConditionType.STALLED)

        async def is_told():
            end = (await run.progress()).control.end
            return end is not None and end.reason == "StalledDeadlineExceeded"

        await run.until(is_told, "the end marker")


async def test_state_that_is_lost_fails_the_job(tmp_path, data_server):
    env = {"entrypoint": "a:b", "kwargs": {"pause_s": 0.02}}
    endless = {"framesPerBatch": 10}
    policy = {"backoffLimit": 99}
    async with running(tmp_path, data_server, env=env, collector=endless, failurePolicy=policy) as run:
        await run.until(lambda: run.status.progress and run.status.progress.frames > 0, "some frames")
        await run.control.session.client.execute_command("FLUSHALL")
        await run.until(lambda: run.is_true(ConditionType.FAILED), "failure")
        failed = next(c for c in run.status.conditions if c.type == "Failed")
        assert failed.reason == "StateLost"
        assert await run.control.session.client.execute_command("DBSIZE") == 0
