"""Workers that end: what counts, what is free, what is kept, when a job gives up. Annotations say how a pod ends."""

from __future__ import annotations

import json

import pytest
from cluster_tools import fake_template, job, until

pytestmark = [pytest.mark.usefixtures("operator", "fake_nodes"), pytest.mark.slow, pytest.mark.timeout(180)]


def failing(after_ms=300):
    """A group whose workers fail."""
    template = fake_template(outcome="fail", after_ms=after_ms)
    return {"name": "w", "elastic": True, "template": template}


def group_of(kube, name):
    """The status of the only group."""
    return (kube.status(name).get("workerGroups") or [{}])[0]


def test_failures_count_once_each_and_end_the_job(kube):
    policy = {"backoffLimit": 2, "backoffSeconds": 0}
    kube.apply(job("doomed", group=failing(), failurePolicy=policy, podRetention={"failed": 1}))

    message = kube.wait_condition("doomed", "Failed", "True", "BackoffLimitExceeded", within=60)
    assert "3 worker failures, backoffLimit is 2" in message
    assert group_of(kube, "doomed")["failures"] == 3
    assert kube.status("doomed")["lastFailure"]["group"] == "w"
    until(lambda: len(kube.pods("doomed")) == 1, what="the one that is kept")
    kept = next(iter(kube.pods("doomed").values()))
    assert kept["metadata"]["annotations"]["rolloutjob.dev/counted"].startswith("failure:")


def test_a_rule_that_ignores(kube):
    rules = [{"name": "fine", "action": "Ignore", "onExitCodes": {"operator": "NotIn", "values": [64]}}]
    policy = {"backoffLimit": 0, "backoffSeconds": 1, "rules": rules}
    kube.apply(job("spared", group=failing(), failurePolicy=policy))

    until(lambda: group_of(kube, "spared").get("disruptions", 0) >= 2, what="two free ends", within=60)
    assert group_of(kube, "spared")["failures"] == 0
    assert kube.condition("spared", "Failed")[0] == "False"


def test_a_limit_of_its_own_for_each_worker(kube):
    policy = {"backoffLimit": 100, "backoffLimitPerWorker": 1, "backoffSeconds": 0}
    kube.apply(job("one", group=failing(), failurePolicy=policy))

    kube.wait_condition("one", "Failed", "True", "WorkerLimitExceeded", within=60)
    assert group_of(kube, "one")["failures"] == 2


def test_an_evicted_worker_is_replaced_for_free(kube):
    kube.apply(job("moved", replicas=2))
    kube.wait_ready("moved", 2)
    uids = {pod["metadata"]["uid"] for pod in kube.ready("moved")}
    eviction = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": "moved-w-0-0", "namespace": kube.namespace},
    }
    path = f"/api/v1/namespaces/{kube.namespace}/pods/moved-w-0-0/eviction"
    kube.run("create", "--raw", path, "-f", "-", stdin=json.dumps(eviction))

    until(lambda: {pod["metadata"]["uid"] for pod in kube.ready("moved")} - uids, what="another worker")
    kube.wait_ready("moved", 2)
    assert group_of(kube, "moved")["failures"] == 0


def test_a_deleted_worker_is_replaced(kube):
    kube.apply(job("shot", replicas=2))
    kube.wait_ready("shot", 2)
    kept = kube.get("pod", "shot-w-1-0")["metadata"]["uid"]

    kube.run("delete", "pod", "shot-w-0-0", "--wait=false")

    until(lambda: len(kube.ready("shot")) == 2, what="two workers")
    kube.wait_ready("shot", 2)
    assert kept in {pod["metadata"]["uid"] for pod in kube.ready("shot")}
    assert group_of(kube, "shot")["failures"] == 0


def test_the_active_deadline(kube):
    kube.apply(job("late", activeDeadlineSeconds=6))

    kube.wait_condition("late", "Failed", "True", "DeadlineExceeded", within=40)
    until(lambda: not kube.pods("late"), what="no pod")


def test_the_stall_deadline(kube):
    kube.apply(job("still", stalledDeadlineSeconds=8))

    kube.wait_condition("still", "Failed", "True", "StalledDeadlineExceeded", within=60)
    assert kube.condition("still", "Stalled")[0] == "True"
