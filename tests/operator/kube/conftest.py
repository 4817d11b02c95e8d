"""An API server in memory, the operator's way to it, and waiting for what must come, and for as long as it takes."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import threading
import time
import warnings

import pytest
from fake_api import FakeApi

from rollout_operator import program
from rollout_operator.kube import job_watch
from rollout_operator.kube.api_client import KubernetesApi
from rollout_operator.kube.api_errors import Patience

DEADLINE_S = 60.0
"""For whatever must come: it costs time only where it does not."""


@pytest.fixture
async def server(tmp_path, monkeypatch):
    """The server, reached through KUBECONFIG."""
    api = FakeApi(time.time)
    await api.start()
    path = tmp_path / "kubeconfig"
    path.write_text(api.kubeconfig())
    monkeypatch.setenv("KUBECONFIG", str(path))
    yield api
    await api.close()


@pytest.fixture
def bounded_ends():
    """Programs end within their own bounds; what one that is cut short leaves open is collected with its test."""


@pytest.hookimpl(
    wrapper=True, tryfirst=True
)  # after all others: logs hold tracebacks, which hold connections
def pytest_runtest_teardown(item):
    result = yield
    if "bounded_ends" in item.fixturenames:
        for thread in threading.enumerate():
            if thread.name == "job-watch":
                thread.join(20)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            for _ in range(3):  # what is collected may have held more
                gc.collect()
    return result


@pytest.fixture(autouse=True)
def patient_ends(request, monkeypatch):
    """Programs end in order, however long that takes, but for `bounded_ends`: one that is cut short leaves connections open,
    and whichever test runs when they are collected would be blamed.
    """
    if "bounded_ends" in request.fixturenames:
        return
    monkeypatch.setattr(job_watch, "IN_ORDER_S", DEADLINE_S)
    monkeypatch.setattr(job_watch, "STOP_PATIENCE_S", DEADLINE_S)
    monkeypatch.setattr(program, "CLOSE_S", DEADLINE_S)


@pytest.fixture
def patience():
    """How long a call is tried for: longer than this machine ever stands still. Tests that use it up have another."""
    return Patience(25.0)


@pytest.fixture
async def api(server, patience):
    """The operator's client of it."""
    calls = []
    async with KubernetesApi(
        on_call=lambda call, code: calls.append((call.verb, call.resource, code)), patience=patience
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
    """Wait until something holds."""

    async def wait(holds, what="it"):
        deadline = time.monotonic() + DEADLINE_S
        while not holds():
            assert time.monotonic() < deadline, f"{what} did not come"
            await asyncio.sleep(0.01)

    return wait


@pytest.fixture
async def running():
    """Run something beside the test, and end it with it."""
    tasks = []

    def start(work):
        task = asyncio.ensure_future(work)
        tasks.append(task)
        return task

    yield start
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=DEADLINE_S)


TICK_S = 0.05


class Stopwatch:
    """Seconds in which this process ran. That a busy machine let it stand still meanwhile is nobody's fault."""

    def __init__(self):
        self.seconds = 0.0

    async def run(self):
        last = time.monotonic()
        while True:
            await asyncio.sleep(TICK_S)
            now = time.monotonic()
            self.seconds += min(now - last, 2 * TICK_S)
            last = now


@pytest.fixture
async def stopwatch():
    """Begins with the test; read `seconds` before and after."""
    watch = Stopwatch()
    task = asyncio.create_task(watch.run())
    yield watch
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


@pytest.fixture
def sigterm():
    """A SIGTERM that comes after the program has ended, or to one that has not begun, ends no process of the test run."""
    before = signal.signal(signal.SIGTERM, lambda number, frame: None)
    yield signal.SIGTERM
    signal.signal(signal.SIGTERM, before)
