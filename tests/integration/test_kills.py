"""`kill -9` of workers, of their children and of the learner, at random frame counts: exact counts all the same.

Two rounds by default; twenty with SOAK=1 (`make soak`), as many as the promise in the README.
"""

from __future__ import annotations

import json
import os
import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from data_servers import DataServer
from process_ends import is_gone

from rollout_stream import RolloutStream

SOAK = os.environ.get("SOAK") == "1"
ROUNDS = 20 if SOAK else 3
TOTAL = 200_000 if SOAK else 30_000
PASSWORD = "kill-test-password"

pytestmark = [pytest.mark.timeout(3000 if SOAK else 900), pytest.mark.slow]

LEARNER = """
from rollout_stream import RolloutStream

with RolloutStream.connect() as stream:
    for number, batch in enumerate(stream.batches(group="learner", consumer="the-learner")):
        if number % 20 == 0:
            stream.weights.publish({"bias": batch.data["observation"][0, 0] * 0})
        batch.ack()
"""


@pytest.fixture
def server() -> Iterator[str]:
    """A server of the test's own, so that a second group can be read from outside of the run; its URL."""
    with DataServer("--maxmemory-policy", "noeviction") as started:
        yield started.url


class Killer:
    """Kills one process of the run at a time: a worker, a child of a worker, the learner, in turn."""

    def __init__(self, run: Any, until: Callable[..., Any], *, learner_file: str) -> None:
        self.run, self.until, self.learner_file = run, until, learner_file
        self.random = random.Random(5)
        self.kills: Counter[str] = Counter()

    def kill(self, what: str) -> None:
        """Kill one. Returns when what fails with it has ended: the next victim is no part of the same failure."""
        family = self.until(lambda: self._killed(what), what=f"the death of a {what}")
        self.until(
            lambda: all(is_gone(each.pid) for each in family),
            what=f"the end of all that failed with the {what}",
        )
        self.kills[what] += 1

    def _killed(self, what: str) -> list[psutil.Process] | None:
        """Those that fail with the one that was killed; None where there was none to kill."""
        if what == "learner":
            families = [[psutil.Process(pid)] for pid in self._living(self.learner_file)]
            victims = [family[0] for family in families]
        else:
            families = [family_of(pid) for pid in self._living("-m rollout_worker")]
            words = "spawn_main" if what == "child" else "-m rollout_worker"
            victims = [each for each in unique(families) if words in command_of(each)]
        try:
            victim = self.random.choice(victims) if victims else None
            if victim is None:
                return None
            victim.kill()
        except psutil.NoSuchProcess:
            return None
        return unique(family for family in families if victim in family)

    def _living(self, words: str) -> list[int]:
        return [pid for pid in self.run.marked(words) if psutil.pid_exists(pid)]


def family_of(pid: int) -> list[psutil.Process]:
    """A process and all below it, as many as are still there."""
    try:
        return [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def unique(families: Iterable[list[psutil.Process]]) -> list[psutil.Process]:
    return list(dict.fromkeys(each for family in families for each in family))


def command_of(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


@pytest.mark.probe("P-37")
@pytest.mark.probe("P-47")
def test_the_second_group_counts_exactly(job_dir: Any, start_run: Any, until: Any, server: str) -> None:
    job_dir.write("learner.py", LEARNER)
    spec = job_dir.manifest["spec"]
    spec["env"] |= {"envsPerWorker": 4, "processes": 2}
    spec["collector"] = {"framesPerBatch": 100, "totalFrames": TOTAL}
    spec["replicas"] = 2
    spec["stream"] = {"groups": ["learner", "audit"], "claimIdleSeconds": 1, "maxUnackedFrames": 1000}
    spec["failurePolicy"] = {"backoffLimit": 100, "backoffSeconds": 0}
    run = start_run("--learner", "learner.py", "--redis", server)
    killer = Killer(run, until, learner_file=str(job_dir.path / "learner.py"))
    chance = random.Random(11)
    at = sorted(chance.sample(range(1000, TOTAL - 2000), ROUNDS))
    victims = [("worker", "child", "learner")[n % 3] for n in range(ROUNDS)]

    frames, seen = 0, Counter()
    run.said(r"(gateway) +http")
    with RolloutStream.connect(server, job="default/tiny", wait_for_job_s=150) as stream:
        for batch in stream.batches(group="audit", prefetch=1):
            # The audit holds the stream back until the kill is done: at most `maxUnackedFrames` lie ahead of it.
            while at and frames >= at[0]:
                at.pop(0)
                killer.kill(victims[ROUNDS - len(at) - 1])
            frames += batch.header.frames
            assert batch.data.numel() == batch.header.frames
            seen[(batch.header.worker.slot, batch.header.sequence)] += 1
            batch.ack()

    assert run.wait(300) == 0, run.stdout + run.stderr
    assert frames == TOTAL
    assert set(seen.values()) == {1}
    _assert_restarts_are_told(run, killer.kills)
    run.assert_nothing_is_left()


def _assert_restarts_are_told(run: Any, kills: Counter[str]) -> None:
    status = json.loads(Path(run.run_dir, "job.json").read_text())["status"]
    worker_kills = kills["worker"] + kills["child"]
    assert sum(kills.values()) == ROUNDS
    assert sum(group["failures"] for group in status["workerGroups"]) == worker_kills
    assert re.search(rf"restarts +{worker_kills} of workers, {kills['learner']} of the learner", run.stdout)
