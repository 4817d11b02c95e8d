"""Heartbeats beside the loop: the last one says how the worker ended, whatever was on its way by then."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from rollout_contract.messages import Heartbeat, WorkerState
from rollout_worker import heartbeats
from rollout_worker.heartbeats import Pulse
from rollout_worker.standing import Standing

DOCUMENT: Any = SimpleNamespace(group="cpu", index=0, attempt=0)


class SlowWriter:
    """Stores records; the first one takes long."""

    server_time = 0.0
    next_sequence = 1

    def __init__(self) -> None:
        self.has_begun = threading.Event()
        self.stored: list[str] = []

    def heartbeat(self, record: Heartbeat) -> None:
        is_first = not self.has_begun.is_set()
        self.has_begun.set()
        if is_first:
            time.sleep(0.3)
        self.stored.append(record.state)


def test_no_older_heartbeat_comes_after_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeats, "HEARTBEAT_S", 0.0)
    writer: Any = SlowWriter()
    standing = Standing(state=WorkerState.COLLECTING)
    pulse = Pulse(DOCUMENT, node="", writer=writer)
    with pulse.kept(lambda: standing):
        assert writer.has_begun.wait(60)
        standing.state = WorkerState.DRAINING
    assert writer.stored[0] == WorkerState.COLLECTING
    assert writer.stored[-1] == WorkerState.DRAINING
