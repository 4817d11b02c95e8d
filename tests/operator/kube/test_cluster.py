"""The cluster over a server that refuses, races and forgets: each answer becomes the right word, and caches stay true."""

from __future__ import annotations

import asyncio

import pytest
from fake_api import Fault
from operator_builders import BASE

from rollout_contract.status import Reason
from rollout_operator.cluster import (
    ClusterError,
    Creation,
    Event,
    EventKind,
    JobKey,
    PodRef,
    PodRefused,
    StaleJob,
    TryLater,
)
from rollout_operator.kube.api_errors import Patience
from rollout_operator.kube.cluster import KubernetesCluster
from rollout_operator.kube.events import BURST, EventRecorder
from rollout_operator.kube.gate import Gate, WritesHeld
from rollout_operator.kube.refusals import is_room_lacking

KEY = JobKey("rl", "a")


@pytest.fixture
def reasons():
    """Why the gate is closed."""
    return []


@pytest.fixture
def recorder(api):
    return EventRecorder(api, instance="me")


@pytest.fixture
def cluster(api, recorder, reasons):
    gate = Gate([lambda: reasons[0] if reasons else ""])
    return KubernetesCluster(api, gate, recorder, namespaces=["rl"], ready=lambda: asyncio.sleep(0))


@pytest.fixture
def job(server, cluster):
    """A job that both know."""
    document = server.create("rolloutjobs", {"metadata": {"namespace": "rl", "name": "a"}, "spec": BASE})
    cluster.jobs.put(document)
    return document


def manifest(job, index=0):
    """A worker pod."""
    uid = job["metadata"]["uid"]
    owner = {
        "apiVersion": "rolloutjob.dev/v1alpha1",
        "kind": "RolloutJob",
        "name": "a",
        "uid": uid,
        "controller": True,
    }
    labels = {
        "rolloutjob.dev/job-uid": uid,
        "rolloutjob.dev/worker-group": "w",
        "rolloutjob.dev/worker-index": str(index),
        "rolloutjob.dev/attempt": "0",
    }
    metadata = {"namespace": "rl", "name": f"a-w-{index}-0", "labels": labels, "ownerReferences": [owner]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"containers": [{"name": "worker"}]},
    }


async def test_a_created_pod_is_known_before_the_watch_says_so(server, cluster, job):
    assert await cluster.create_pod(manifest(job)) is Creation.CREATED

    pods = await cluster.list_pods(KEY, job_uid=job["metadata"]["uid"])
    assert [pod.name for pod in pods] == ["a-w-0-0"]
    assert "fieldValidation=Strict" in server.calls[-1][1]


async def test_a_pod_that_is_there(server, cluster, job):
    server.create("pods", manifest(job, 0))
    server.create("pods", {"metadata": {"namespace": "rl", "name": "a-w-1-0"}})
    foreign = server.create("pods", {"metadata": {"namespace": "rl", "name": "a-w-2-0"}})
    foreign["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"

    assert [await cluster.create_pod(manifest(job, i)) for i in range(3)] == [
        Creation.OURS,
        Creation.FOREIGN,
        Creation.FOREIGN_ENDING,
    ]
    assert len(await cluster.list_pods(KEY, job_uid=job["metadata"]["uid"])) == 1


async def test_a_pod_that_was_there_a_moment_ago(server, cluster, job):
    server.faults.append(Fault("POST", "/pods", 409, {"reason": "AlreadyExists"}))

    with pytest.raises(ClusterError, match="is gone") as raised:
        await cluster.create_pod(manifest(job))
    assert not isinstance(
        raised.value, PodRefused | TryLater
    )  # it was there: its number must not be used again


async def test_a_pod_is_checked_and_not_made(server, cluster, job):
    await cluster.check_pod(manifest(job))
    assert server.named("pods") == {}
    server.create("pods", manifest(job))
    await cluster.check_pod(manifest(job))
    text = "admission webhook w does not support dry run"
    server.faults.append(Fault("POST", "dryRun=All", 400, {"message": text}))
    await cluster.check_pod(manifest(job))
    server.faults.append(Fault("POST", "dryRun=All", 403, {"message": "no account nobody"}))
    with pytest.raises(PodRefused, match="no account nobody"):
        await cluster.check_pod(manifest(job, 1))


async def test_nothing_is_checked_while_nothing_may_be_written(server, cluster, job, reasons):
    reasons.append("the CRD is old")
    with pytest.raises(WritesHeld):
        await cluster.check_pod(manifest(job))
    assert server.count("POST", "/pods") == 0


@pytest.mark.parametrize(
    ("status", "text", "reason"),
    [
        pytest.param(403, 'pods "p" is forbidden: exceeded quota: q', Reason.QUOTA_EXCEEDED, id="quota"),
        pytest.param(
            403, "pods is forbidden: User cannot create resource pods", Reason.CREATE_FAILED, id="no right"
        ),
        pytest.param(403, "violates PodSecurity restricted", Reason.POD_REJECTED, id="pod security"),
        pytest.param(
            403, "unable to create: namespace is being terminated", Reason.CREATE_FAILED, id="ending"
        ),
        pytest.param(403, "status unknown for quota: q", Reason.CREATE_FAILED, id="a new quota"),
        pytest.param(422, "Pod is invalid: spec.x", Reason.POD_REJECTED, id="invalid"),
        pytest.param(400, 'strict decoding error: unknown field "spec.x"', Reason.POD_REJECTED, id="unknown"),
        pytest.param(500, "failed calling webhook w: refused", Reason.CREATE_FAILED, id="webhook"),
    ],
)
async def test_a_pod_that_is_refused(server, cluster, job, status, text, reason):
    server.faults.append(Fault("POST", "/pods", status, {"message": text}, times=99))

    with pytest.raises(PodRefused) as raised:
        await cluster.create_pod(manifest(job))

    assert (raised.value.reason, str(raised.value)) == (reason, text)
    assert server.count("POST", "/pods") == 1


QUOTA = 'pods "p" is forbidden: exceeded quota: q, requested: '


@pytest.mark.probe("P-41")
@pytest.mark.parametrize(
    ("text", "lacking"),
    [
        pytest.param(f"{QUOTA}pods=1, used: pods=9, limited: pods=9", True, id="used up"),
        pytest.param(f"{QUOTA}pods=1, used: pods=0, limited: pods=0", False, id="none allowed"),
        pytest.param(
            f"{QUOTA}cpu=500m,memory=8Gi, used: cpu=0,memory=0, limited: cpu=4,memory=4Gi", False, id="more than all"
        ),
        pytest.param(f"{QUOTA}cpu=500m,memory=4Gi, used: cpu=0,memory=1, limited: cpu=1,memory=4Gi", True, id="as much"),
        pytest.param("failed quota: q: must specify limits.cpu for: worker", False, id="no need stated"),
        pytest.param("exceeded quota: q", True, id="no numbers"),
    ],
)  # fmt: skip
def test_whether_other_pods_use_what_a_quota_lacks(text, lacking):
    assert is_room_lacking(text) is lacking


@pytest.mark.parametrize(
    ("fault", "wait"),
    [
        pytest.param(Fault("POST", "/pods", 429, {}, {"Retry-After": "30"}, times=9), 30.0, id="busy"),
        pytest.param(
            Fault("POST", "/pods", 409, {"reason": "Conflict"}, times=9), 1.0, id="a race for a quota"
        ),
    ],
)
async def test_a_creation_that_comes_later(server, cluster, job, fault, wait):
    server.faults.append(fault)

    with pytest.raises(TryLater) as raised:
        await cluster.create_pod(manifest(job))

    assert raised.value.retry_after_s == wait


async def test_a_creation_whose_answer_was_lost_is_ours(server, cluster, job):
    server.faults.append(Fault("POST", "/pods", 504, {}, after=True))

    assert await cluster.create_pod(manifest(job)) is Creation.OURS
    assert list(server.named("pods")) == ["a-w-0-0"]


async def made(cluster, job):
    await cluster.create_pod(manifest(job))
    return (await cluster.list_pods(KEY, job_uid=job["metadata"]["uid"]))[0]


async def test_delete(server, cluster, job):
    pod = await made(cluster, job)
    server.run_pods()
    ref = PodRef(pod.namespace, pod.name, pod.uid)

    assert await cluster.delete_pod(ref, grace_s=3.0) is True
    assert (await cluster.list_pods(KEY, job_uid=job["metadata"]["uid"]))[0].deletion_requested is not None
    server.run_pods()
    assert await cluster.delete_pod(ref) is False
    assert await cluster.list_pods(KEY, job_uid=job["metadata"]["uid"]) == []


async def test_a_successor_of_the_same_name_is_not_hit(server, cluster, job):
    pod = await made(cluster, job)
    server.remove("pods", "rl", pod.name)
    other = server.create("pods", manifest(job))
    ref = PodRef("rl", pod.name, pod.uid)

    assert await cluster.delete_pod(ref) is False
    assert await cluster.annotate_pod(ref, {"a": "b"}) is False
    assert server.named("pods")[pod.name]["metadata"] == other["metadata"]


async def test_annotate(server, cluster, job):
    pod = await made(cluster, job)

    assert await cluster.annotate_pod(
        PodRef("rl", pod.name, pod.uid), {"rolloutjob.dev/counted": "failure:1"}
    )
    assert (await cluster.list_pods(KEY, job_uid=job["metadata"]["uid"]))[0].annotations == {
        "rolloutjob.dev/counted": "failure:1"
    }


def write(cluster, job, status, version=None):
    metadata = job["metadata"]
    return cluster.write_status(
        KEY, status, job_uid=metadata["uid"], resource_version=version or metadata["resourceVersion"]
    )


async def test_a_status_is_known_at_once(server, cluster, job):
    await write(cluster, job, {"state": "Running"})

    assert (await cluster.get_job(KEY))["status"] == {"state": "Running"}
    assert server.named("rolloutjobs")["a"]["spec"] == BASE


async def test_a_stale_status_is_not_written_and_the_job_read_anew(server, cluster, job):
    server.edit("rolloutjobs", "rl", "a", lambda document: document["spec"].update(replicas=7))

    with pytest.raises(StaleJob):
        await write(cluster, job, {"state": "Running"})

    assert (await cluster.get_job(KEY))["spec"]["replicas"] == 7
    assert "status" not in server.named("rolloutjobs")["a"]


async def test_a_job_that_was_made_anew_is_not_written_to(server, cluster, job):
    server.remove("rolloutjobs", "rl", "a")
    server.create("rolloutjobs", {"metadata": {"namespace": "rl", "name": "a"}, "spec": BASE})

    with pytest.raises(StaleJob):
        await write(cluster, job, {"state": "Running"})

    assert "status" not in server.named("rolloutjobs")["a"]


async def test_a_job_that_is_gone(server, cluster, job):
    server.remove("rolloutjobs", "rl", "a")

    with pytest.raises(StaleJob):
        await write(cluster, job, {"state": "Running"})

    assert await cluster.get_job(KEY) is None
    await cluster.delete_job(KEY, job_uid=job["metadata"]["uid"])


async def test_delete_job_only_as_it_was_seen(server, cluster, job):
    uid = job["metadata"]["uid"]
    await cluster.delete_job(KEY, job_uid="another")
    server.edit(
        "rolloutjobs", "rl", "a", lambda document: document["spec"].update(ttlSecondsAfterFinished=99)
    )
    with pytest.raises(StaleJob):
        await cluster.delete_job(KEY, job_uid=uid)
    assert server.named("rolloutjobs")

    await cluster.delete_job(KEY, job_uid=uid)
    assert not server.named("rolloutjobs")


async def test_a_closed_gate_lets_nothing_through(server, cluster, job, reasons):
    pod = await made(cluster, job)
    reasons.append("the lease is lost")
    ref, before = PodRef("rl", pod.name, pod.uid), len(server.calls)

    for work in (
        cluster.create_pod(manifest(job, 1)),
        cluster.delete_pod(ref),
        cluster.annotate_pod(ref, {"a": "b"}),
        write(cluster, job, {}),
        cluster.delete_job(KEY, job_uid=job["metadata"]["uid"]),
        cluster.set_finalizers(KEY, ["x"], job_uid="u", resource_version="1"),
    ):
        with pytest.raises(WritesHeld, match="the lease is lost"):
            await work
    await cluster.emit(KEY, [Event(EventKind.NORMAL, "A", "b")], job_uid="u")

    assert len(server.calls) == before


@pytest.mark.parametrize("patience", [Patience(0.5)], ids=["soon"])
async def test_an_error_of_the_server_is_an_error_of_the_cluster(server, cluster, job):
    server.faults.append(Fault("PATCH", "/status", 500, {"message": "etcd is away"}, times=99))

    with pytest.raises(ClusterError, match="etcd is away"):
        await write(cluster, job, {})


class TestEvents:
    """For people: few, and each once."""

    event = Event(EventKind.WARNING, "QuotaExceeded", "no room")

    async def test_one(self, server, cluster):
        await cluster.emit(KEY, [self.event], job_uid="u")

        (found,) = server.named("events").values()
        assert (found["reason"], found["note"], found["type"]) == ("QuotaExceeded", "no room", "Warning")
        assert found["regarding"]["uid"] == "u"
        assert found["reportingController"] == "rolloutjob.dev/rollout-operator"

    async def test_what_repeats_is_counted(self, server, api):
        now = [0.0]
        recorder = EventRecorder(api, instance="me", clock=lambda: now[0])
        for _ in range(5):
            await recorder.emit(KEY, [self.event], job_uid="u")
        assert len(server.named("events")) == 1
        assert server.count("PATCH", "/events") == 0

        now[0] = 61.0
        await recorder.emit(KEY, [self.event], job_uid="u")
        (found,) = server.named("events").values()
        assert found["series"]["count"] == 6

        now[0] = 4000.0
        await recorder.emit(KEY, [self.event], job_uid="u")
        assert len(server.named("events")) == 2

    async def test_a_job_that_talks_too_much_is_hushed(self, server, api):
        recorder = EventRecorder(api, instance="me", clock=lambda: 0.0)
        many = [Event(EventKind.NORMAL, "A", chr(65 + i)) for i in range(40)]
        await recorder.emit(KEY, many, job_uid="u")
        await recorder.emit(JobKey("rl", "b"), many[:1], job_uid="v")

        assert len(server.named("events")) == BURST + 1
        assert recorder.dropped == 40 - BURST

    async def test_an_event_that_is_not_taken_stops_nothing(self, server, recorder):
        server.faults.append(Fault("POST", "/events", 403, {"message": "no"}))

        await recorder.emit(KEY, [self.event, Event(EventKind.NORMAL, "B", "c")], job_uid="u")

        assert [event["reason"] for event in server.named("events").values()] == ["B"]

    async def test_long_notes_are_cut(self, server, recorder):
        await recorder.emit(KEY, [Event(EventKind.NORMAL, "A", "é" * 5000)], job_uid="u")

        (found,) = server.named("events").values()
        assert len(found["note"].encode()) <= 1000


async def test_the_watches_bring_jobs_and_pods(server, cluster, running, until):
    """Through kopf: a job that was there, one that comes, its edit, its end."""
    keys = []
    server.create("rolloutjobs", {"metadata": {"namespace": "rl", "name": "a"}, "spec": BASE})
    task = running(cluster.watch(keys.append))
    await until(lambda: KEY in cluster.jobs, "the first job")
    late = server.create("rolloutjobs", {"metadata": {"namespace": "rl", "name": "late"}, "spec": BASE})
    await until(lambda: JobKey("rl", "late") in cluster.jobs, "the second job")
    server.create("pods", manifest(late))
    await until(lambda: len(cluster.pods) == 1, "the pod")
    server.edit("rolloutjobs", "rl", "a", lambda document: document["spec"].update(replicas=3))
    await until(lambda: cluster.jobs.get(KEY)["spec"].get("replicas") == 3, "the edit")
    server.remove("rolloutjobs", "rl", "a")
    await until(lambda: KEY not in cluster.jobs, "the end")

    assert {KEY, JobKey("rl", "late")} <= set(keys)
    assert cluster.is_synced
    assert cluster.pods_age_s < 60
    task.cancel()
    await asyncio.wait([task])


class TestResync:
    """The second look: what the watch did not bring."""

    async def test_what_was_missed_is_found(self, server, cluster, job):
        keys = []
        cluster._feed.open(keys.append)
        cluster.resync._settle_s = 0.0
        other = JobKey("rl", "b")
        server.create("rolloutjobs", {"metadata": {"namespace": "rl", "name": "b"}, "spec": BASE})
        server.edit("rolloutjobs", "rl", "a", lambda document: document["spec"].update(replicas=4))
        await cluster.resync.look()
        assert cluster.jobs.get(KEY)["spec"]["replicas"] == 4
        assert other in cluster.jobs

        server.remove("rolloutjobs", "rl", "b")
        await cluster.resync.look()
        assert other not in cluster.jobs
        assert keys == [KEY, other, other]
        assert cluster.resync.missed == 3

    async def test_a_watch_that_keeps_up_is_young(self, server, cluster, job):
        cluster.resync._current -= 500
        cluster.resync._settle_s = 0.0
        await cluster.resync.look()
        assert cluster.resync.age_s < 100

        cluster.resync._current -= 500
        server.edit("rolloutjobs", "rl", "a", lambda document: document["spec"].update(replicas=4))
        await cluster.resync.look()
        assert cluster.resync.age_s > 400
        cluster.resync.heard()
        assert cluster.resync.age_s < 100

    @pytest.mark.parametrize("is_heard", [True, False], ids=["one that is late", "one that is dead"])
    async def test_a_watch_that_brings_nothing_is_renewed(self, server, cluster, job, is_heard, monkeypatch):
        renewals = []
        monkeypatch.setattr(cluster.resync, "_dead", lambda: renewals.append(1))
        cluster.resync._settle_s = 0.0
        cluster.resync.heard()
        await cluster.resync.look()
        if is_heard:
            cluster.resync.heard()
        server.edit("rolloutjobs", "rl", "a", lambda document: document["spec"].update(replicas=4))
        await cluster.resync.look()
        assert len(renewals) == (not is_heard)
