"""The README's part on clusters, line by line as it is printed, on a cluster where nothing is installed yet.

Its first block runs as the administrator; everything after it with the role that it gave, in one namespace. Two lines are
replaced: the registry by the one of the test's images, and `make images`, which has been done when tests run.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import cluster_tools as tools
import pytest
import redis
import yaml
from cluster_tools import until
from platform_tools import ROOT, PortForward

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.probe("P-55")]

NAMESPACE, CRD = "rl", "rolloutjobs.rolloutjob.dev"
DONE_BEFORE = ("make images ",)
LEFT_WITHIN_S = 30.0
KINDS = "pods,jobs,configmaps,secrets,leases,rolloutjobs,persistentvolumeclaims,services,endpointslices"


def blocks() -> list[list[str]]:
    """The commands of each block of the README's part on clusters."""
    text = (ROOT / "README.md").read_text()
    part = re.split(r"^## ", text.split("## On a cluster\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]
    found = re.findall(r"^```sh\n(.*?)^```", part, re.MULTILINE | re.DOTALL)
    return [[line for line in block.splitlines() if line] for block in found]


class Shell:
    """One bash that lives as long as a user's terminal: variables and what runs in the background stay."""

    def __init__(self, place: Path, environ: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            ["bash"], cwd=place, env=environ, text=True, bufsize=1, start_new_session=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def run(self, line: str) -> str:
        """What the line prints. AssertionError if it fails."""
        assert self._process.stdin
        assert self._process.stdout
        mark = f"--{time.monotonic_ns()}--"
        self._process.stdin.write(f"{line}\nprintf '\\n%s %s\\n' {mark} $?\n")
        output = []
        for text in self._process.stdout:
            if text.startswith(mark):
                assert text.split()[1] == "0", f"{line}\n{''.join(output)}"
                return "".join(output)
            output.append(text)
        raise AssertionError(f"{line} ended the shell\n{''.join(output)}")

    def close(self) -> None:
        """Ends it and what it started in the background."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write("kill $(jobs -p)\nexit\n")
        self._process.stdin.close()
        self._process.wait(20)
        self._process.stdout.close()


@pytest.fixture(scope="module")
def admin(kubeconfig):
    kube = tools.Kube(kubeconfig, NAMESPACE)
    if kube.get("namespace", NAMESPACE):
        pytest.fail(
            f"the cluster has a namespace {NAMESPACE}, into which the README installs: delete it first"
        )
    if kube.get("crd", CRD) and not kube.json("get", "roj", "--all-namespaces")["items"]:
        kube.run("delete", "crd", CRD)  # other tests have left it
    yield kube
    subprocess.run(
        ["helm", "uninstall", "rollout", "-n", NAMESPACE], capture_output=True, timeout=90, check=False
    )
    kube.run("delete", "roj", "--all", "--wait=false", check=False)
    kube.run("delete", "namespace", NAMESPACE, "--timeout=80s", check=False)


@pytest.fixture
def clone(tmp_path):
    """What of a clone the commands use."""
    for name in ("examples", "charts"):
        shutil.copytree(ROOT / name, tmp_path / name)
    return tmp_path


def with_token(kubeconfig: str, token: str, path: Path) -> str:
    """A kubeconfig of an account's token."""
    text = subprocess.run(
        ["kubectl", "--kubeconfig", kubeconfig, "config", "view", "--minify", "--raw", "-o", "json"],
        capture_output=True, text=True, timeout=30, check=True,
    ).stdout  # fmt: skip
    config = json.loads(text)
    config["users"] = [{"name": config["users"][0]["name"], "user": {"token": token}}]
    path.write_text(yaml.safe_dump(config))
    return str(path)


def objects(kube: tools.Kube) -> set[str]:
    """Names of everything in the namespace that a job could leave behind."""
    return set(kube.run("get", KINDS, "-o", "name").split())


def story(kube: tools.Kube) -> str:
    """What there is to see of a job that does not do as it should."""
    looks = (
        ("get", "rolloutjobs,pods,jobs", "-o", "wide"),
        ("describe", "rolloutjob", "cartpole"),
        ("events",),
        ("logs", "job/cartpole-learner", "--tail=20"),
        ("logs", "deployment/rollout-operator", "--tail=40"),
    )
    return "\n".join(f"$ kubectl {' '.join(look)}\n{kube.run(*look, check=False)}" for look in looks)


def assert_rights(kube: tools.Kube) -> None:
    """The account of the README may do what the README does, there and nowhere else."""
    user = ["--as", f"system:serviceaccount:{NAMESPACE}:alice"]
    elsewhere = tools.Kube(kube.kubeconfig, "default")
    for verb, resource in (
        ("create", "rolloutjobs"),
        ("get", "rolloutjobs"),
        ("list", "pods"),
        ("create", "jobs"),
    ):
        assert kube.run("auth", "can-i", verb, resource, *user).strip() == "yes"
        assert "yes" not in elsewhere.run("auth", "can-i", verb, resource, *user, check=False)
    for verb, resource in (
        ("get", "secrets"),
        ("create", "pods"),
        ("create", "rolebindings"),
        ("patch", "roles"),
    ):
        assert "yes" not in kube.run("auth", "can-i", verb, resource, *user, check=False)


def test_every_line(admin, kubeconfig, clone):
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert os.environ["E2E_TAG"] == version, "the README installs images of the project's version"
    registry = os.environ.get("E2E_REGISTRY", "")
    as_admin, as_user, at_the_gateway = blocks()
    environ = {key: value for key, value in os.environ.items() if not key.startswith("ROLLOUT_")}
    environ |= {"KUBECONFIG": kubeconfig, "PATH": f"{Path(sys.executable).parent}:{environ['PATH']}"}
    (clone / ".curlrc").write_text("fail-with-body\nsilent\nshow-error\nmax-time = 60\n")
    shell = Shell(clone, environ | {"CURL_HOME": str(clone), "HOME": str(clone)})
    said: dict[str, str] = {}
    try:
        for line in as_admin:
            if line.startswith("export REGISTRY="):
                line = f"export REGISTRY={registry}"
            if not line.startswith(DONE_BEFORE):
                started = time.monotonic()
                said[line] = shell.run(line)
                if line.startswith("helm install"):
                    seconds = time.monotonic() - started
        print(f"helm install to everything ready: {seconds:.1f} s")
        assert seconds < 60

        server = redis.Redis(
            port=(forward := PortForward(admin, "service/rollout-redis", 6379)).port,
            password=admin.run("get", "secret", "rollout-redis", "-o", "go-template={{.data.password | base64decode}}"),
        )  # fmt: skip
        assert_rights(admin)
        before, keys_before = objects(admin), set(server.keys())
        token = shell.run("echo $ROLLOUT_TOKEN").strip()
        shell.run(f"export KUBECONFIG={with_token(kubeconfig, token, clone / 'kubeconfig')}")
        for line in [*as_user, *at_the_gateway[:-1]]:
            try:
                said[line] = shell.run(line)
            except AssertionError:
                print(story(admin))
                raise
        events = admin.run("events", "--for", "rolloutjob/cartpole")
        assert at_the_gateway[-1] == "kubectl delete -f examples/cartpole/"
        started = time.monotonic()
        shell.run(at_the_gateway[-1])
        until(lambda: objects(admin) <= before, within=LEFT_WITHIN_S, what="nothing left")
        until(lambda: set(server.keys()) <= keys_before, within=LEFT_WITHIN_S, what="no key left")
        print(f"kubectl delete to nothing left: {time.monotonic() - started:.1f} s")
        assert time.monotonic() - started < LEFT_WITHIN_S
        forward.close()
    finally:
        shell.close()

    listed = [line for line in said["kubectl get rolloutjobs"].splitlines() if line]
    assert listed[0].split()[:4] == ["NAME", "STATE", "READY", "FRAMES"]
    assert len(listed) == 2
    assert "Complete" in listed[1]
    described = said["kubectl describe rolloutjob cartpole"]
    assert "Solved" in described
    assert "Events:" in described
    assert "<none>" not in described.split("Events:")[1]
    assert "Complete" in events
    verdict = re.search(
        r"solved: mean return ([\d.]+) after", said["kubectl logs job/cartpole-learner --tail=1"]
    )
    assert verdict
    assert float(verdict[1]) >= 475
    print(verdict[0])
