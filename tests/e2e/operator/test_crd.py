"""The CRD of another version, or none: the operator says so, writes nothing, and goes on once it fits. Cluster-wide."""

from __future__ import annotations

import copy
import json
import time

import cluster_tools as tools
import pytest
from cluster_tools import job, until

from rollout_contract.crd import crd_document
from rollout_contract.crd_skew import OPENAPI_PATH

CRD = "rolloutjobs.rolloutjob.dev"

pytestmark = [
    pytest.mark.usefixtures("fake_nodes"),
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.alone,
]


def without(*path):
    """The CRD of a version that did not have one field of the spec."""
    document = copy.deepcopy(crd_document())
    schema = document["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    schema["description"] = "Schema 0000000000000000"
    below = schema["properties"]["spec"]
    for name in path[:-1]:
        below = below["properties"][name]
    del below["properties"][path[-1]]
    prune_rules(schema, path[-1])
    return document


def prune_rules(node, name):
    """Rules and defaults that speak of the field: the older version had them not."""
    if isinstance(node, dict):
        rules = node.get("x-kubernetes-validations")
        if rules:
            node["x-kubernetes-validations"] = [rule for rule in rules if name not in rule["rule"]]
            if not node["x-kubernetes-validations"]:
                del node["x-kubernetes-validations"]
        if isinstance(node.get("default"), dict):
            node["default"].pop(name, None)
        for value in node.values():
            prune_rules(value, name)
    elif isinstance(node, list):
        for value in node:
            prune_rules(value, name)


@pytest.fixture
def install(kubeconfig, crd):
    """Installs a CRD; this version's comes back with the end of the test."""
    kube = tools.Kube(kubeconfig, "default")

    def conditions():
        found = (kube.get("crd", CRD) or {}).get("status", {}).get("conditions") or []
        return {condition["type"]: condition["status"] for condition in found}

    def put(document):
        kube.run("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=json.dumps(document))
        until(lambda: conditions().get("Established") == "True", what="the CRD's establishment")
        marks = [document["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["description"]]
        until(
            lambda: marks[0] in kube.run("get", "--raw", OPENAPI_PATH, check=False),
            what="the schema, published",
        )

    yield put
    put(crd_document())


@pytest.mark.probe("P-46")
@pytest.mark.parametrize(
    "path",
    [
        pytest.param(("stream", "claimIdleSeconds"), id="a field of the stream"),
        pytest.param(("stalledDeadlineSeconds",), id="a deadline"),
        pytest.param(("podRetention",), id="a part"),
    ],
)
def test_an_older_crd_stops_every_write(namespaces, operators, install, path):
    kube = namespaces()
    operator = operators(kube).start().wait_ready()
    for name in ("one", "two"):
        kube.apply(job(name, replicas=2))
    for name in ("one", "two"):
        kube.wait_ready(name, 2)
    operator.stop()
    before = versions(kube)

    install(without(*path))
    newer = operators(kube).start()
    needed = ".".join(("spec", *path))
    until(lambda: needed in newer.probe("readyz")[1], within=40, what=f"{needed} ({newer.log()[-1000:]})")
    code, text = newer.probe("readyz")
    assert code == 503
    for words in (
        CRD,
        "found schema 0000000000000000",
        "needed ",
        "kubectl apply --server-side",
        "helm upgrade",
    ):
        assert words in text, text
    assert newer.probe("healthz")[0] == 200

    # Something to do for each of them, and nobody does it.
    kube.run("delete", "pod", "one-w-0-0", "--wait=false")
    until(lambda: kube.get("pod", "one-w-0-0") is None, what="no pod")
    kube.run("scale", "roj", "two", "--replicas=3")
    time.sleep(4)
    kept = {key: value for key, value in versions(kube).items() if not key.startswith(("one-w-0", "roj"))}
    assert kept == {key: value for key, value in before.items() if key in kept}
    assert len(kept) == 3
    assert newer.metric("rollout_api_calls_total", verb="create") == 0
    assert newer.metric("rollout_api_calls_total", verb="patch") == 0
    assert newer.metric("rollout_api_calls_total", verb="delete") == 0

    refused = uses(path)
    answer = kube.run("apply", "-f", "-", stdin=json.dumps(job("new", **refused)), check=False)
    assert "unknown field" in answer, answer
    assert needed in answer, answer

    install(crd_document())
    newer.wait_ready(within=60)
    kube.wait_ready("one", 2)
    kube.wait_ready("two", 3)
    kept_uids = {pod["metadata"]["uid"] for pod in kube.pods().values()}
    assert {uid for key, (uid, _) in before.items() if key.startswith(("one-w-1", "two-w"))} <= kept_uids
    kube.apply(job("new", **refused))
    kube.wait_ready("new", 1)
    newer.stop()


def uses(path):
    """A spec that uses the field."""
    value = {"failed": 2} if path == ("podRetention",) else 600
    for name in reversed(path):
        value = {name: value}
    return value


def versions(kube):
    """UID and version of each pod and job."""
    pods = {name: pod["metadata"] for name, pod in kube.pods().items()}
    jobs = {f"roj/{item['metadata']['name']}": item["metadata"] for item in kube.json("get", "roj")["items"]}
    return {name: (m["uid"], m["resourceVersion"]) for name, m in {**pods, **jobs}.items()}


def test_a_crd_that_goes_and_comes_back(namespaces, operators, install):
    """All jobs go with it, and their pods; the operator waits, and serves the next job, found by the watch."""
    kube = namespaces()
    operator = operators(kube, ROLLOUT_POD_NAME="operator-0", ROLLOUT_POD_UID="crd").start().wait_ready()
    kube.apply(job("lost", replicas=2))
    kube.wait_ready("lost", 2)

    kube.run("delete", "crd", CRD, "--timeout=60s")
    until(lambda: "not installed" in operator.probe("readyz")[1], within=90, what="that it is missed")
    assert operator.probe("readyz")[0] == 503
    assert operator.process.poll() is None
    made = operator.metric("rollout_api_calls_total", verb="create", resource="pods")

    install(crd_document())
    until(lambda: operator.probe("readyz")[0] == 200, within=90, what=f"readiness ({operator.log()[-1500:]})")
    # They go with the jobs; where the definition was too young for Kubernetes to know its kind, once that is back.
    until(lambda: not kube.pods("lost"), within=150, what="no pod of a job that is gone")
    kube.apply(job("found", replicas=2))
    kube.wait_ready("found", 2, within=40)
    assert operator.metric("rollout_api_calls_total", verb="create", resource="pods") <= made + 3
    operator.stop()
