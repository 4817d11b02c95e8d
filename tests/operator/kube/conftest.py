"""An API server in memory, the operator's way to it, and waiting for what must come."""

from __future__ import annotations

import asyncio
import time

import pytest
from fake_api import FakeApi

from rollout_operator.kube.api_client import KubernetesApi
from rollout_operator.kube.api_errors import Patience


@pytest.fixture
async def server(tmp_path, monkeypatch):
    """The server, reached through KUBECONFIG."""
    api = FakeApi(time.time)
    await api.start()
    path = tmp_path / "kubeconfig"
    path.write_text(api.kubeconfig())
    monkeypatch.setenv("KUBECONFIG", str(path))
    yield api
    await api.stop()


@pytest.fixture
async def api(server):
    """The operator's client of it."""
    calls = []
    async with KubernetesApi(
        on_call=lambda call, code: calls.append((call.verb, call.resource, code)), patience=Patience(3.0)
    ) as client:
        client.seen = calls
        yield client


class Clock:
    """A clock that is moved by hand."""

    now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def until():
    """Wait until something holds, at most ten seconds."""

    async def wait(holds, what="it"):
        deadline = time.monotonic() + 10
        while not holds():
            assert time.monotonic() < deadline, f"{what} did not come"
            await asyncio.sleep(0.01)

    return wait


@pytest.fixture
def running():
    """Run something beside the test, and end it with it."""
    tasks = []

    def start(work):
        task = asyncio.ensure_future(work)
        tasks.append(task)
        return task

    yield start
    for task in tasks:
        task.cancel()
