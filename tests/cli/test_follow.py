"""How a run goes along with its job: what it does where a signal, or the server, does not come through."""

from __future__ import annotations

import asyncio
import signal
from types import SimpleNamespace

import pytest

from rollout_cli.local import run as local_run
from rollout_cli.local.outcome import Ended
from rollout_cli.local.run import _Run, _until_stopped
from rollout_cli.local.stopping import Stop, stopping
from rollout_contract.errors import StreamUnavailable

LONG_S = 600.0


class Watch:
    """Looks that show the given conditions, the last of them for ever; `on_look` is awaited within each."""

    def __init__(self, *conditions: str, on_look=None) -> None:
        self.conditions = list(conditions)
        self.looks = 0
        self._on_look = on_look

    async def look(self, document, **learner):
        self.looks += 1
        if self._on_look is not None:
            await self._on_look()
        shown = self.conditions[min(self.looks, len(self.conditions)) - 1]
        return SimpleNamespace(conditions=[SimpleNamespace(type=shown, status="True")])


class Control:
    """A job's control plane whose server is away for the first calls."""

    def __init__(self, away: int) -> None:
        self.calls = 0
        self._away = away

    async def finish(self, kind, *, reason):
        self.calls += 1
        if self.calls <= self._away:
            raise StreamUnavailable("the server is away")


@pytest.fixture
async def follow():
    """`follow(stop, watch, control=, learner=, task=)`: the run's way along a job, until it is over."""
    service = asyncio.create_task(asyncio.sleep(LONG_S))
    screen = SimpleNamespace(show=lambda view: None, tell=lambda text: None)

    def start(stop, watch, *, control=None, learner=None, task=None):
        run = _Run(None, None, {}, screen, stop)
        services = SimpleNamespace(tasks=(service,), job_file=SimpleNamespace(read=dict), control=control)
        run.work = lambda: run._follow(services, watch, learner, task)
        return _until_stopped(run, stop)

    yield start
    service.cancel()


async def test_a_run_ends_though_its_cancellation_was_lost(follow):
    waits, lost = asyncio.Event(), []

    async def lose_a_cancellation():
        if watch.looks == 2:
            waits.set()
            try:
                await asyncio.sleep(LONG_S)
            except asyncio.CancelledError as error:
                lost.append(error)

    watch = Watch("Ready", on_look=lose_a_cancellation)
    with stopping(Stop(within_s=LONG_S)) as stop:
        ending = asyncio.create_task(follow(stop, watch))
        await asyncio.wait_for(waits.wait(), 60)
        signal.raise_signal(signal.SIGTERM)
        assert await asyncio.wait_for(ending, 60) == Ended(143)
    assert (len(lost), watch.looks) == (1, 2)


async def test_a_learner_that_has_ended_completes_the_job_once_the_server_is_back(
    follow, monkeypatch, tmp_path
):
    monkeypatch.setattr(local_run, "LOOK_EVERY_S", 0.01)
    control = Control(away=2)
    learner = SimpleNamespace(
        log_file=tmp_path / "none", state="ended", history=SimpleNamespace(restarts=0), is_last=False
    )
    ended = asyncio.create_task(asyncio.sleep(0))
    await ended
    watch = Watch("Ready", "Ready", "Ready", "Ready", "Complete")
    with stopping(Stop(within_s=LONG_S)) as stop:
        done = await asyncio.wait_for(follow(stop, watch, control=control, learner=learner, task=ended), 60)
    assert (done, control.calls, watch.looks) == (Ended(0), 3, 5)
