"""Whole local runs for tests: a directory with a small job of one's own code, and a run as a user starts it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from process_ends import as_from_a_terminal

ENVIRONMENT = '''
import os, signal, time
import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete


class Counting(gym.Env):
    """Observation: [steps in the episode, episodes]. Reward 1; an episode has `length` steps. `fault` comes in step `at`."""

    observation_space = Box(-np.inf, np.inf, shape=(2,), dtype=np.float32)
    action_space = Discrete(2)

    def __init__(self, length=5, fault="", at=0, sleep_s=0.0):
        self.length, self.fault, self.at, self.sleep_s = length, fault, at, sleep_s
        self.episodes, self.total = -1, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps, self.episodes = 0, self.episodes + 1
        return self.observe(), {}

    def step(self, action):
        self.steps, self.total = self.steps + 1, self.total + 1
        time.sleep(self.sleep_s)
        if self.fault and self.total == self.at:
            if self.fault == "raise":
                raise ValueError("the pole is made of glass")
            if self.fault == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
        return self.observe(), 1.0, self.steps >= self.length, False, {}

    def observe(self):
        return np.array([self.steps, self.episodes], dtype=np.float32)
'''

POLICY = """
import torch


class Zero(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.bias = torch.nn.Parameter(torch.zeros(2))

    def forward(self, observation):
        return (observation + self.bias)[..., 0].long() * 0


def make_policy(observation_spec, action_spec):
    return Zero()
"""

READER = """
import contextlib, json, os, pathlib, time
from rollout_stream import RolloutStream

frames, seen = 0, []
hold = pathlib.Path(__file__).with_name("hold")  # after as many frames as it says read on only once it is gone
most = None
with contextlib.suppress(FileNotFoundError):
    most = int(hold.read_text())
for batch in RolloutStream.connect().batches(group="learner"):
    with batch:
        frames += batch.header.frames
        seen.append([str(batch.header.worker), batch.header.sequence, int(batch.data.numel())])
    if most is not None and frames >= most and hold.exists():
        print("holds after", frames, flush=True)
        while hold.exists():
            time.sleep(0.02)
pathlib.Path(os.environ["ROLLOUT_RUN_DIR"], "seen.json").write_text(json.dumps({"frames": frames, "seen": seen}))
print("read", frames)
"""


def wait_until(
    condition: Callable[[], Any], *, deadline_s: float = 120.0, what: str = "the condition"
) -> Any:
    """The first true value of `condition`."""
    end = time.monotonic() + deadline_s
    while not (value := condition()):
        assert time.monotonic() < end, f"{what} did not come true within {deadline_s} s"
        time.sleep(0.05)
    return value


def unused_shared_memory() -> set[str]:
    """Files in /dev/shm that no process uses: somebody has left them there. Others' tests use some at the same time."""
    there = {f"/dev/shm/{name}" for name in os.listdir("/dev/shm")}
    if not there:
        return there
    used: set[str] = set()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it may end while it is looked at
            used.update(found for found in there if found in (process / "maps").read_text())
            used.update(os.readlink(link) for link in (process / "fd").iterdir())
    return there - used


class JobDir:
    """A directory with a job and its code."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.manifest: dict[str, Any] = {
            "apiVersion": "rolloutjob.dev/v1alpha1",
            "kind": "RolloutJob",
            "metadata": {"name": "tiny"},
            "spec": {
                "env": {"entrypoint": "counting:Counting", "kwargs": {}, "envsPerWorker": 2, "processes": 1},
                "policy": {"entrypoint": "policy:make_policy"},
                "collector": {"framesPerBatch": 20, "totalFrames": 100},
                "seed": 1,
                "stream": {"groups": ["learner"]},
                "failurePolicy": {"backoffLimit": 0, "backoffSeconds": 0},
            },
        }
        self.write("counting.py", ENVIRONMENT)
        self.write("policy.py", POLICY)
        self.write("reader.py", READER)

    def hold(self, frames: int, *, max_unacked: int) -> Path:
        """The reader stops after so many frames until this file is gone; the worker stops so many later, the job goes on."""
        self.manifest["spec"]["stream"]["maxUnackedFrames"] = max_unacked
        return self.write("hold", str(frames))

    def write(self, name: str, text: str) -> Path:
        """A file beside the manifest."""
        (self.path / name).write_text(text)
        return self.path / name


class LiveRun:
    """A `rolloutctl run` in a process of its own; every process that descends from it carries a mark."""

    def __init__(self, directory: JobDir, *arguments: str, stdout: int | None = None) -> None:
        """`stdout`: a descriptor, instead of the file that is read here."""
        self.mark = uuid.uuid4().hex
        self.directory = directory
        directory.write("job.yaml", yaml.safe_dump(directory.manifest))
        self.out, self.err = directory.path / f"out-{self.mark}", directory.path / f"err-{self.mark}"
        self.shm_before = unused_shared_memory()
        with self.out.open("w") as out, self.err.open("w") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "rollout_cli", "run", "job.yaml", *arguments],
                cwd=directory.path,
                stdout=out if stdout is None else stdout,
                stderr=err,
                env={**os.environ, "ROLLOUT_TEST_MARK": self.mark},
                preexec_fn=as_from_a_terminal,
            )

    @property
    def stdout(self) -> str:
        """What it printed so far."""
        return self.out.read_text()

    @property
    def stderr(self) -> str:
        """What it complained about so far."""
        return self.err.read_text()

    @property
    def run_dir(self) -> Path:
        """Where the run keeps its things."""
        return Path(self.said(r"run directory +(.+)"))

    def said(self, pattern: str) -> str:
        """The first group of the first match in what it printed; waits for it."""
        found = wait_until(lambda: re.search(pattern, self.stdout), what=f"{pattern!r} in the output")
        return str(found[1])

    def learner_log(self) -> str:
        """What the learner wrote so far."""
        path = self.run_dir / "logs" / "learner.log"
        return path.read_text() if path.exists() else ""

    def until_frames(self, count: int) -> None:
        """Return once so many frames are there."""
        pattern = re.compile(r"\| ([\d,]+) frames(?!/s)")

        def has_come() -> bool:
            assert self.process.poll() is None, f"the run has ended\n{self.stdout}\n{self.stderr}"
            return any(int(n.replace(",", "")) >= count for n in pattern.findall(self.stdout))

        wait_until(has_come, what=f"{count} frames")

    def wait(self, deadline_s: float = 150.0) -> int:
        """Its exit code."""
        try:
            return self.process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            pytest.fail(f"the run did not end within {deadline_s} s\n{self.stdout}\n{self.stderr}")

    def marked(self, words: str = "") -> list[int]:
        """Processes of this run that are alive and have `words` in their command line.

        They carry the mark, or (a server that has overwritten its environment) work in the run's directory.
        """
        found = []
        mark, home = f"ROLLOUT_TEST_MARK={self.mark}".encode(), f"{self.directory.path}/runs/"
        for path in Path("/proc").glob("[0-9]*"):
            try:
                if mark not in (path / "environ").read_bytes() and not os.readlink(path / "cwd").startswith(
                    home
                ):
                    continue
                command = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if command and words in command:
                found.append(int(path.name))
        return found

    def assert_nothing_is_left(self) -> None:
        """No process, no shared memory, no lock, no secret, no socket."""
        wait_until(lambda: not self.marked(), what="the end of all processes")
        runs = self.directory.path / "runs"
        wait_until(lambda: not unused_shared_memory() - self.shm_before, what="the end of all shared memory")
        assert [p.name for p in runs.glob(".*")] == []
        for run in runs.glob("*/"):
            assert {p.name for p in run.iterdir()} & {
                "token",
                "stream.env",
                "gateway.json",
                ".lock",
                "job.lock",
                "redis",
            } == set()
            assert [p for p in run.rglob("*") if p.is_socket()] == []

    def kill_all(self) -> None:
        """For a test that failed half-way."""
        for pid in [self.process.pid, *self.marked()]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.process.wait(60)


@pytest.fixture
def job_dir(tmp_path: Path) -> JobDir:
    """A job that counts."""
    return JobDir(tmp_path)


@pytest.fixture
def start_run(job_dir: JobDir) -> Iterator[Callable[..., LiveRun]]:
    """Start a run of the job; what is left of it at the end of the test is killed."""
    runs: list[LiveRun] = []

    def start(*arguments: str, **options: Any) -> LiveRun:
        runs.append(LiveRun(job_dir, *arguments, **options))
        return runs[-1]

    yield start
    for run in runs:
        run.kill_all()


@pytest.fixture
def until() -> Callable[..., Any]:
    """Wait for a condition with a deadline."""
    return wait_until
