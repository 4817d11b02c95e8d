"""What the tests of the command line share: manifests to write, and a way to call `rolloutctl` as a user does."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from rollout_cli.main import main

Ctl = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def manifest() -> dict:
    """A small, valid job as data; change it and write it."""
    return {
        "apiVersion": "rolloutjob.dev/v1alpha1",
        "kind": "RolloutJob",
        "metadata": {"name": "tiny"},
        "spec": {
            "env": {
                "entrypoint": "rollout_worker.envs:GymEnv",
                "kwargs": {"env_name": "CartPole-v1"},
                "envsPerWorker": 2,
            },
            "policy": {"entrypoint": "policy:make_policy"},
            "collector": {"framesPerBatch": 20, "totalFrames": 60},
            "seed": 1,
        },
    }


@pytest.fixture
def write_manifest(tmp_path: Path) -> Callable[[object], Path]:
    """Write a manifest (data, or text as it stands) to `job.yaml` in the test's directory."""

    def write(content: object) -> Path:
        path = tmp_path / "job.yaml"
        path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
        return path

    return write


@pytest.fixture
def ctl(tmp_path: Path) -> Ctl:
    """Call `rolloutctl` in the test's directory, in a process of its own."""

    def call(
        *arguments: object, timeout: float = 150, env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "rollout_cli.main", *map(str, arguments)],
            cwd=tmp_path,
            env={**os.environ, **(env or {})},
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    return call


@dataclass(frozen=True)
class Ended:
    """How a call ended."""

    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def ctl_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Ended]:
    """The same in this process: quicker, for calls that end before anything is started."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: object) -> Ended:
        try:
            code = main([*map(str, arguments)])
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else 1
        written = capsys.readouterr()
        return Ended(code, written.out, written.err)

    return call
