"""What images/build.sh asks of builders and of loaders: stand-ins for them write down how they are called."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

BUILD = Path(__file__).parents[2] / "images" / "build.sh"


@pytest.fixture
def build(tmp_path):
    """Runs build.sh with stand-ins for the programs; gives what they were told, one call a line."""
    calls = tmp_path / "calls"
    for name in ("docker", "kind", "k3d", "loader"):
        program = tmp_path / name
        program.write_text(f'#!/bin/sh\necho "{name} $*" >> {calls}\n')
        program.chmod(0o755)

    def run(*targets, check=True, **settings):
        environ = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "TAG": "7", **settings}
        done = subprocess.run(
            [BUILD, *targets], env=environ, capture_output=True, text=True, timeout=120, check=False
        )
        assert not check or done.returncode == 0, done.stderr
        lines = calls.read_text().splitlines() if calls.exists() else []
        return (done, [line for line in lines if line != "docker info"])

    return run


def test_builds_every_target_by_its_name(build):
    _, calls = build(BUILDER="docker", REGISTRY="r.example/x")
    assert [line.split()[3] for line in calls] == [
        f"r.example/x/rollout-{target}:7" for target in ("operator", "api", "worker", "learner", "redis")
    ]
    assert all("--build-arg TARGET=" in line for line in calls)


@pytest.mark.parametrize(
    ("settings", "last"),
    [
        ({"LOADER": "kind"}, "kind load docker-image rollout-api:7"),
        ({"LOADER": "kind", "CLUSTER": "c"}, "kind load docker-image --name c rollout-api:7"),
        ({"LOADER": "k3d", "CLUSTER": "c"}, "k3d image import --cluster c rollout-api:7"),
        ({"LOADER": "push", "REGISTRY": "r.example"}, "docker push r.example/rollout-api:7"),
    ],
)
def test_brings_an_image_to_where_it_is_wanted(build, settings, last):
    _, calls = build("api", BUILDER="docker", **settings)
    assert len(calls) == 2
    assert calls[0].startswith("docker build -t ")
    assert calls[1] == last


def test_a_program_builds_and_loads_by_itself(build, tmp_path):
    _, (call,) = build("api", LOADER=str(tmp_path / "loader"))
    assert call.startswith("loader build rollout-api:7 . images/Dockerfile TARGET=api VERSION=")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"LOADER": "push"}, "REGISTRY, where to, is not set"),
        ({"LOADER": "minikube", "BUILDER": "docker"}, "should be push, kind, k3d or the path"),
        ({"BUILDER": "kaniko"}, "should be docker, podman or buildah"),
    ],
)
def test_says_what_is_wrong(build, settings, words):
    done, _ = build("api", check=False, **settings)
    assert done.returncode == 2
    assert words in done.stderr
