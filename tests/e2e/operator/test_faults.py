"""The operator killed, doubled, cut off and ended in order: pods are never doubled, and what was counted stays counted."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import time

import pytest
from cluster_tools import PodHistory, fake_template, job, until

pytestmark = [pytest.mark.usefixtures("fake_nodes"), pytest.mark.slow, pytest.mark.timeout(300)]

CLUSTER = os.environ.get("ROLLOUT_TEST_CLUSTER") or shutil.which("cluster")
"""The program that restarts parts of the test cluster."""
ROUNDS = 30 if os.environ.get("SOAK") == "1" else 3


def slots(kube, name):
    """(worker index, attempt) of each pod that lives."""
    return sorted(
        int(pod["metadata"]["labels"]["rolloutjob.dev/worker-index"])
        for pod in kube.pods(name).values()
        if not pod["metadata"].get("deletionTimestamp")
    )


def lease_of(kube):
    """The Lease's spec."""
    return (kube.get("lease", "rollout-operator") or {}).get("spec") or {}


@pytest.mark.probe("P-45")
@pytest.mark.timeout(90 + 30 * ROUNDS)
def test_killed_at_random_moments(namespaces, operators, tmp_path):
    """Two run at once; one of them, or both, are killed while there is something to do. Pods vanish meanwhile."""
    kube, chance = namespaces(), random.Random(7)
    # Each process starts again under its identity, as the same pod's next container does.
    both = [operators(kube, ROLLOUT_POD_NAME=f"operator-{i}", ROLLOUT_POD_UID="one") for i in range(2)]
    kube.apply(job("tough", replicas=4, failurePolicy={"backoffSeconds": 0}))
    with PodHistory(kube, "tough", tmp_path / "pods") as history:
        for operator in both:
            operator.start()
        until(lambda: any(operator.probe("readyz")[0] == 200 for operator in both), what="one of them")
        for _ in range(ROUNDS):
            kube.run("scale", "roj", "tough", f"--replicas={chance.choice([2, 4, 6, 9])}")
            time.sleep(chance.uniform(0.0, 2.5))
            victims = chance.choice([both[:1], both[1:], both])
            for operator in victims:
                operator.kill()
            if chance.random() < 0.5 and (names := sorted(kube.pods("tough"))):
                kube.run("delete", "pod", chance.choice(names), "--force", "--grace-period=0", check=False)
            time.sleep(chance.uniform(0.0, 1.0))
            for operator in victims:
                operator.start()
        kube.run("scale", "roj", "tough", "--replicas=5")
        kube.wait_ready("tough", 5, within=90)
        until(lambda: len(slots(kube, "tough")) == 5, what="no sixth")
        assert len(set(slots(kube, "tough"))) == 5
    assert history.check() >= 5
    assert kube.status("tough")["workerGroups"][0]["failures"] == 0
    for operator in both:
        operator.stop()
        assert "reconcile failed" not in operator.log()


def test_counts_survive_a_kill(namespaces, operators):
    kube = namespaces()
    operator = operators(kube, ROLLOUT_POD_NAME="operator-0", ROLLOUT_POD_UID="two").start()
    group = {"name": "w", "elastic": True, "template": fake_template(outcome="fail", after_ms=500)}
    policy = {"backoffLimit": 4, "backoffSeconds": 0}
    kube.apply(job("counted", group=group, failurePolicy=policy))
    for _ in range(3):
        time.sleep(1.2)
        operator.kill()
        operator.start()

    message = kube.wait_condition("counted", "Failed", "True", "BackoffLimitExceeded", within=60)
    assert "5 worker failures, backoffLimit is 4" in message
    assert kube.status("counted")["workerGroups"][0]["failures"] == 5
    operator.stop()


def test_two_at_once_and_hand_over(namespaces, operators):
    kube = namespaces()
    first, second = operators(kube).start().wait_ready(), operators(kube).start()
    kube.apply(job("shared", replicas=3))
    kube.wait_ready("shared", 3)
    holder = lease_of(kube)["holderIdentity"]

    until(lambda: holder in second.probe("readyz")[1], what="the second one's wait")
    assert second.probe("readyz")[0] == 503
    assert second.probe("healthz")[0] == 200
    assert second.metric("rollout_api_calls_total", verb="create") == 0

    assert first.stop() == 0
    second.wait_ready(within=15)
    assert lease_of(kube)["holderIdentity"] not in {"", holder}
    assert lease_of(kube)["leaseTransitions"] == 1
    kube.run("scale", "roj", "shared", "--replicas=4")
    kube.wait_ready("shared", 4)
    second.stop()
    assert lease_of(kube)["holderIdentity"] == ""


def test_another_takes_over_from_one_that_was_killed(namespaces, operators):
    kube = namespaces()
    first, second = operators(kube).start().wait_ready(), operators(kube).start()
    until(lambda: "is held by" in second.probe("readyz")[1], what="the second one's wait")
    first.kill()

    second.wait_ready(within=50)
    kube.apply(job("next"))
    kube.wait_ready("next", 1)
    second.stop()


def test_the_lease_is_taken_from_it(namespaces, operators):
    kube = namespaces()
    operator = operators(kube).start().wait_ready()
    spec = {"spec": {"holderIdentity": "somebody-else", "leaseDurationSeconds": 60}}
    kube.run("patch", "lease", "rollout-operator", "--type=merge", "-p", json.dumps(spec))

    assert operator.process.wait(30) == 1
    assert "somebody-else" in operator.log()


@pytest.mark.alone
@pytest.mark.skipif(CLUSTER is None, reason="no program that restarts the API server: ROLLOUT_TEST_CLUSTER")
@pytest.mark.parametrize("component", ["apiserver", "etcd"])
def test_the_api_server_restarts(namespaces, operators, component):
    kube = namespaces()
    operator = operators(kube).start().wait_ready()
    kube.apply(job("steady", replicas=2))
    kube.wait_ready("steady", 2)
    uids = {pod["metadata"]["uid"] for pod in kube.ready("steady")}

    subprocess.run([CLUSTER, "restart", component], check=True, timeout=120, capture_output=True)

    until(
        lambda: kube.run("scale", "roj", "steady", "--replicas=4", check=False).endswith(" scaled\n"),
        what="scale",
    )
    kube.wait_ready("steady", 4, within=60)
    assert uids < {pod["metadata"]["uid"] for pod in kube.ready("steady")}
    assert operator.process.poll() is None
    until(lambda: operator.probe("readyz")[0] == 200, what="readiness")
    operator.stop()


@pytest.mark.probe("P-39")
def test_deletion_needs_no_operator(namespaces, operators):
    kube = namespaces()
    operator = operators(kube).start().wait_ready()
    kube.apply(job("orphan", replicas=2))
    kube.wait_ready("orphan", 2)
    operator.kill()

    kube.run("delete", "roj", "orphan", "--timeout=10s")
    until(lambda: not kube.pods("orphan"), within=60, what="no pod")
