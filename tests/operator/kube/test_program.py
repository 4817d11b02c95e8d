"""The whole program over a server in memory and a real Redis: start, work, probes, and the order of the end."""

from __future__ import annotations

import asyncio
import os
import signal

import aiohttp
import pytest
from fake_api import Fault
from operator_builders import BASE

from rollout_contract.crd import crd_document
from rollout_operator import program
from rollout_operator.environment import settings_from
from rollout_operator.health import Health, HealthServer, not_older_than
from rollout_operator.metrics import state_of


@pytest.fixture
def settings(servers):
    port = servers.start()
    return settings_from(
        {
            "ROLLOUT_POD_NAMESPACE": "rl",
            "ROLLOUT_REDIS_URL": f"redis://127.0.0.1:{port}",
            "ROLLOUT_HTTP_HOST": "127.0.0.1",
            "ROLLOUT_HTTP_PORT": "0",
        }
    )


@pytest.fixture
def definition(server, request):
    """The schema of the definition; a test takes it away before the program starts."""
    server.schema = getattr(request, "param", server.schema)


@pytest.fixture
async def started(settings, definition, running, until, monkeypatch, sigterm):
    """The program and its port."""
    made = []

    class Noted(program.Program):
        def __init__(self, *args, **more):
            super().__init__(*args, **more)
            made.append(self)

    monkeypatch.setattr(program, "Program", Noted)
    task = running(program.run(settings))
    await until(lambda: made, "the program")
    return made[0], task


def job(replicas=2):
    spec = {**BASE, "replicas": replicas}
    return {
        "apiVersion": "rolloutjob.dev/v1alpha1",
        "kind": "RolloutJob",
        "metadata": {"namespace": "rl", "name": "a"},
        "spec": spec,
    }


async def get(started, path):
    """Status and text of a page."""
    server = started[0].server
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{server.port}/{path}") as answer,
    ):
        return answer.status, await answer.text()


async def end(task):
    os.kill(os.getpid(), signal.SIGTERM)
    return await asyncio.wait_for(task, 60)


async def test_from_start_to_end(server, started, until):
    server.create("rolloutjobs", job())
    await until(lambda: len(server.named("pods")) == 2, "two pods")
    server.run_pods()
    status = lambda: server.named("rolloutjobs")["a"].get("status") or {}  # noqa: E731
    await until(lambda: status().get("readyWorkers") == "2/2", "ready workers")
    assert (await get(started, "readyz"))[0] == 200
    assert (await get(started, "healthz"))[0] == 200
    text = (await get(started, "metrics"))[1]
    assert 'rollout_desired_workers{group="default",job="a",namespace="rl"} 2.0' in text
    assert 'rollout_pods{state="ready"} 2.0' in text
    assert 'rollout_api_calls_total{code="201",resource="pods",verb="create"} 2.0' in text
    assert "rollout_leader 1.0" in text

    assert await end(started[1]) == 0
    writes = [(method, path) for method, path in server.calls if method != "GET"]
    assert writes[-1][0] == "PUT"
    assert "/leases/" in writes[-1][1]
    assert server.named("leases")["rollout-operator"]["spec"]["holderIdentity"] == ""


@pytest.mark.parametrize("definition", [None], ids=["no definition"], indirect=True)
async def test_a_stalled_start_says_why_and_writes_nothing(server, started, until):
    server.create("rolloutjobs", job())
    await until(lambda: server.count("GET", "/openapi"), "a look at the CRD")
    code, text = await get(started, "readyz")
    assert code == 503
    assert "not installed" in text or "not been looked at" in text
    assert (await get(started, "healthz"))[0] == 200
    assert not [method for method, _ in server.calls if method != "GET"]

    server.schema = crd_document()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    await until(lambda: len(server.named("pods")) == 2, "two pods")
    assert await end(started[1]) == 0


async def test_a_lease_that_is_lost_ends_the_program(server, started, until, caplog):
    await until(lambda: "rollout-operator" in server.named("leases"), "the lease")
    server.edit("leases", "rl", "rollout-operator", lambda d: d["spec"].update(holderIdentity="other"))

    assert await asyncio.wait_for(started[1], 60) == program.FAILED
    assert "now held by other" in caplog.text


async def test_a_server_that_fails_now_and_then(server, started, until):
    """500, 409, 429, lost answers: in the end the same pods, each once."""
    for number, (method, path, after) in enumerate(
        [
            ("POST", "/pods", True),
            ("POST", "/pods", False),
            ("PATCH", "/status", True),
            ("PATCH", "/status", False),
        ]
    ):
        server.faults.append(Fault(method, path, (500, 429, 503, 504)[number], {}, times=2, after=after))
    server.faults.append(Fault("PATCH", "/status", 409, {"reason": "Conflict"}, times=2))
    server.create("rolloutjobs", job(5))

    await until(lambda: len(server.named("pods")) == 5, "five pods")
    server.run_pods()
    status = lambda: server.named("rolloutjobs")["a"].get("status") or {}  # noqa: E731
    await until(lambda: status().get("readyWorkers") == "5/5", "ready workers")
    assert await end(started[1]) == 0


async def test_probes_of_what_is_old():
    age = [0.0]
    health = Health()
    health.alive.append(not_older_than("the queue is stuck", lambda: age[0], 120))
    health.ready.append(lambda: "")
    server = HealthServer(health, host="127.0.0.1", port=0)
    await server.start()
    try:
        assert await get((type("P", (), {"server": server}), None), "healthz") == (200, "ok\n")
        age[0] = 130.0
        found = await get((type("P", (), {"server": server}), None), "readyz")
        assert found == (503, "the queue is stuck for 130 s (limit 120)\n")
    finally:
        await server.close()


@pytest.mark.parametrize(
    ("more", "state"),
    [
        pytest.param({"state": "pending"}, "pending", id="pending"),
        pytest.param({"state": "starting"}, "starting", id="starting"),
        pytest.param({}, "ready", id="ready"),
        pytest.param({"deleted_ago": 1.0}, "ending", id="ending"),
        pytest.param({"code": 0}, "succeeded", id="succeeded"),
        pytest.param({"code": 3}, "failed", id="failed"),
    ],
)
def test_states_of_pods(more, state):
    from operator_builders import make_pod

    assert state_of(make_pod(0, **more)) == state


def test_a_wrong_environment_is_told(monkeypatch, capsys):
    for name in [name for name in os.environ if name.startswith("ROLLOUT_")]:
        monkeypatch.delenv(name)

    assert program.main() == 64
    assert "ROLLOUT_REDIS_URL" in capsys.readouterr().err
