"""The life of an installation on a real cluster: install, what the notes say, upgrade, rollback, uninstall, install again.

Needs KUBECONFIG and images: E2E_TAG and E2E_REGISTRY say which (`make e2e` builds them). One release in a namespace that
enforces the restricted Pod Security Standard; the tests go through its life in order, so they are one test.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "rollout"
PLAIN_CRD = ROOT / "charts" / "rollout-crd.yaml"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.xdist_group("chart")]


class Installation:
    """One release, and commands as a user would type them."""

    def __init__(self, helm: str, kubectl: str, name: str) -> None:
        self.name = name
        self._programs = {"helm": helm, "kubectl": kubectl}
        tag, registry = os.environ["E2E_TAG"], os.environ.get("E2E_REGISTRY", "")
        images = {program: {"image": {"tag": tag}} for program in ("operator", "gateway", "redis", "worker")}
        self.values: dict[str, Any] = {"global": {"imageRegistry": registry}, **images}

    def run(self, program: str, *arguments: str, text: str = "", timeout_s: float = 200) -> str:
        done = subprocess.run(
            [self._programs[program], "--namespace", self.name, *arguments],
            input=text,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        assert done.returncode == 0, f"{program} {' '.join(arguments)}: {done.stderr}{done.stdout}"
        return done.stdout

    def helm(self, *arguments: str, **values: Any) -> str:
        return self.run("helm", *arguments, "--values", "-", text=json.dumps(self.values | values))

    def install(self, **values: Any) -> float:
        """Seconds until everything was ready."""
        started = time.monotonic()
        self.helm("install", self.name, str(CHART), "--wait", "--timeout", "150s", **values)
        return time.monotonic() - started

    def get(self, kind: str, name: str = "") -> Any:
        return json.loads(self.run("kubectl", "get", kind, *filter(None, [name]), "--output", "json"))

    def password(self) -> str:
        return base64.b64decode(self.get("secret", f"{self.name}-rollout-redis")["data"]["password"]).decode()

    def pods(self, label: str) -> dict[str, str]:
        """Name and UID of those that are not on their way out."""
        found = json.loads(self.run("kubectl", "get", "pods", "--selector", label, "--output", "json"))[
            "items"
        ]
        return {
            pod["metadata"]["name"]: pod["metadata"]["uid"]
            for pod in found
            if not pod["metadata"].get("deletionTimestamp")
        }

    def until(self, condition: Callable[[], Any], what: str, limit_s: float = 60) -> None:
        deadline = time.monotonic() + limit_s
        while not condition():
            assert time.monotonic() < deadline, f"no {what} after {limit_s:.0f} s"
            time.sleep(0.3)


@pytest.fixture
def installation(helm: Any, kubectl: str) -> Iterator[Installation]:
    if not os.environ.get("E2E_TAG"):
        pytest.skip("needs images on the cluster: run `make e2e`, or set E2E_TAG")
    found = Installation(helm.program, kubectl, f"t{uuid.uuid4().hex[:6]}")
    subprocess.run(
        [kubectl, "apply", "--server-side", "--force-conflicts", "-f", str(PLAIN_CRD)], check=True, timeout=30
    )
    subprocess.run([kubectl, "create", "namespace", found.name], check=True, timeout=30)
    label = "pod-security.kubernetes.io/enforce=restricted"
    subprocess.run([kubectl, "label", "namespace", found.name, label], check=True, timeout=30)
    yield found
    subprocess.run(
        [found._programs["helm"], "--namespace", found.name, "uninstall", found.name], timeout=60, check=False
    )
    subprocess.run([kubectl, "delete", "namespace", found.name, "--wait=false"], timeout=60, check=False)


def notes_commands(installation: Installation) -> str:
    """What the notes tell people to type, up to the first job's end; the rest opens a port and stays."""
    notes = installation.run("helm", "get", "notes", installation.name)
    lines = [line.removeprefix("  ") for line in notes.splitlines() if line.startswith("  ")]
    end = next(i for i, line in enumerate(lines) if "get rolloutjobs" in line)
    return "\n".join(lines[: end + 1])


LONG_JOB = """
apiVersion: rolloutjob.dev/v1alpha1
kind: RolloutJob
metadata: {name: long}
spec:
  env: {entrypoint: "rollout_worker.envs:GymEnv", kwargs: {env_name: CartPole-v1}}
  policy: {entrypoint: "policy:make_policy"}
  code: {configMapRef: {name: first-code}}
  collector: {framesPerBatch: 64}
"""


@pytest.mark.probe("P-49")
@pytest.mark.probe("P-55")
def test_life_of_an_installation(installation: Installation) -> None:
    name = installation.name
    assert installation.install() < 120

    commands = f"set -eu\nexport PATH={Path(installation._programs['helm']).parent}:$PATH\n{notes_commands(installation)}"
    done = subprocess.run(["bash", "-c", commands], capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    assert installation.get("rolloutjob", "first")["status"]["progress"]["frames"] == 102400

    # An upgrade touches no worker, and keeps what was drawn at the start.
    installation.run("kubectl", "apply", "-f", "-", text=LONG_JOB)
    workers = "rolloutjob.dev/job-name=long"
    installation.until(lambda: installation.pods(workers), "worker")
    password, before = installation.password(), installation.pods(workers)
    installation.helm(
        "upgrade", name, str(CHART), "--wait", "--timeout", "150s",
        operator={"image": {"tag": os.environ["E2E_TAG"]}, "logLevel": "DEBUG"},
    )  # fmt: skip
    assert installation.password() == password
    assert installation.pods(workers) == before
    installation.run("helm", "rollback", name, "1", "--wait", "--timeout", "150s")
    assert installation.password() == password
    assert installation.pods(workers) == before

    # What goes, and what stays.
    assert len(json.dumps(installation.get("secret"))) < 1024 * 1024
    installation.run("helm", "uninstall", name, "--wait", "--timeout", "100s")
    assert installation.get("rolloutjob", "long")["metadata"].get("finalizers") is None
    installation.until(
        lambda: (
            not installation.pods(f"app.kubernetes.io/instance={name},app.kubernetes.io/component=operator")
        ),
        "end of the operator",
    )
    assert installation.pods(workers) == before, "workers go on without the operator"

    # Found again.
    installation.install()
    installation.run("kubectl", "delete", "rolloutjob", "--all", "--wait=true", "--timeout=60s")
    installation.until(lambda: not installation.pods(workers), "end of the workers", 90)
