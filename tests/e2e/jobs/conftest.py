"""An installation of the chart from the images of this checkout, and jobs in it. Skipped without KUBECONFIG."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
for support in (HERE / "support", HERE.parent / "operator" / "support"):
    if str(support) not in sys.path:
        sys.path.insert(0, str(support))

import cluster_tools as tools  # noqa: E402 - the path is set above
import platform_tools  # noqa: E402


@pytest.fixture(scope="session")
def kubeconfig():
    """Path of the kubeconfig, where the images are on the cluster too."""
    if not os.environ.get("KUBECONFIG"):
        pytest.skip("KUBECONFIG is not set: these tests need a cluster")
    if not os.environ.get("E2E_TAG"):
        pytest.skip(
            "E2E_TAG is not set: these tests need images on the cluster, as `make e2e` brings them there"
        )
    for program in ("kubectl", "helm"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not on the PATH")
    return os.environ["KUBECONFIG"]


@pytest.fixture(scope="session")
def crd(kubeconfig):
    """The definition of this version, installed."""
    kube = tools.Kube(kubeconfig, "default")
    plain = platform_tools.ROOT / "charts" / "rollout-crd.yaml"
    kube.run("apply", "--server-side", "--force-conflicts", "-f", str(plain))
    kube.run("wait", "--for=condition=Established", "crd/rolloutjobs.rolloutjob.dev", "--timeout=30s")


@pytest.fixture(scope="session")
def platform(kubeconfig, crd):
    """A release that looks after two namespaces, and its toys' code in both."""
    admin = tools.Kube(kubeconfig, "default")
    spaces = [tools.Kube(kubeconfig, tools.unique("jobs")) for _ in range(2)]
    for space in spaces:
        admin.run("create", "namespace", space.namespace)
        space.run("create", "configmap", "code", f"--from-file={tools.COUNTING}")
    found = platform_tools.Platform(spaces[0], tuple(spaces[1:]))
    try:
        found.install()
        yield found
    finally:
        for space in spaces:
            space.run("delete", "roj", "--all", "--wait=true", "--timeout=60s", check=False)
        found.uninstall()
        for space in spaces:
            admin.run("delete", "namespace", space.namespace, "--wait=false", check=False)


@pytest.fixture
def kube(platform):
    """The release's own namespace; a failed test says what it looked like."""
    return platform.kube


@pytest.fixture
def make_job():
    """Makes jobs of the toys' environment."""

    def make(name, *, replicas=1, total=4000, group=None, kwargs=None, **spec):
        return {
            "apiVersion": "rolloutjob.dev/v1alpha1",
            "kind": "RolloutJob",
            "metadata": {"name": name},
            "spec": {
                "env": {
                    "entrypoint": "counting:make_env",
                    "envsPerWorker": 2,
                    "backend": "Serial",
                    "kwargs": kwargs or {},
                },
                "policy": {"entrypoint": "counting:make_policy"},
                "code": {"configMapRef": {"name": "code"}},
                "collector": {"framesPerBatch": 20, "totalFrames": total},
                "stream": {"groups": ["learner"], "maxUnackedFrames": 400},
                "workerGroups": [{"name": "w", "elastic": True, "template": template(), **(group or {})}],
                "replicas": replicas,
                **spec,
            },
        }

    def template(memory="1Gi", **variables):
        env = [{"name": key, "value": value} for key, value in variables.items()]
        resources = {"requests": {"cpu": "50m", "memory": "200Mi"}, "limits": {"memory": memory}}
        return {"spec": {"containers": [{"name": "worker", "resources": resources, "env": env}]}}

    make.template = template
    return make


@pytest.fixture
def reading(platform, kube):
    """Reads jobs of the release's namespace to their ends."""
    return lambda name, limit=None: platform_tools.Reader(platform.stream(kube, name), limit)
