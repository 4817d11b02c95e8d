"""A node that is cut off, for a while or for good: nobody is started twice, and the job says which node does not answer."""

from __future__ import annotations

import os
import shutil
import subprocess
import time

import cluster_tools as tools
import pytest
from cluster_tools import host_address, job, until

from rollout_stream import RolloutStream

CLUSTER = os.environ.get("ROLLOUT_TEST_CLUSTER") or shutil.which("cluster")
"""The program that cuts nodes of the test cluster off."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(420),
    pytest.mark.skipif(CLUSTER is None, reason="no program that cuts a node off: ROLLOUT_TEST_CLUSTER"),
    pytest.mark.alone,
]


@pytest.fixture
def cut(kubeconfig, kube):
    """Cuts the second node off, and brings it back; it is back with the end of the test."""
    nodes = {n["metadata"]["name"]: n for n in kube.json("get", "nodes")["items"]}
    if "node-2" not in nodes or host_address(kubeconfig) is None:
        pytest.skip("needs the test cluster with two nodes")

    def turn(how):
        subprocess.run([CLUSTER, "node", how, "2"], check=True, timeout=60, capture_output=True)

    yield turn
    turn("start")
    kube.run("wait", "--for=condition=Ready", "node/node-2", "--timeout=60s")


@pytest.fixture
def group(kubeconfig):
    """A group that prefers the second node, of pods that are ready as long as their kubelet looks."""

    def make(**spec):
        preference = {
            "weight": 100,
            "preference": {
                "matchExpressions": [
                    {"key": "kubernetes.io/hostname", "operator": "In", "values": ["node-2"]}
                ]
            },
        }
        probe = {"tcpSocket": {"host": host_address(kubeconfig), "port": 6443}, "periodSeconds": 1}
        container = {
            "name": "worker",
            "image": "localhost/pause:3.10",
            "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}},
            "readinessProbe": probe,
            "livenessProbe": {**probe, "failureThreshold": 1000},
        }
        affinity = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [preference]}}
        template = {
            "spec": {
                "affinity": affinity,
                "securityContext": {"runAsNonRoot": True, "runAsUser": 65532},
                "containers": [container],
                **spec,
            }
        }
        return {"name": "w", "elastic": True, "template": template}

    return make


SLOW = """
import time
import gymnasium, numpy as np
from torch import nn, zeros

class Slow(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1e9, 1e9, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.n = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        time.sleep(0.02)
        self.n += 1
        return np.array([self.n], np.float32), 1.0, self.n >= 50, False, {}

class Zero(nn.Module):
    def forward(self, observation):
        return zeros(observation.shape[:-1], dtype=int)

def make_policy(observation_spec, action_spec):
    return Zero()
"""


def alive(kube, name):
    """(index, attempt, node, UID) of every pod that nobody asked to end."""
    return sorted(
        (
            int(pod["metadata"]["labels"]["rolloutjob.dev/worker-index"]),
            int(pod["metadata"]["labels"]["rolloutjob.dev/attempt"]),
            pod["spec"].get("nodeName"),
            pod["metadata"]["uid"],
        )
        for pod in kube.pods(name).values()
        if not pod["metadata"].get("deletionTimestamp") and pod["status"]["phase"] in {"Pending", "Running"}
    )


def test_a_node_is_cut_off_for_a_while_and_another_job_loses_it_for_good(kube, operator, cut, group):
    """Kubernetes waits 300 s before it takes pods from a node that is silent; the second job's pods tolerate 3 s."""
    leaves = [
        {
            "key": f"node.kubernetes.io/{what}",
            "operator": "Exists",
            "effect": "NoExecute",
            "tolerationSeconds": 3,
        }
        for what in ("unreachable", "not-ready")
    ]
    kube.apply(job("patient", replicas=2, group=group()))
    kube.apply(job("hasty", replicas=2, group=group(tolerations=leaves, terminationGracePeriodSeconds=5)))
    for name in ("patient", "hasty"):
        kube.wait_ready(name, 2)
        assert {node for _, _, node, _ in alive(kube, name)} == {"node-2"}
    patient, hasty = alive(kube, "patient"), alive(kube, "hasty")
    cut("stop")
    started = time.monotonic()

    message = kube.wait_condition("patient", "WorkersReady", "False", "WorkerLost", within=60)
    assert "node-2" in message
    assert kube.condition("patient", "Ready")[0] == "False"
    until(lambda: not alive(kube, "hasty"), within=60, what="deletions by the cluster")
    # They cannot be known to have ended: nobody follows on them before their grace and a minute are over.
    until(lambda: kube.condition("hasty", "WorkersReady")[1] == "WorkerLost", what="the reason")
    assert "node-2" in kube.condition("hasty", "WorkersReady")[2]
    most = []

    def replaced():
        most.append(len(alive(kube, "hasty")))
        return len(kube.ready("hasty")) == 2

    until(replaced, within=150, what="replacements")
    waited = time.monotonic() - started
    assert waited > 60
    assert max(most) <= 2
    now = alive(kube, "hasty")
    assert [(index, attempt, node) for index, attempt, node, _ in now] == [(0, 1, "node-1"), (1, 1, "node-1")]
    assert alive(kube, "patient") == patient
    group_status = kube.status("hasty")["workerGroups"][0]
    assert (group_status["failures"], group_status["draining"]) == (0, 2)

    cut("start")
    kube.wait_ready("patient", 2, within=60)
    assert alive(kube, "patient") == patient
    old = {uid for *_, uid in hasty}
    until(
        lambda: not old & {p["metadata"]["uid"] for p in kube.pods("hasty").values()},
        within=60,
        what="the end of the old",
    )
    kube.wait_ready("hasty", 2)
    assert alive(kube, "hasty") == now
    for name in ("patient", "hasty"):
        assert kube.status(name)["workerGroups"][0]["failures"] == 0
    assert operator.probe("healthz")[0] == 200


def test_a_pod_that_is_deleted_by_force_from_a_node_that_is_cut_off(namespaces, operators, cut, group):
    """Its process runs on, unseen: whoever follows has a number of its own, also after the operator's end."""
    kube = namespaces()
    operator = operators(kube, ROLLOUT_POD_NAME="operator-0", ROLLOUT_POD_UID="cut").start().wait_ready()
    kube.apply(job("forced", replicas=2, group=group()))
    kube.wait_ready("forced", 2)
    first = alive(kube, "forced")
    cut("stop")
    time.sleep(1)
    operator.kill()
    kube.run("delete", "pod", "forced-w-0-0", "forced-w-1-0", "--force", "--grace-period=0")
    until(lambda: not kube.pods("forced"), what="no pod")
    # Placed on the node that is left once the other is known to be silent.
    until(
        lambda: "node.kubernetes.io/unreachable" in kube.run("get", "node", "node-2", "-o", "yaml"),
        within=60,
        what="the taint",
    )
    operator.start().wait_ready(within=60)

    kube.wait_ready("forced", 2, within=60)
    now = alive(kube, "forced")
    assert [(index, attempt, node) for index, attempt, node, _ in now] == [(0, 1, "node-1"), (1, 1, "node-1")]
    assert {uid for *_, uid in now}.isdisjoint(uid for *_, uid in first)
    operator.stop()


def test_counts_are_exact_though_a_worker_runs_on_unseen(namespaces, operators, redis_url, cut):
    """One of two workers is cut off with frames in hand; who follows on it delivers them, and the old one none."""
    kube = namespaces()
    tools.needs_worker_image(kube)
    operator = operators(kube).start().wait_ready()
    kube.run("create", "configmap", "code", f"--from-literal=slow.py={SLOW}")
    container = {"name": "worker", "image": tools.WORKER_IMAGE, "imagePullPolicy": "IfNotPresent"}
    container["resources"] = {"requests": {"cpu": "50m", "memory": "200Mi"}, "limits": {"memory": "1Gi"}}
    spread = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": {"rolloutjob.dev/job-name": "exact"}},
    }
    spec = {
        "containers": [container],
        "terminationGracePeriodSeconds": 5,
        "topologySpreadConstraints": [spread],
    }
    manifest = job(
        "exact",
        replicas=2,
        group={"template": {"spec": spec}},
        env={"entrypoint": "slow:Slow", "envsPerWorker": 2, "backend": "Serial"},
        policy={"entrypoint": "slow:make_policy"},
        code={"configMapRef": {"name": "code"}},
        collector={"framesPerBatch": 40, "totalFrames": 6000},
        stream={"groups": ["learner"]},
    )
    kube.apply(manifest)
    kube.wait_ready("exact", 2, within=90)
    places = {node: index for index, _, node, _ in alive(kube, "exact")}
    assert set(places) == {"node-1", "node-2"}
    cut("stop")
    lost = places["node-2"]
    until(lambda: "does not answer" in kube.condition("exact", "WorkersReady")[2], within=60, what="its node")
    # As an administrator does who knows that the node is lost: the pod is gone, its process runs on.
    kube.run("delete", "pod", f"exact-w-{lost}-0", "--force", "--grace-period=0")
    until(lambda: (lost, 1, "node-1") in {a[:3] for a in alive(kube, "exact")}, what="who follows")
    kube.wait_ready("exact", 2, within=120)
    cut("start")

    seen, frames = [], 0
    with RolloutStream.connect(redis_url, job=f"{kube.namespace}/exact") as stream:
        for batch in stream.batches("learner"):
            frames += int(batch.data.numel())
            worker = batch.header.worker
            seen.append((worker.index, batch.header.sequence, worker.attempt))
            batch.ack()
    assert frames == 6000
    assert len({(index, sequence) for index, sequence, _ in seen}) == len(seen)
    attempts = [attempt for index, _, attempt in seen if index == lost]
    assert attempts == sorted(attempts)  # nothing of the first after something of the second
    assert set(attempts) == {0, 1}
    kube.wait_condition("exact", "Complete", "True", "TotalFramesReached", within=60)
    status = kube.status("exact")
    assert (status["progress"]["frames"], status["workerGroups"][0]["failures"]) == (6000, 0)
    operator.stop()
