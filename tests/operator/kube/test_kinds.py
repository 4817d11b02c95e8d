"""Situations of known kinds, over the whole program: secrets in whatever it says, ends between any two of its requests."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
import logging

import aiohttp
import pytest
from fake_api import Fault
from operator_builders import BASE

from rollout_operator import program
from rollout_operator.environment import settings_from

SECRET = "s3cr3t-probe-42"


def job(name="a", replicas=2, **spec):
    return {
        "apiVersion": "rolloutjob.dev/v1alpha1",
        "kind": "RolloutJob",
        "metadata": {"namespace": "rl", "name": name},
        "spec": {**BASE, "replicas": replicas, **spec},
    }


def environ_of(port, **more):
    return {
        "ROLLOUT_POD_NAMESPACE": "rl",
        "ROLLOUT_POD_NAME": "operator",
        "ROLLOUT_POD_UID": "same",
        "ROLLOUT_REDIS_URL": f"redis://127.0.0.1:{port}",
        "ROLLOUT_HTTP_HOST": "127.0.0.1",
        "ROLLOUT_HTTP_PORT": "0",
        "ROLLOUT_OBSERVE_SECONDS": "1",
        "ROLLOUT_PROGRESS_SECONDS": "1",
        **more,
    }


def status_of(server, name="a"):
    return (server.named("rolloutjobs").get(name) or {}).get("status") or {}


def redis_ready(server, name="a"):
    found = [c for c in status_of(server, name).get("conditions") or () if c["type"] == "RedisReady"]
    return (found[0]["status"], found[0]["reason"], found[0]["message"]) if found else None


# --- secrets


def in_a_variable(tmp_path, port):
    return {"ROLLOUT_REDIS_PASSWORD": SECRET}, {}


def in_a_file(tmp_path, port):
    (tmp_path / "password").write_text(SECRET + "\n")
    return {"ROLLOUT_REDIS_PASSWORD_FILE": str(tmp_path / "password")}, {}


def in_the_address(tmp_path, port):
    return {"ROLLOUT_REDIS_URL": f"redis://:{SECRET}@127.0.0.1:{port}"}, {}


def of_a_user(tmp_path, port):
    return {"ROLLOUT_REDIS_URL": f"redis://somebody:{SECRET}@127.0.0.1:{port}"}, {}


def of_the_jobs_own_server(tmp_path, port):
    path = tmp_path / "secrets" / "rl" / "own" / "pw"
    path.parent.mkdir(parents=True)
    path.write_text(SECRET)
    redis = {"host": "127.0.0.1", "port": port, "authSecretRef": {"name": "own", "key": "pw"}}
    return {"ROLLOUT_SECRETS_DIR": str(tmp_path / "secrets")}, {"redis": redis}


@pytest.mark.probe("P-54")
@pytest.mark.parametrize(
    ("given", "is_right"),
    [
        *((given, True) for given in (in_a_variable, in_a_file, in_the_address, of_the_jobs_own_server)),
        *((given, False) for given in (in_a_variable, in_a_file, in_the_address, of_the_jobs_own_server)),
        (of_a_user, False),
    ],
)
async def test_no_text_has_a_password(server, servers, running, until, tmp_path, caplog, given, is_right):
    caplog.set_level(logging.DEBUG)
    port = servers.start(requirepass=SECRET if is_right else "another")
    more, spec = given(tmp_path, port)
    server.create("rolloutjobs", job(**spec))
    made = program.Program(settings_from(environ_of(port, **more)))
    task = running(made.run())
    if is_right:
        await until(lambda: len(server.named("pods")) == 2, "pods")
    else:
        await until(lambda: redis_ready(server), "what the job says of its server")
        status, reason, message = redis_ready(server)
        assert status == "False"
        assert "auth" in reason.lower()
        assert f"127.0.0.1:{port}" in message
    pages = await read_pages(made)
    assert not task.done()
    task.cancel()
    await asyncio.wait_for(asyncio.wait({task}), 60)

    kinds = ("rolloutjobs", "pods", "events", "leases")
    objects = json.dumps({kind: server.named(kind) for kind in kinds})
    for where, text in {"objects": objects, "logs": caplog.text, "pages": pages}.items():
        assert SECRET not in text, where


async def read_pages(made):
    async with aiohttp.ClientSession() as session:
        texts = []
        for path in ("healthz", "readyz", "metrics"):
            async with session.get(f"http://127.0.0.1:{made.server.port}/{path}") as answer:
                texts.append(await answer.text())
    return "\n".join(texts)


@pytest.mark.probe("P-54")
@pytest.mark.parametrize("status", [401, 403, 500])
async def test_no_text_has_the_token_of_the_account(
    server, servers, running, until, tmp_path, monkeypatch, caplog, status
):
    caplog.set_level(logging.DEBUG)
    server.token = SECRET
    path = tmp_path / "with-token"
    path.write_text(server.kubeconfig())
    monkeypatch.setenv("KUBECONFIG", str(path))
    server.create("rolloutjobs", job())
    server.faults.append(Fault("POST", "/pods", status, {"message": "no"}, times=3))
    made = program.Program(settings_from(environ_of(servers.start())))
    task = running(made.run())
    await until(lambda: server.count("POST", "/pods") > 3, "requests")
    pages = await read_pages(made)
    task.cancel()
    await asyncio.wait_for(asyncio.wait({task}), 60)

    assert SECRET not in caplog.text
    assert SECRET not in pages
    assert SECRET not in json.dumps(server.named("rolloutjobs"))


# --- an end between any two requests


class Cut:
    """Ends the program right after (or instead of) its so-manieth write."""

    def __init__(self, server, at, *, is_done):
        self.server, self.left, self.is_done = server, at, is_done
        self.reached = asyncio.Event()
        self._serve, server._serve = server._serve, self.serve

    async def serve(self, request):
        if request.method == "GET" or "/leases" in request.path or self.reached.is_set():
            return await self._serve(request)
        self.left -= 1
        if self.left >= 0:
            return await self._serve(request)
        if self.is_done:
            await self._serve(request)
        self.reached.set()
        await asyncio.sleep(60)  # its answer comes to nobody
        return None

    def mend(self):
        self.server._serve = self._serve


WRITES = 10
"""More than a job of four workers takes until its first status."""
FEWEST = 6
"""So many it takes in any case; whether more come within `ENOUGH_S` depends on the machine."""
ENOUGH_S = 3.0


@pytest.mark.probe("P-45")
@pytest.mark.parametrize("is_done", [True, False], ids=["answer lost", "not done"])
@pytest.mark.parametrize("at", range(WRITES))
async def test_an_end_after_any_write(server, servers, running, until, at, is_done):
    environ = environ_of(servers.start())
    cut = Cut(server, at, is_done=is_done)
    server.create("rolloutjobs", job(replicas=4))
    task = running(program.Program(settings_from(environ)).run())
    if at < FEWEST:
        await until(cut.reached.is_set, "that write")
    else:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(cut.reached.wait(), ENOUGH_S)
    task.cancel()
    await asyncio.wait_for(asyncio.wait({task}), 60)
    cut.mend()
    before = {pod["metadata"]["uid"] for pod in server.named("pods").values()}

    task = running(program.Program(settings_from(environ)).run())
    await until(lambda: len(server.named("pods")) == 4, "four pods")
    server.run_pods()
    await until(lambda: status_of(server).get("readyWorkers") == "4/4", "ready workers")
    pods = list(server.named("pods").values())
    assert sorted(pod["metadata"]["labels"]["rolloutjob.dev/worker-index"] for pod in pods) == list("0123")
    assert before <= {pod["metadata"]["uid"] for pod in pods}
    assert status_of(server)["operator"] == "rl/rollout-operator"
    assert status_of(server).get("lastFailure") is None
    warnings = [e["note"] for e in server.named("events").values() if e["type"] == "Warning"]
    assert warnings == []


@pytest.mark.probe("P-46")
async def test_a_definition_that_lacks_what_tells_whose_a_job_is(server, servers, running, until):
    """It would be dropped in silence, and every operator would take the job."""
    server.schema = copy.deepcopy(server.schema) | {"description": "of a version before"}
    del server.schema["properties"]["status"]["properties"]["operator"]
    server.create("rolloutjobs", job())
    made = program.Program(settings_from(environ_of(servers.start())))
    running(made.run())
    await until(
        lambda: any("status.operator" in text for text in made.health.problems(made.health.ready)), "its word"
    )
    assert not [path for method, path in server.calls if method != "GET"]
