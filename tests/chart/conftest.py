"""The chart through Helm: what it renders for a set of values, and whether a real API server would take it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

SUPPORT = str(Path(__file__).parent / "support")
if SUPPORT not in sys.path:
    sys.path.insert(0, SUPPORT)

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "rollout"
KUBE_VERSION = "1.34.0"
FastLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class HelmError(Exception):
    """Helm refused; the text is what it said."""


class Helm:
    """One Helm executable."""

    def __init__(self, program: str) -> None:
        self.program = program
        self._rendered: dict[str, str] = {}

    def run(self, *arguments: str, values: dict[str, Any] | None = None) -> str:
        """What it prints. HelmError if it fails."""
        command = [self.program, *arguments]
        text = yaml.safe_dump(values or {})
        done = subprocess.run(
            [*command, "--values", "-"], input=text, capture_output=True, text=True, timeout=150, check=False
        )
        if done.returncode:
            raise HelmError(done.stderr)
        return done.stdout

    def template(self, values: dict[str, Any] | None = None, *options: str) -> list[dict[str, Any]]:
        """The documents that an installation of release `rl` in namespace `rl-system` would send."""
        key = json.dumps([values, options], sort_keys=True)
        if key not in self._rendered:
            command = (
                "template",
                "rl",
                str(CHART),
                "--namespace",
                "rl-system",
                "--kube-version",
                KUBE_VERSION,
            )
            self._rendered[key] = self.run(*command, *options, values=values)
        return [document for document in yaml.load_all(self._rendered[key], FastLoader) if document]


def _program(name: str) -> str:
    folders = [os.environ.get("PATH", ""), str(Path(os.environ.get("KUBECONFIG", "/none/x")).parent / "bin")]
    found = shutil.which(name, path=os.pathsep.join(folders))
    if not found:
        pytest.skip(f"needs {name} on the PATH")
    return found


@pytest.fixture(scope="session")
def helms() -> dict[str, Helm]:
    """Those that were asked for: each keeps what it rendered."""
    return {}


@pytest.fixture(params=["helm", "helm3"])
def any_helm(request: pytest.FixtureRequest, helms: dict[str, Helm]) -> Helm:
    return helms.setdefault(request.param, Helm(_program(request.param)))


@pytest.fixture
def helm(helms: dict[str, Helm]) -> Helm:
    return helms.setdefault("helm", Helm(_program("helm")))


@pytest.fixture(scope="session")
def kubectl() -> str:
    if not os.environ.get("KUBECONFIG"):
        pytest.skip("needs a cluster: set KUBECONFIG")
    return _program("kubectl")
