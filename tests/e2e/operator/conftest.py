"""The cluster that KUBECONFIG names; without it these tests are skipped. Each module has its namespace and its operator."""

from __future__ import annotations

import json
import os
import shutil
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

SUPPORT = str(Path(__file__).parent / "support")
if SUPPORT not in sys.path:
    sys.path.insert(0, SUPPORT)

import cluster_tools as tools  # noqa: E402 - the path is set above


@pytest.fixture(scope="session")
def kubeconfig():
    """Path of the kubeconfig."""
    path = os.environ.get("KUBECONFIG")
    if not path:
        pytest.skip("KUBECONFIG is not set: these tests need a cluster")
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not on the PATH")
    return path


@pytest.fixture(scope="session")
def crd(kubeconfig):
    """The CRD of this version, installed."""
    from rollout_contract.crd import crd_document

    document = json.dumps(crd_document())
    kube = tools.Kube(kubeconfig, "default")
    kube.run("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=document)
    kube.run("wait", "--for=condition=Established", "crd/rolloutjobs.rolloutjob.dev", "--timeout=30s")


@pytest.fixture(scope="session")
def fake_nodes(kubeconfig):
    """Nodes whose pods become ready without running."""
    kube = tools.Kube(kubeconfig, "default")
    if not kube.json("get", "nodes", "-l", "type=kwok")["items"]:
        pytest.skip("there are no nodes with the label type=kwok: `cluster fake-nodes 4`")


@pytest.fixture(scope="module")
def redis_url():
    """A server of its own, on all addresses of this machine, so that pods reach it."""
    with tools.data_server() as server:
        yield server.url


@pytest.fixture(scope="module")
def namespaces(kubeconfig, crd):
    """Makes namespaces that go with the module."""
    made = []
    kube = tools.Kube(kubeconfig, "default")

    def make(prefix="e2e", labels=()):
        name = tools.unique(prefix)
        kube.run("create", "namespace", name)
        made.append(name)
        for label in labels:
            kube.run("label", "namespace", name, label)
        return tools.Kube(kubeconfig, name)

    yield make
    for name in made:
        kube.run("delete", "namespace", name, "--wait=false", check=False)


@pytest.fixture(scope="module")
def kube(namespaces):
    """A namespace of the module's own."""
    return namespaces()


@pytest.fixture(scope="module")
def operators(kubeconfig, redis_url, tmp_path_factory):
    """Makes operators; those that still run are ended with the module."""
    with ExitStack() as stack:

        def make(kube, **settings):
            environ = {
                **tools.environ_without_settings(),
                "KUBECONFIG": str(kubeconfig),
                "ROLLOUT_POD_NAMESPACE": kube.namespace,
                "ROLLOUT_REDIS_URL": redis_url,
                "ROLLOUT_WORKER_REDIS_HOST": tools.host_address(kubeconfig) or "127.0.0.1",
                "ROLLOUT_HTTP_HOST": "127.0.0.1",
                "ROLLOUT_HTTP_PORT": str(tools.free_port()),
                "ROLLOUT_LOG_FORMAT": "text",
                "ROLLOUT_OBSERVE_SECONDS": "2",
                "ROLLOUT_PROGRESS_SECONDS": "2",
                **settings,
            }
            operator = tools.Operator(tmp_path_factory.mktemp("operator") / "log", environ)
            stack.callback(operator.stop)
            return operator

        yield make


@pytest.fixture(scope="module")
def operator(operators, kube):
    """The module's operator, ready."""
    return operators(kube).start().wait_ready()
