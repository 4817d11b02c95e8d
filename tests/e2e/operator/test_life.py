"""The life of a job on a real cluster: scale, suspend, edit, end, delete, begin anew. Workers run nothing."""

from __future__ import annotations

import json
import time

import cluster_tools as tools
import pytest
import redis
from cluster_tools import fake_template, job, until

pytestmark = [pytest.mark.usefixtures("operator", "fake_nodes"), pytest.mark.slow, pytest.mark.timeout(180)]


def indices(kube, name):
    """Indices of the workers that live."""
    return sorted(
        int(pod["metadata"]["labels"]["rolloutjob.dev/worker-index"])
        for pod in kube.pods(name).values()
        if not pod["metadata"].get("deletionTimestamp")
    )


def keys_of(url, job_name):
    """Keys of a job."""
    with redis.Redis.from_url(url) as client:
        return client.keys(f"*{job_name}*")


def test_scale_follows_kubectl(kube):
    kube.apply(job("scaled", replicas=2))
    kube.wait_ready("scaled", 2)
    first = {pod["metadata"]["uid"] for pod in kube.ready("scaled")}

    kube.run("scale", "roj", "scaled", "--replicas=5")
    kube.wait_ready("scaled", 5)
    assert first < {pod["metadata"]["uid"] for pod in kube.ready("scaled")}
    assert indices(kube, "scaled") == [0, 1, 2, 3, 4]

    kube.run("scale", "roj", "scaled", "--replicas=1")
    kube.wait_ready("scaled", 1)
    until(lambda: len(kube.pods("scaled")) == 1, what="one pod")
    until(lambda: kube.status("scaled")["replicas"] == 1, what="one replica")
    assert kube.status("scaled")["readyReplicas"] == 1

    kube.run("scale", "roj", "scaled", "--replicas=0")
    kube.wait_condition("scaled", "WorkersReady", "True", "ScaledToZero")
    until(lambda: not kube.pods("scaled"), what="no pod")


def test_suspend_takes_every_pod_and_resume_brings_them_back(kube):
    kube.apply(job("paused", replicas=3))
    kube.wait_ready("paused", 3)
    start = kube.status("paused")["startTime"]

    kube.patch("paused", {"suspend": True})
    kube.wait_condition("paused", "Suspended", "True")
    assert not kube.pods("paused")
    assert kube.status("paused")["state"] == "Suspended"

    time.sleep(1)
    kube.patch("paused", {"suspend": False})
    kube.wait_ready("paused", 3)
    assert kube.status("paused")["startTime"] > start


def test_a_job_that_is_created_suspended_makes_no_pod(kube):
    kube.apply(job("held", replicas=3, suspend=True))

    kube.wait_condition("held", "Suspended", "True")
    assert not kube.pods("held")


@pytest.mark.probe("P-41")
def test_an_edited_template_rolls(kube):
    kube.apply(job("rolled", replicas=4))
    kube.wait_ready("rolled", 4)
    old = {pod["metadata"]["uid"] for pod in kube.pods("rolled").values()}
    group = {"name": "w", "elastic": True, "template": fake_template("fake:2")}

    kube.patch("rolled", {"workerGroups": [group]})
    fewest = []

    def rolled():
        fewest.append(len(kube.ready("rolled")))
        found = kube.get("roj", "rolled")
        status = found["status"]
        is_seen = status["observedGeneration"] == found["metadata"]["generation"]
        return is_seen and status["workerGroups"][0]["updated"] == 4 and status.get("readyWorkers") == "4/4"

    until(rolled, within=60, what="four new workers")
    images = {pod["spec"]["containers"][0]["image"] for pod in kube.pods("rolled").values()}
    assert images == {"fake:2"}
    assert not old & {pod["metadata"]["uid"] for pod in kube.pods("rolled").values()}
    assert min(fewest) >= 3
    job_now = kube.get("roj", "rolled")
    assert job_now["status"]["observedGeneration"] == job_now["metadata"]["generation"]


@pytest.mark.probe("P-41")
def test_every_edit_is_applied_or_refused(kube):
    """One after another, as users do; after each that is taken, the operator has seen it."""
    kube.apply(job("edited", replicas=2, collector={"framesPerBatch": 20, "totalFrames": 2000}))
    kube.wait_ready("edited", 2)

    def seen():
        found = kube.get("roj", "edited")
        return found["status"]["observedGeneration"] == found["metadata"]["generation"]

    def refused(spec, *words):
        answer = kube.run(
            "patch", "roj", "edited", "--type=merge", "-p", json.dumps({"spec": spec}), check=False
        )
        assert all(word in answer for word in words), answer
        assert kube.get("roj", "edited")["metadata"]["generation"] == generation

    kube.patch("edited", {"workerGroups": [{"name": "w", "elastic": True, "template": fake_template("new")}]})
    until(seen, what="the edit, seen: before, all are of the template that was")
    until(lambda: kube.status("edited")["workerGroups"][0]["updated"] == 2, within=60, what="the roll")
    kube.wait_ready("edited", 2)
    kube.patch("edited", {"replicas": 3})
    kube.wait_ready("edited", 3)
    assert indices(kube, "edited") == [0, 1, 2]
    for limit in ({"failurePolicy": {"backoffLimit": 9}}, {"stream": {"maxUnackedFrames": 900}}):
        kube.patch("edited", limit)
        until(seen, within=15, what="that it was seen")
    until(lambda: kube.status("edited")["stream"]["maxUnackedFrames"] == 900, what="the new limit, in force")

    generation = kube.get("roj", "edited")["metadata"]["generation"]
    refused({"collector": {"framesPerBatch": 40}}, "framesPerBatch", "create it again")
    refused({"seed": 8}, "seed")
    refused({"workerGroups": [{"name": "other", "elastic": True}]}, "workerGroups", "suspend")
    kube.patch("edited", {"collector": {"totalFrames": 4000}})
    until(seen, within=15, what="that it was seen")
    generation = kube.get("roj", "edited")["metadata"]["generation"]
    refused({"collector": {"totalFrames": 1000}}, "totalFrames", "grow")
    answer = kube.run("apply", "-f", "-", stdin=json.dumps(job("edited", colector={})), check=False)
    assert 'unknown field "spec.colector"' in answer


def test_groups_of_their_own_size(kube):
    groups = [
        {"name": "a", "replicas": 2, "template": fake_template()},
        {"name": "b", "replicas": 1, "template": fake_template()},
        {"name": "c", "elastic": True, "template": fake_template()},
    ]
    kube.apply(job("groups", replicas=3, workerGroups=groups))

    status = kube.wait_ready("groups", 6)
    assert {g["name"]: (g["desired"], g["ready"]) for g in status["workerGroups"]} == {
        "a": (2, 2),
        "b": (1, 1),
        "c": (3, 3),
    }
    kube.run("delete", "roj", "groups")


@pytest.mark.probe("P-43")
def test_finished_stays_finished(kube, redis_url):
    kube.apply(job("done", replicas=2, ttlSecondsAfterFinished=12))
    kube.wait_ready("done", 2)
    tools.complete(kube, "done", redis_url)

    kube.wait_condition("done", "Complete", "True", "CompletedByRequest")
    completed = kube.status("done")["completionTime"]
    until(lambda: not kube.pods("done"), what="no pod")
    kube.run("label", "roj", "done", "seen=yes")
    assert "Error" in kube.run(
        "patch", "roj", "done", "--type=merge", "-p", '{"spec":{"replicas":3}}', check=False
    ) or not kube.pods("done")
    assert kube.status("done")["completionTime"] == completed
    until(lambda: kube.get("roj", "done") is None, within=30, what="the end of its life")
    time.sleep(2)
    assert not kube.pods("done")


@pytest.mark.probe("P-43")
def test_failed_stays_failed(namespaces, operators):
    """Whatever goes on around it: its pod is deleted, the operator starts anew, labels and its own retention are edited."""
    kube = namespaces()
    operator = operators(kube).start().wait_ready()
    group = {"name": "w", "elastic": True, "template": fake_template(outcome="fail", after_ms=200)}
    kube.apply(job("over", replicas=2, group=group, failurePolicy={"backoffLimit": 0}))
    kube.wait_condition("over", "Failed", "True", "BackoffLimitExceeded", within=60)
    until(lambda: len(kube.pods("over")) == 1, what="the one that is kept")
    before = kube.status("over")
    operator.stop()
    kube.run("delete", "pod", *kube.pods("over"), "--wait=false")
    kube.run("label", "roj", "over", "seen=yes")
    operators(kube).start().wait_ready()
    answer = kube.run("scale", "roj", "over", "--replicas=3", check=False)
    assert "cannot be changed" in answer or kube.get("roj", "over")["spec"]["replicas"] == 3
    time.sleep(4)
    after = kube.status("over")
    assert not kube.pods("over")
    assert (after["completionTime"], after["state"]) == (before["completionTime"], "Failed")
    assert kube.condition("over", "Failed")[:2] == ("True", "BackoffLimitExceeded")


def test_a_job_made_anew_under_its_name_starts_clean(kube, redis_url):
    kube.apply(job("again", replicas=2))
    kube.wait_ready("again", 2)
    key = kube.status("again")["stream"]["key"]
    old = {pod["metadata"]["uid"] for pod in kube.pods("again").values()}
    kube.run("delete", "roj", "again")

    kube.apply(job("again", replicas=2))
    status = kube.wait_ready("again", 2, within=60)

    assert status["stream"]["key"] != key
    until(
        lambda: (
            len(kube.pods("again")) == 2
            and not old & {pod["metadata"]["uid"] for pod in kube.pods("again").values()}
        ),
        what="two new pods",
    )
    assert all(group["failures"] == 0 for group in kube.status("again")["workerGroups"])


def test_equal_names_in_two_namespaces(kube, namespaces, operators):
    other = namespaces()
    operators(other).start().wait_ready()
    for space, count in ((kube, 1), (other, 2)):
        space.apply(job("twin", replicas=count))
    kube.wait_ready("twin", 1)
    other.wait_ready("twin", 2)

    assert kube.status("twin")["stream"]["key"] != other.status("twin")["stream"]["key"]


@pytest.mark.probe("P-39")
def test_a_job_carries_nothing_that_holds_it(kube):
    kube.apply(job("free"))
    kube.wait_ready("free", 1)
    metadata = kube.get("roj", "free")["metadata"]

    assert "finalizers" not in metadata
    assert set(metadata.get("annotations", {})) <= {"kubectl.kubernetes.io/last-applied-configuration"}


def test_keys_go_with_a_job_that_asks_for_it(kube, redis_url):
    kube.apply(job("clean", redis={"cleanupPolicy": "Delete"}))
    kube.wait_ready("clean", 1)
    assert kube.get("roj", "clean")["metadata"]["finalizers"] == ["rolloutjob.dev/redis-cleanup"]
    assert keys_of(redis_url, f"{kube.namespace}/clean")

    kube.run("delete", "roj", "clean", "--timeout=60s")

    assert keys_of(redis_url, f"{kube.namespace}/clean") == []
    until(lambda: not kube.pods("clean"), what="no pod")


def test_events_tell_the_story(kube):
    kube.apply(job("told"))
    kube.wait_ready("told", 1)

    until(lambda: "WorkersReady" in kube.run("describe", "roj", "told"), what="the event")
    assert "rolloutjob.dev/rollout-operator" in kube.run("describe", "roj", "told")


def test_pods_of_a_predecessor_that_still_end(kube):
    # Gated, so that no kubelet ends it; held, so that it stays although its deletion was asked for.
    gated = fake_template()
    gated["spec"]["schedulingGates"] = [{"name": "example.com/wait"}]
    kube.apply(job("slow", group={"name": "w", "elastic": True, "template": gated}))
    kube.wait_condition("slow", "WorkersReady", "False", "SchedulingGated")
    hold = '{"metadata":{"finalizers":["example.com/hold"]}}'
    kube.run("patch", "pod", "slow-w-0-0", "--type=merge", "-p", hold)
    old = kube.get("pod", "slow-w-0-0")["metadata"]["uid"]
    kube.run("delete", "roj", "slow")
    until(
        lambda: "deletionTimestamp" in kube.get("pod", "slow-w-0-0")["metadata"],
        what="its deletion",
        within=60,
    )

    kube.apply(job("slow"))
    kube.wait_condition("slow", "WorkersReady", "False")
    time.sleep(3)
    assert kube.condition("slow", "WorkersReady")[1] != "PodNameTaken"
    assert kube.status("slow")["workerGroups"][0]["failures"] == 0
    assert kube.get("pod", "slow-w-0-0")["metadata"]["uid"] == old

    kube.run("patch", "pod", "slow-w-0-0", "--type=merge", "-p", '{"metadata":{"finalizers":null}}')
    kube.wait_ready("slow", 1)
    assert kube.get("pod", "slow-w-0-0")["metadata"]["uid"] != old
