"""A node that is cut off, for a while or for good: nobody is started twice, and the job says which node does not answer.

The node is cut off once, for everybody: most of the time is the cluster's, which waits before it gives a node up. Each story
is a namespace with jobs of its own, and says what happens when its node goes, is away, and comes back.
"""

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

LOST, STAYS = "node-3", "node-1"
OURS = {"key": "rolloutjob.dev/cut-off", "operator": "Exists"}
"""Of the node that is cut off: others' pods keep away from it."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(420),
    pytest.mark.skipif(CLUSTER is None, reason="no program that cuts a node off: ROLLOUT_TEST_CLUSTER"),
]


@pytest.fixture
def cut(kubeconfig, kube):
    """Cuts the third node off, and brings it back; it is back with the end of the test."""
    node = kube.get("node", LOST)
    taints = {taint["key"] for taint in (node or {}).get("spec", {}).get("taints", ())}
    if OURS["key"] not in taints or host_address(kubeconfig) is None:
        pytest.skip(
            f"needs the test cluster with a {LOST} that is tainted with {OURS['key']}, as `make e2e` starts it"
        )

    def turn(how):
        number = LOST.removeprefix("node-")
        subprocess.run([CLUSTER, "node", how, number], check=True, timeout=60, capture_output=True)

    yield turn
    turn("start")
    kube.run("wait", "--for=condition=Ready", f"node/{LOST}", "--timeout=60s")


@pytest.fixture
def group(kubeconfig):
    """A group that prefers the node to be cut off, of pods that are ready as long as their kubelet looks."""

    def make(*, tolerations=(), **spec):
        preference = {
            "weight": 100,
            "preference": {
                "matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [LOST]}]
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
                "tolerations": [OURS, *tolerations],
                "securityContext": {"runAsNonRoot": True, "runAsUser": 65532},
                "containers": [container],
                **spec,
            }
        }
        return {"name": "w", "elastic": True, "template": template}

    return make


FRAMES = 3000
"""Of the job that a worker collects for, unseen; without a reader it stops at a third of them."""
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


def follow_elsewhere(pods):
    """Two workers of a second attempt, none of them on the node that is cut off."""
    places = [(index, attempt) for index, attempt, *_ in pods]
    return places == [(0, 1), (1, 1)] and LOST not in {node for *_, node, _ in pods}


class Story:
    """What one namespace lives through. Steps are called in the order in which they stand here."""

    def __init__(self, kube, operator):
        self.kube, self.operator = kube, operator

    def begin(self, group):
        """Before the node goes: jobs whose pods are where they are to be."""

    def node_goes(self):
        """At once after."""

    def node_is_away(self):
        """As long as it takes."""

    def node_is_back(self):
        """And to the end."""


class SilenceIsWaitedFor(Story):
    """Kubernetes waits 300 s before it takes pods from a node that is silent: nobody follows on them."""

    def begin(self, group):
        self.kube.apply(job("patient", replicas=2, group=group()))
        self.kube.wait_ready("patient", 2)
        self.first = alive(self.kube, "patient")
        assert {node for _, _, node, _ in self.first} == {LOST}

    def node_goes(self):
        message = self.kube.wait_condition("patient", "WorkersReady", "False", "WorkerLost", within=60)
        assert LOST in message
        assert self.kube.condition("patient", "Ready")[0] == "False"

    def node_is_away(self):
        assert alive(self.kube, "patient") == self.first

    def node_is_back(self):
        self.kube.wait_ready("patient", 2, within=60)
        assert alive(self.kube, "patient") == self.first
        assert self.kube.status("patient")["workerGroups"][0]["failures"] == 0
        assert self.operator.probe("healthz")[0] == 200


class DeletedByTheCluster(Story):
    """The pods tolerate 3 s. They cannot be known to have ended: nobody follows before their grace and a minute are over."""

    def begin(self, group):
        leaves = [
            {
                "key": f"node.kubernetes.io/{what}",
                "operator": "Exists",
                "effect": "NoExecute",
                "tolerationSeconds": 3,
            }
            for what in ("unreachable", "not-ready")
        ]
        self.kube.apply(
            job("hasty", replicas=2, group=group(tolerations=leaves, terminationGracePeriodSeconds=5))
        )
        self.kube.wait_ready("hasty", 2)
        self.first = alive(self.kube, "hasty")
        assert {node for _, _, node, _ in self.first} == {LOST}

    def node_goes(self):
        self.started = time.monotonic()
        until(lambda: not alive(self.kube, "hasty"), within=90, what="deletions by the cluster")
        until(lambda: self.kube.condition("hasty", "WorkersReady")[1] == "WorkerLost", what="the reason")
        assert LOST in self.kube.condition("hasty", "WorkersReady")[2]

    def node_is_away(self):
        most = []

        def replaced():
            most.append(len(alive(self.kube, "hasty")))
            return len(self.kube.ready("hasty")) == 2

        until(replaced, within=150, what="replacements")
        assert time.monotonic() - self.started > 60
        assert max(most) <= 2
        self.next = alive(self.kube, "hasty")
        assert follow_elsewhere(self.next)
        group_status = self.kube.status("hasty")["workerGroups"][0]
        assert (group_status["failures"], group_status["draining"]) == (0, 2)

    def node_is_back(self):
        old = {uid for *_, uid in self.first}
        until(
            lambda: not old & {p["metadata"]["uid"] for p in self.kube.pods("hasty").values()},
            within=60,
            what="the end of the old",
        )
        self.kube.wait_ready("hasty", 2)
        assert alive(self.kube, "hasty") == self.next
        assert self.kube.status("hasty")["workerGroups"][0]["failures"] == 0


class DeletedByForce(Story):
    """The processes run on, unseen: whoever follows has a number of its own, also after the operator's end."""

    def begin(self, group):
        self.kube.apply(job("forced", replicas=2, group=group()))
        self.kube.wait_ready("forced", 2)
        self.first = alive(self.kube, "forced")

    def node_goes(self):
        self.operator.kill()
        self.kube.run("delete", "pod", "forced-w-0-0", "forced-w-1-0", "--force", "--grace-period=0")
        until(lambda: not self.kube.pods("forced"), what="no pod")

    def node_is_away(self):
        # Placed on the node that is left once the other is known to be silent.
        until(
            lambda: "node.kubernetes.io/unreachable" in self.kube.run("get", "node", LOST, "-o", "yaml"),
            within=60,
            what="the taint",
        )
        self.operator.start().wait_ready(within=60)
        # The status still tells of the pods that were; who follows is seen by itself.
        until(lambda: follow_elsewhere(alive(self.kube, "forced")), within=60, what="who follows")
        self.kube.wait_ready("forced", 2, within=60)
        now = alive(self.kube, "forced")
        assert follow_elsewhere(now)
        assert {uid for *_, uid in now}.isdisjoint(uid for *_, uid in self.first)


class RunsOnUnseen(Story):
    """One of two workers is cut off with frames in hand; who follows on it delivers them, and the old one none."""

    def __init__(self, kube, operator, redis_url):
        super().__init__(kube, operator)
        self.redis_url = redis_url

    def begin(self, group):
        self.kube.run("create", "configmap", "code", f"--from-literal=slow.py={SLOW}")
        container = {"name": "worker", "image": tools.WORKER_IMAGE, "imagePullPolicy": "IfNotPresent"}
        container["resources"] = {
            "requests": {"cpu": "50m", "memory": "200Mi"},
            "limits": {"memory": "1Gi"},
        }
        spread = {
            "maxSkew": 1,
            "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": {"rolloutjob.dev/job-name": "exact"}},
        }
        names = {"key": "kubernetes.io/hostname", "operator": "In", "values": [STAYS, LOST]}
        required = {"nodeSelectorTerms": [{"matchExpressions": [names]}]}
        spec = {
            "containers": [container],
            "terminationGracePeriodSeconds": 5,
            "topologySpreadConstraints": [spread],
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}},
            "tolerations": [OURS],
        }
        manifest = job(
            "exact",
            replicas=2,
            group={"template": {"spec": spec}},
            env={"entrypoint": "slow:Slow", "envsPerWorker": 2, "backend": "Serial"},
            policy={"entrypoint": "slow:make_policy"},
            code={"configMapRef": {"name": "code"}},
            collector={"framesPerBatch": 40, "totalFrames": FRAMES},
            stream={"groups": ["learner"], "maxUnackedFrames": FRAMES // 3},
        )
        self.kube.apply(manifest)
        self.kube.wait_ready("exact", 2, within=90)
        places = {node: index for index, _, node, _ in alive(self.kube, "exact")}
        assert set(places) == {STAYS, LOST}
        self.lost = places[LOST]

    def node_is_away(self):
        until(
            lambda: "does not answer" in self.kube.condition("exact", "WorkersReady")[2],
            within=60,
            what="its node",
        )
        # As an administrator does who knows that the node is lost: the pod is gone, its process runs on.
        self.kube.run("delete", "pod", f"exact-w-{self.lost}-0", "--force", "--grace-period=0")
        until(lambda: (self.lost, 1, STAYS) in {a[:3] for a in alive(self.kube, "exact")}, what="who follows")
        self.kube.wait_ready("exact", 2, within=120)

    def node_is_back(self):
        seen, frames = [], 0
        with RolloutStream.connect(self.redis_url, job=f"{self.kube.namespace}/exact") as stream:
            for batch in stream.batches("learner"):
                frames += int(batch.data.numel())
                worker = batch.header.worker
                seen.append((worker.index, batch.header.sequence, worker.attempt))
                batch.ack()
        assert frames == FRAMES
        assert len({(index, sequence) for index, sequence, _ in seen}) == len(seen)
        attempts = [attempt for index, _, attempt in seen if index == self.lost]
        assert attempts == sorted(attempts)  # nothing of the first after something of the second
        assert set(attempts) == {0, 1}
        self.kube.wait_condition("exact", "Complete", "True", "TotalFramesReached", within=60)
        status = self.kube.status("exact")
        assert (status["progress"]["frames"], status["workerGroups"][0]["failures"]) == (FRAMES, 0)


def test_a_node_is_cut_off_for_a_while(namespaces, operators, redis_url, cut, group):
    places = [namespaces() for _ in range(4)]
    tools.needs_worker_image(places[0])
    identity = {"ROLLOUT_POD_NAME": "operator-0", "ROLLOUT_POD_UID": "cut"}
    served = [(kube, operators(kube, **identity).start().wait_ready()) for kube in places]
    stories = [
        DeletedByForce(*served[0]),
        SilenceIsWaitedFor(*served[1]),
        DeletedByTheCluster(*served[2]),
        RunsOnUnseen(*served[3], redis_url),
    ]
    for story in stories:
        story.begin(group)
    cut("stop")
    for story in stories:
        story.node_goes()
    # The longest last: what the others wait for happens meanwhile.
    for story in sorted(stories, key=lambda story: isinstance(story, DeletedByTheCluster)):
        story.node_is_away()
    cut("start")
    for story in stories:
        story.node_is_back()
        story.operator.stop()
