"""The end: in order, with the Lease given back where that is possible, and within seconds whatever the API server does."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
import time
from dataclasses import replace
from functools import partial

import pytest
from fake_api import Fault
from operator_builders import BASE

from rollout_operator import program
from rollout_operator.ending import END_WITHIN_S, EndLimit
from rollout_operator.environment import settings_from
from rollout_operator.kube.job_watch import IN_ORDER_S, STOP_PATIENCE_S, JobWatch
from rollout_operator.kube.lease import DEFAULT_TIMES

pytestmark = pytest.mark.usefixtures("bounded_ends")

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
FOREVER = 10**9
STAGES_S = STOP_PATIENCE_S + DEFAULT_TIMES.release_s + 2 * program.CLOSE_S
"""The sum of the bounds of all stages."""
DEADLINE_S = 60.0
"""For ends whose own time is measured."""
REINITIALIZING = {
    "kind": "Status",
    "reason": "TooManyRequests",
    "message": "storage is (re)initializing",
    "code": 429,
}
LEASE, JOBS, OTHERS, ALL = "/leases/", "/rolloutjobs", r"^(?!.*/leases/)", "."


def everywhere(server, path, status, body="", headers=None, **more):
    """The same answer to every request of that path."""
    for method in METHODS:
        fault = Fault(method, path, status, body, headers or {}, times=FOREVER, **more)
        server.faults.append(fault)


async def hangs(server):
    everywhere(server, ALL, 200, hang_s=600)


async def hangs_but_for_the_lease(server):
    everywhere(server, OTHERS, 200, hang_s=600)


async def asks_for_patience(server):
    everywhere(server, ALL, 429, REINITIALIZING, {"Retry-After": "60"})


async def makes_storage_anew(server):
    """What a server says of a kind whose definition was deleted and made again."""
    everywhere(server, JOBS, 404, {"reason": "NotFound"})
    server.drop_watches()
    await asyncio.sleep(0.5)
    server.faults.clear()
    everywhere(server, JOBS, 429, REINITIALIZING, {"Retry-After": "1"})


async def is_overloaded(server):
    everywhere(server, ALL, 503, "no endpoints available")


async def refuses_the_lease(server):
    everywhere(server, LEASE, 403, {"reason": "Forbidden"})


async def no_longer_knows_us(server):
    everywhere(server, ALL, 401, {"reason": "Unauthorized"})


async def is_away(server):
    await server.stop()


async def is_well(server):
    """Watches that do not end by themselves."""


@pytest.fixture
def environ(servers):
    return {
        "ROLLOUT_POD_NAMESPACE": "rl",
        "ROLLOUT_REDIS_URL": f"redis://127.0.0.1:{servers.start()}",
        "ROLLOUT_HTTP_HOST": "127.0.0.1",
        "ROLLOUT_HTTP_PORT": "0",
        "ROLLOUT_OBSERVE_SECONDS": "1",
        "ROLLOUT_LOG_FORMAT": "text",
    }


def job(name="a", replicas=2):
    return {
        "apiVersion": "rolloutjob.dev/v1alpha1",
        "kind": "RolloutJob",
        "metadata": {"namespace": "rl", "name": name},
        "spec": {**BASE, "replicas": replicas},
    }


@pytest.fixture
def ended(sigterm, stopwatch):
    """End a program as its pod's end does: its exit code and how long its end took."""

    async def end(task):
        assert not task.done()
        started = stopwatch.seconds
        os.kill(os.getpid(), sigterm)
        code = await asyncio.wait_for(task, DEADLINE_S)
        return code, stopwatch.seconds - started

    return end


@pytest.fixture
def patient(monkeypatch):
    """For ends in which the Lease is given back: they do so at once, but this machine may stand still meanwhile."""
    times = replace(DEFAULT_TIMES, release_s=30.0, timeout_s=20.0)
    monkeypatch.setattr(program, "Lease", partial(program.Lease, times=times))


def holder(server):
    return (server.named("leases").get("rollout-operator") or {"spec": {}})["spec"].get("holderIdentity")


@pytest.mark.parametrize(
    ("trouble", "is_given_back"),
    [
        pytest.param(is_well, True, id="well"),
        pytest.param(hangs, False, id="hangs"),
        pytest.param(hangs_but_for_the_lease, True, id="hangs but for the lease"),
        pytest.param(asks_for_patience, False, id="429 with Retry-After"),
        pytest.param(makes_storage_anew, True, id="definition made anew"),
        pytest.param(is_overloaded, False, id="503"),
        pytest.param(refuses_the_lease, False, id="403 for the lease"),
        pytest.param(no_longer_knows_us, False, id="401"),
        pytest.param(is_away, False, id="away"),
    ],
)
async def test_the_end_at_work(server, environ, running, until, ended, request, trouble, is_given_back):
    if is_given_back:
        request.getfixturevalue("patient")
    task = running(program.run(settings_from(environ)))
    server.create("rolloutjobs", job())
    await until(lambda: len(server.named("pods")) == 2, "two pods")
    await trouble(server)
    server.edit("rolloutjobs", "rl", "a", lambda d: d["spec"].update(replicas=4))
    server.drop_watches()
    await asyncio.sleep(1.0)

    code, took_s = await ended(task)
    assert code == 0
    assert took_s < STAGES_S
    if not server.faults or is_given_back:
        assert took_s < STAGES_S - program.CLOSE_S
    assert (holder(server) == "") is is_given_back


async def test_the_end_where_redis_does_not_answer_either(server, environ, running, until, ended):
    met, talks = asyncio.Event(), []

    def say_nothing(reader, writer):
        talks.append(writer)
        met.set()

    mute = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    environ["ROLLOUT_REDIS_URL"] = f"redis://127.0.0.1:{mute.sockets[0].getsockname()[1]}"
    task = running(program.run(settings_from(environ)))
    server.create("rolloutjobs", job())
    await asyncio.wait_for(met.wait(), DEADLINE_S)
    await hangs(server)

    code, took_s = await ended(task)
    assert code == 0
    assert took_s < STAGES_S
    mute.close()
    for writer in talks:
        writer.transport.abort()


@pytest.mark.parametrize("path", [pytest.param("/openapi", id="crd"), pytest.param(LEASE, id="lease")])
@pytest.mark.parametrize("answer", [(429, {"Retry-After": "60"}, 0.0), (503, {}, 0.0), (200, {}, 600.0)])
async def test_the_end_before_the_work(server, environ, running, until, ended, path, answer):
    status, headers, hang_s = answer
    everywhere(server, path, status, {}, headers, hang_s=hang_s)
    task = running(program.run(settings_from(environ)))
    await until(lambda: server.count("GET", path), "the request")

    code, took_s = await ended(task)
    assert code == 0
    assert took_s < STAGES_S
    assert not server.named("leases")


async def test_a_lease_whose_grant_was_not_answered_is_given_back(
    server, environ, running, until, ended, patient
):
    """Taken on the server, and the end comes before the answer."""
    server.faults.append(Fault("POST", LEASE.rstrip("/"), 200, {}, after=True, late_s=600))
    task = running(program.run(settings_from(environ)))
    await until(lambda: holder(server), "the lease")

    assert (await ended(task))[0] == 0
    assert holder(server) == ""


async def test_an_answer_to_the_release_that_is_lost(server, environ, running, until, ended, patient):
    task = running(program.run(settings_from(environ)))
    await until(lambda: holder(server), "the lease")
    server.faults.append(Fault("GET", LEASE, 500, {"message": "etcdserver: leader changed"}, times=2))
    server.faults.append(Fault("PUT", LEASE, 504, {}, after=True))

    assert (await ended(task))[0] == 0
    assert holder(server) == ""


@pytest.fixture
async def process(server, environ):
    """Starts the program as a process of its own."""
    started = []

    async def start():
        found = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "rollout_operator",
            env={**os.environ, **environ},
            stderr=asyncio.subprocess.PIPE,
        )
        started.append(found)
        return found

    yield start
    for found in started:
        if found.returncode is None:
            found.kill()
        await found.communicate()


async def test_the_process_is_gone_though_nothing_is_answered(server, process, until):
    found = await process()
    await until(lambda: any("watch=" in path and "rolloutjobs" in path for _, path in server.calls), "work")
    await hangs(server)
    server.drop_watches()
    await asyncio.sleep(0.5)
    found.terminate()
    _, text = await asyncio.wait_for(found.communicate(), END_WITHIN_S + DEADLINE_S)

    # In time by its own clock: otherwise it would have been cut short, with another code.
    assert found.returncode == 0, text.decode()
    assert "runs out by itself" in text.decode()


async def test_a_request_to_end_during_the_imports(process):
    """Also as the first process of a container, where the system's own answer to SIGTERM is none."""
    found = await process()
    status = f"/proc/{found.pid}/status"

    def catches():
        with open(status) as lines:
            caught = next(line for line in lines if line.startswith("SigCgt"))
        return bool(int(caught.split()[1], 16) & (1 << (signal.SIGTERM - 1)))

    deadline = time.monotonic() + DEADLINE_S
    while not catches():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.002)
    found.terminate()
    assert await asyncio.wait_for(found.wait(), DEADLINE_S) == 0


def test_an_end_that_takes_too_long_is_cut_short(caplog):
    left = threading.Event()
    codes = []
    limit = EndLimit(within_s=0.05, code=1, leave=lambda code: (codes.append(code), left.set()))
    limit.start()
    limit.start()
    assert left.wait(DEADLINE_S)
    assert codes == [1]
    assert "cut short" in caplog.text


async def test_the_limit_starts_with_the_end_of_any_part(server, environ, running, until):
    begun = []
    task = running(program.run(settings_from(environ), on_end=lambda: begun.append(time.monotonic())))
    await until(lambda: holder(server), "the lease")
    assert not begun
    server.edit("leases", "rl", "rollout-operator", lambda d: d["spec"].update(holderIdentity="other"))

    assert await asyncio.wait_for(task, DEADLINE_S) == program.FAILED
    assert begun
    assert holder(server) == "other"


async def test_the_watch_of_jobs_starts_anew_after_an_error(
    server, running, until, caplog, monkeypatch, stopwatch
):
    """It must not wait, in its own end, for the request to end."""
    from rollout_operator.kube import job_watch

    make = job_watch.watch_settings

    def impatient():
        settings = make()
        settings.networking.error_backoffs = (0.05,)
        return settings

    monkeypatch.setattr(job_watch, "watch_settings", impatient)
    monkeypatch.setattr(job_watch, "FIRST_RESTART_S", 0.1)
    caplog.set_level(logging.WARNING, "rollout_operator")
    seen = []
    watch = JobWatch(
        lambda kind, document: seen.append(document["metadata"]["name"]),
        namespaces=("rl",),
        ready=lambda: asyncio.sleep(0),
    )
    server.faults.append(Fault("GET", JOBS, 500, {"message": "for now"}, times=4))
    task = running(watch.run())
    await until(lambda: watch.restarts, "another start")
    server.faults.clear()
    server.create("rolloutjobs", job())
    await until(lambda: "a" in seen, "the job")

    started = stopwatch.seconds
    task.cancel()
    await asyncio.wait({task}, timeout=DEADLINE_S)
    assert task.cancelled()
    assert stopwatch.seconds - started < 2 * IN_ORDER_S + 1


async def test_the_watch_of_jobs_waits_for_the_definition_before_each_start(
    server, running, until, stopwatch
):
    """Without one kopf would watch nothing, for good; and the wait ends with the request to end."""
    defined, asked = asyncio.Event(), []

    async def ready():
        asked.append(len(asked))
        await defined.wait()

    seen = []
    watch = JobWatch(
        lambda kind, document: seen.append(document["metadata"]["name"]), namespaces=("rl",), ready=ready
    )
    server.create("rolloutjobs", job())
    task = running(watch.run())
    await until(lambda: asked, "a look")
    assert not server.count("GET", JOBS)
    defined.set()
    await until(lambda: "a" in seen, "the job")

    defined.clear()
    watch.renew()
    await until(lambda: len(asked) == 2, "another look")
    listed = server.count("GET", JOBS)
    defined.set()
    await until(lambda: server.count("GET", JOBS) > listed, "another list")
    defined.clear()
    watch.renew()
    await until(lambda: len(asked) == 3, "the third look")

    started = stopwatch.seconds
    task.cancel()
    await asyncio.wait({task}, timeout=DEADLINE_S)
    assert task.cancelled()
    assert stopwatch.seconds - started < IN_ORDER_S
