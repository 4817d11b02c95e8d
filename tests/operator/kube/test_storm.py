"""The whole program in a storm: every kind of answer that an API server can give at the wrong moment, at random.

Whatever happened on the way: no slot ever has two workers, no pod's name is given twice, and in the end everything is as
the spec says.
"""

from __future__ import annotations

import asyncio
import json
import os
import random

import pytest
from fake_api import Fault
from operator_builders import BASE

from rollout_operator import program
from rollout_operator.environment import settings_from
from rollout_operator.kube import api_client

SEEDS = range(30 if os.environ.get("SOAK") == "1" else 3)
ROUNDS = 25
LATE_S = 0.7
"""An answer that comes so late is not waited for."""
PATHS = (
    ("POST", "/pods"),
    ("DELETE", "/pods"),
    ("PATCH", "/status"),
    ("PATCH", "/pods"),
    ("GET", "/pods"),
    ("POST", "/events"),
)
ANSWERS = (
    (409, {"reason": "Conflict"}),
    (409, {"reason": "AlreadyExists"}),
    (410, {"reason": "Expired"}),
    (422, {"message": "Pod is invalid: for now"}),
    (429, {}),
    (500, {"message": "etcdserver: request timed out"}),
    (503, "no endpoints available"),
    (504, {"reason": "Timeout"}),
)


class Slots:
    """What happened to the pods, event by event."""

    def __init__(self, server):
        self.server, self.living, self.names, self.seen = server, {}, {}, 0

    def check(self):
        for version, plural, kind, pod in list(self.server.log):
            if version <= self.seen or plural != "pods":
                continue
            self.seen = version
            metadata = pod["metadata"]
            assert self.names.setdefault(metadata["name"], metadata["uid"]) == metadata["uid"], metadata[
                "name"
            ]
            self.living.pop(metadata["uid"], None)
            if kind != "DELETED" and pod["status"]["phase"] not in {"Succeeded", "Failed"}:
                self.living[metadata["uid"]] = metadata["labels"]["rolloutjob.dev/worker-index"]
            living = list(self.living.values())
            assert len(living) == len(set(living)), f"{kind} {metadata['name']}: {living}"


@pytest.fixture
def settings(servers):
    environ = {
        "ROLLOUT_POD_NAMESPACE": "rl",
        "ROLLOUT_REDIS_URL": f"redis://127.0.0.1:{servers.start()}",
        "ROLLOUT_HTTP_HOST": "127.0.0.1",
        "ROLLOUT_HTTP_PORT": "0",
        "ROLLOUT_OBSERVE_SECONDS": "1",
        "ROLLOUT_POD_NAME": "operator",
        "ROLLOUT_POD_UID": "same",
    }
    return settings_from(environ)


@pytest.fixture
def impatience(monkeypatch):
    """Time-outs that fit a test."""
    monkeypatch.setattr(api_client, "ANSWER_TIMEOUT_S", 0.5)
    monkeypatch.setattr(api_client, "WATCH_SILENCE_S", 1.5)


def strike(server, chance):
    """One thing that goes wrong."""
    method, path = chance.choice(PATHS)
    status, body = chance.choice(ANSWERS)
    fault = Fault(method, path, status, body, times=chance.randint(1, 3), after=chance.random() < 0.3)
    if fault.after or chance.random() < 0.2:
        # An answer that is no longer waited for; what it answers may have been done.
        fault.hang_s = chance.choice([0.0, LATE_S])
    # As the real one: what is there already is refused as such, and never said of what is not.
    if (status, body) != ANSWERS[1]:
        server.faults.append(fault)
    chance.choice([server.drop_watches, server.end_watches, server.compact, lambda: None, lambda: None])()


@pytest.mark.timeout(400)
@pytest.mark.parametrize("seed", SEEDS)
async def test_storm(server, settings, until, running, impatience, seed):
    chance, slots = random.Random(seed), Slots(server)
    spec = {**BASE, "replicas": 3, "failurePolicy": {"backoffLimit": 1000, "backoffSeconds": 0}}
    server.create(
        "rolloutjobs",
        {
            "apiVersion": "rolloutjob.dev/v1alpha1",
            "kind": "RolloutJob",
            "metadata": {"namespace": "rl", "name": "a"},
            "spec": spec,
        },
    )
    task = running(program.Program(settings).run())
    for _ in range(ROUNDS):
        strike(server, chance)
        what = chance.random()
        if what < 0.3:
            size = chance.choice([0, 1, 3, 6])
            server.edit("rolloutjobs", "rl", "a", lambda d, size=size: edited(d, replicas=size))
        elif what < 0.4 and server.named("pods"):
            server.remove("pods", "rl", chance.choice(sorted(server.named("pods"))))
        elif what < 0.5:
            # A process takes longer to start than a call of its predecessor, whose connection is gone, can be under way.
            task.cancel()
            await asyncio.wait_for(asyncio.wait({task}), 60)
            await asyncio.sleep(LATE_S)
            task = running(program.Program(settings).run())
        elif what < 0.6:
            server.is_silent = not server.is_silent
        server.run_pods()
        slots.check()
        await asyncio.sleep(chance.uniform(0.0, 0.4))
        slots.check()
        assert not task.done(), task
    server.faults.clear()
    server.is_silent = False
    server.edit("rolloutjobs", "rl", "a", lambda d: edited(d, replicas=4))

    def is_well():
        server.run_pods()
        slots.check()
        status = server.named("rolloutjobs")["a"].get("status") or {}
        return status.get("readyWorkers") == "4/4" and len(server.named("pods")) == 4

    for _ in range(1000):  # the second look at jobs comes every minute
        if is_well():
            break
        await asyncio.sleep(0.1)
    status = server.named("rolloutjobs")["a"].get("status") or {}
    assert is_well(), json.dumps({"pods": sorted(server.named("pods")), **status})
    assert len(slots.living) == 4
    task.cancel()
    await asyncio.wait_for(asyncio.wait({task}), 60)


def edited(document, **spec):
    document["spec"] |= spec
    document["metadata"]["generation"] += 1
