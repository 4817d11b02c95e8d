"""The examples for clusters: applied as they are, but for the name of the registry before the learner's image."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from cluster_tools import until
from platform_tools import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

EXAMPLES = ROOT / "examples"
ADAPTER = (Path(__file__).parent / "support" / "metrics_adapter.py").read_text()
EXTERNAL_METRICS = "v1beta1.external.metrics.k8s.io"


@pytest.fixture(scope="module")
def examples(tmp_path_factory):
    """The examples of a clone in which the registry was filled in, as the README does."""
    place = tmp_path_factory.mktemp("clone") / "examples"
    shutil.copytree(EXAMPLES, place)
    registry = f"{os.environ['E2E_REGISTRY']}/" if os.environ.get("E2E_REGISTRY") else ""
    for path in place.glob("*/*.yaml"):
        image = f"image: {registry}rollout-learner:{os.environ['E2E_TAG']}"
        path.write_text(path.read_text().replace("image: rollout-learner:0.1.0", image))
    return place


@pytest.fixture(scope="module")
def code(platform, examples):
    """The CartPole policy, which the variants use."""
    platform.kube.run("apply", "-f", str(examples / "cartpole" / "code.yaml"))


def small(job):
    """The job with requests that fit on small nodes beside other tests."""
    for group in job["spec"]["workerGroups"]:
        for container in group["template"]["spec"]["containers"]:
            container["resources"]["requests"] = {"cpu": "50m", "memory": "200Mi"}
    return job


def test_an_environment_of_ones_own(kube, examples):
    kube.run("apply", "-f", f"{examples / 'custom_env'}/")

    kube.wait_condition("reach", "Complete", "True", "TotalFramesReached", within=150)
    assert kube.status("reach")["progress"]["frames"] == 4000
    kube.run("wait", "job/reach-reader", "--for=condition=Complete", "--timeout=60s")
    log = kube.run("logs", "job/reach-reader", "--tail=-1").splitlines()
    shapes = [re.search(r"\[(\d+), (\d+)\] frames, mean distance", line) for line in log]
    assert sum(int(shape[1]) * int(shape[2]) for shape in shapes) == 4000
    kube.run("delete", "-f", f"{examples / 'custom_env'}/", "--timeout=60s")
    until(lambda: not kube.pods("reach"), within=60, what="no pod")


def test_a_group_of_gpus(kube, examples, code):
    """The cluster's GPUs are numbers only, and the image's torch has no CUDA: the job says so, once the pod is on a node."""
    offered = [
        node["metadata"]["name"]
        for node in kube.json("get", "nodes")["items"]
        if int(node["status"]["allocatable"].get("nvidia.com/gpu", 0)) > 0
        and not any(taint["key"] == "kwok.x-k8s.io/node" for taint in node["spec"].get("taints") or ())
    ]
    if not offered:
        pytest.skip("no node of this cluster offers nvidia.com/gpu: `cluster up --gpus 2`")
    kube.apply(small(yaml.safe_load((examples / "cluster" / "gpu.yaml").read_text())))

    message = kube.wait_condition("cartpole-gpu", "Failed", "True", "ConfigurationError", within=120)
    assert "asks for device Cuda, but this worker sees no GPU" in message
    failure = kube.status("cartpole-gpu")["lastFailure"]
    assert (failure["group"], failure["exitCode"]) == ("gpu", 64)
    kept = [
        pod
        for pod in kube.pods("cartpole-gpu").values()
        if pod["metadata"]["labels"]["rolloutjob.dev/worker-group"] == "gpu"
    ]
    assert [pod["spec"]["nodeName"] in offered for pod in kept] == [True]
    assert kept[0]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "1"
    kube.run("delete", "roj", "cartpole-gpu")


def test_a_queue_of_kueue(kube, examples, code):
    """Kueue's part is played here: its webhook gates the pods of its queues, and takes the gate away where there is room."""
    job = small(yaml.safe_load((examples / "cluster" / "kueue.yaml").read_text()))
    (group,) = job["spec"]["workerGroups"]
    gate = {"name": "kueue.x-k8s.io/admission"}
    group["template"]["spec"]["schedulingGates"] = [gate]
    kube.apply(job)
    name = job["metadata"]["name"]

    kube.wait_condition(name, "WorkersReady", "False", "SchedulingGated", within=60)
    pods = kube.pods(name)
    assert {pod["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] for pod in pods.values()} == {"team-queue"}
    first, second = sorted(pods)
    no_gate = '[{"op": "remove", "path": "/spec/schedulingGates"}]'
    kube.run("patch", "pod", first, "--type=json", "-p", no_gate)
    until(lambda: kube.status(name).get("readyWorkers") == "1/2", within=90, what="the one that got in")
    assert kube.status(name)["workerGroups"][0]["failures"] == 0
    kube.run("patch", "pod", second, "--type=json", "-p", no_gate)
    kube.wait_ready(name, 2, within=90)
    assert set(kube.pods(name)) == {first, second}
    kube.run("delete", "roj", name)


@pytest.fixture
def external_metrics(platform, kube, tmp_path):
    """An API server of external metrics over the gateway's numbers, as an adapter in front of Prometheus is one."""
    if kube.get("apiservice", EXTERNAL_METRICS):
        pytest.skip("this cluster has external metrics already")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "tls.key", "-out", "tls.crt",
         "-days", "2", "-subj", "/CN=adapter"],
        cwd=tmp_path, check=True, capture_output=True,
    )  # fmt: skip
    kube.run(
        "create",
        "secret",
        "tls",
        "adapter",
        f"--cert={tmp_path / 'tls.crt'}",
        f"--key={tmp_path / 'tls.key'}",
    )
    kube.run("create", "configmap", "adapter", f"--from-literal=adapter.py={ADAPTER}")
    kube.run("create", "serviceaccount", "scraper")
    kube.run("create", "role", "scraper", "--verb=get,list", "--resource=rolloutjobs.rolloutjob.dev")
    kube.run(
        "create", "rolebinding", "scraper", "--role=scraper", f"--serviceaccount={kube.namespace}:scraper"
    )
    image = kube.get("deployment", "rollout-gateway")["spec"]["template"]["spec"]["containers"][0]["image"]
    environ = {
        "GATEWAY": "http://rollout-gateway",
        "TOKEN": kube.run("create", "token", "scraper").strip(),
        "LIMIT": "400",
    }
    container = {
        "name": "adapter",
        "image": image,
        "command": ["python", "/code/adapter.py"],
        "env": [{"name": key, "value": value} for key, value in environ.items()],
        "readinessProbe": {"tcpSocket": {"port": 8443}, "periodSeconds": 1},
        "volumeMounts": [{"name": "code", "mountPath": "/code"}, {"name": "tls", "mountPath": "/tls"}],
    }
    volumes = [
        {"name": "code", "configMap": {"name": "adapter"}},
        {"name": "tls", "secret": {"secretName": "adapter"}},
    ]
    metadata = {"name": "adapter", "labels": {"app": "adapter"}}
    kube.apply(
        {"apiVersion": "v1", "kind": "Pod", "metadata": metadata,
         "spec": {"containers": [container], "volumes": volumes}}
    )  # fmt: skip
    service = {"selector": {"app": "adapter"}, "ports": [{"port": 443, "targetPort": 8443}]}
    kube.apply({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "adapter"}, "spec": service})
    kube.run("wait", "pod/adapter", "--for=condition=Ready", "--timeout=60s")
    spec = {
        "group": "external.metrics.k8s.io",
        "version": "v1beta1",
        "groupPriorityMinimum": 100,
        "versionPriority": 100,
        "insecureSkipTLSVerify": True,
        "service": {"name": "adapter", "namespace": kube.namespace},
    }
    kube.apply(
        {"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": {"name": EXTERNAL_METRICS},
         "spec": spec}
    )  # fmt: skip
    try:
        kube.run("wait", f"apiservice/{EXTERNAL_METRICS}", "--for=condition=Available", "--timeout=60s")
        yield
    finally:
        kube.run("delete", "apiservice", EXTERNAL_METRICS)


def test_workers_by_the_lag_of_the_stream(kube, make_job, examples, external_metrics, reading):
    kube.apply(make_job("cartpole", total=1_000_000, kwargs={"wait_ms": 2}))
    kube.wait_ready("cartpole", 1, within=90)
    scaler = yaml.safe_load((examples / "cluster" / "autoscaling.yaml").read_text())
    (metric,) = scaler["spec"]["metrics"]
    metric["external"]["target"]["value"] = "200"
    scaler["spec"]["maxReplicas"] = 3
    for direction in ("scaleUp", "scaleDown"):
        scaler["spec"]["behavior"][direction]["stabilizationWindowSeconds"] = 0
        scaler["spec"]["behavior"][direction]["policies"][0]["periodSeconds"] = 5
    kube.apply(scaler)

    # Nobody reads: the stream is full, and one worker is enough.
    def conditions():
        found = kube.get("hpa", "cartpole").get("status", {}).get("conditions") or ()
        return {c["type"]: (c["status"], c["reason"]) for c in found}

    until(
        lambda: conditions().get("ScalingActive", ("",))[0] == "True",
        within=90,
        what="a scaler that has its metric",
    )
    assert conditions()["AbleToScale"][0] == "True"
    assert kube.get("roj", "cartpole")["spec"]["replicas"] == 1
    # The learner is faster than one worker: more of them.
    reader = reading("cartpole")
    until(lambda: kube.get("roj", "cartpole")["spec"]["replicas"] > 1, within=90, what="more workers")
    # It stops: back to one.
    reader.limit = reader.frames
    until(lambda: kube.get("roj", "cartpole")["spec"]["replicas"] == 1, within=120, what="one worker")
    kube.run("delete", "hpa/cartpole", "roj/cartpole", "--timeout=60s")
    reader.limit = None
