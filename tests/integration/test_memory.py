"""Memory stays flat, in every process and in the server, however many frames go through.

A million frames by default; ten million with SOAK=1 (`make soak`).
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

SOAK = os.environ.get("SOAK") == "1"
TOTAL = 10_000_000 if SOAK else 1_000_000
WARM = 0.2
"""Of the frames: until then modules load, caches fill, and allocators find their size."""
ALLOWED_GROWTH = 12 * 2**20
"""Bytes that a process may grow after that. A leak of a byte a frame would show in the long run."""

pytestmark = [pytest.mark.timeout(1500 if SOAK else 900), pytest.mark.slow]

LEARNER = f"""
import pathlib
from rollout_stream import RolloutStream

frames, warm = 0, pathlib.Path(__file__).with_name("warm")
with RolloutStream.connect() as stream:
    for batch in stream.batches(group="learner"):
        assert batch.data["next", "reward"].numel() == batch.header.frames
        batch.ack()
        frames += batch.header.frames
        if frames >= {int(WARM * TOTAL)} and not warm.exists():
            warm.touch()
"""


POLICY = """
import torch


class Left(torch.nn.Module):
    def forward(self, observation):
        return torch.zeros(len(observation), dtype=torch.int64)


def make_policy(observation_spec, action_spec):
    return Left()
"""


def test_memory_is_flat(job_dir: Any, start_run: Any, until: Any) -> None:
    job_dir.write("learner.py", LEARNER)
    job_dir.write("policy.py", POLICY)
    spec = job_dir.manifest["spec"]
    spec["env"] = {
        "entrypoint": "rollout_worker.envs:GymEnv",
        "kwargs": {"env_name": "CartPole-v1"},
        "envsPerWorker": 32,
        "processes": 2,
    }
    # Random actions need no policy step: more frames per second, so more frames in the same time.
    spec["collector"] = {"framesPerBatch": 4096, "totalFrames": TOTAL, "initRandomFrames": TOTAL}
    # Where the learner is slower than the worker, what waits for it is in the server's memory: as much in the end as before.
    spec["stream"] = {"groups": ["learner"], "maxUnackedFrames": 10 * 4096}
    run = start_run("--learner", "learner.py")
    warm = job_dir.path / "warm"
    until(lambda: warm.exists() or run.process.poll() is not None, what="the first part of the frames")
    samples = sample_until_the_end(run)

    assert run.wait(150) == 0, run.stdout + run.stderr
    grown = {name: growth(series) for name, series in samples.items() if len(series) >= 10}
    assert {"worker", "child", "learner", "server", "run"} <= {name.split(" ")[0] for name in grown}
    assert all(bytes_ < ALLOWED_GROWTH for bytes_ in grown.values()), {
        name: f"{bytes_ / 2**20:.1f} MiB" for name, bytes_ in grown.items()
    }
    run.assert_nothing_is_left()


def sample_until_the_end(run: Any) -> dict[str, list[int]]:
    """Bytes that every process of the run holds, ten times a second, by what the process is."""
    samples: dict[str, list[int]] = defaultdict(list)
    while run.process.poll() is None:
        for pid in run.marked():
            with suppress(psutil.Error, OSError):
                samples[f"{kind_of(psutil.Process(pid), run)} {pid}"].append(held_bytes(pid))
        time.sleep(0.1)  # the interval of the samples, not a wait for something
    return samples


def held_bytes(pid: int) -> int:
    """Resident bytes but those of files: whose these are changes with the other processes that map the same library."""
    lines = (line.split() for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return sum(int(words[1]) * 1024 for words in lines if words[0] in ("RssAnon:", "RssShmem:"))


def kind_of(process: psutil.Process, run: Any) -> str:
    command = " ".join(process.cmdline())
    if process.pid == run.process.pid:
        return "run"
    if "valkey-server" in command or "redis-server" in command:
        return "server"
    if "learner.py" in command:
        return "learner"
    if "-m rollout_worker" in command and "launcher" not in command:
        return "worker"
    return "launcher" if "launcher" in command else "child"


def growth(series: list[int]) -> int:
    """How much the median of the last tenth is above the highest of the first tenth."""
    tenth = max(1, len(series) // 10)
    last = sorted(series[-tenth:])
    return last[len(last) // 2] - max(series[:tenth])


def test_growth_is_found() -> None:
    """The measure itself: a leak shows, and a plateau does not."""
    assert growth([10] * 20 + [100] * 80) == 90
    assert growth([100] * 5 + [10] * 95) == -90
    assert growth([100] * 100) == 0
    assert growth(list(range(0, 1000, 10))) > 700
