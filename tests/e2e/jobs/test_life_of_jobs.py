"""Jobs of real workers from start to end, with a learner that reads: scaled, suspended, edited, made anew; exact counts."""

from __future__ import annotations

import time

import pytest
from cluster_tools import until
from platform_tools import READY_WITHIN_S, PodWatch

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

LEFT_WITHIN_S = 30.0


def test_an_installation_is_ready_within_a_minute(platform):
    assert platform.seconds_to_ready < READY_WITHIN_S
    print(f"helm install to everything ready: {platform.seconds_to_ready:.1f} s")


@pytest.mark.probe("P-44")
def test_scaled_up_and_down_while_a_learner_reads(kube, make_job, reading):
    kube.apply(make_job("scaled", total=6000))
    reader = reading("scaled", limit=400)
    with PodWatch(kube, "scaled") as pods:
        reader.wait_for(400)
        kube.run("scale", "roj", "scaled", "--replicas=8")
        kube.wait_ready("scaled", 8, within=120)
        reader.limit = 3000
        until(
            lambda: len({read.index for read in reader.seen}) == 8, within=60, what="a batch of each worker"
        )
        reader.wait_for(3000)
        kube.run("scale", "roj", "scaled", "--replicas=2")
        reader.limit = 5000
        until(lambda: len(kube.pods("scaled")) == 2, within=90, what="two workers")
        kube.wait_ready("scaled", 2)
        kept = set(kube.pods("scaled"))
        victims = {name: code for name, code in pods.exit_codes().items() if name not in kept}
        assert len(victims) == 6
        assert set(victims.values()) == {143}, "not all of them drained"
    reader.rest()

    reader.assert_exact(6000)
    kube.wait_condition("scaled", "Complete", "True", "TotalFramesReached", within=60)
    status = kube.status("scaled")
    assert status["progress"]["frames"] == 6000
    assert (status["workerGroups"][0]["failures"], "lastFailure" in status) == (0, False)


def test_suspended_and_resumed_while_a_learner_reads(kube, make_job, reading):
    kube.apply(make_job("paused", replicas=2))
    reader = reading("paused", limit=1000)
    reader.wait_for(1000)

    kube.patch("paused", {"suspend": True})
    kube.wait_condition("paused", "Suspended", "True", within=90)
    assert not kube.pods("paused")
    reader.limit = None  # reads what is there, and waits: a suspended job is not at its end
    at_rest = reader.stand_still()
    reader.limit = at_rest + 400
    kube.patch("paused", {"suspend": False})
    kube.wait_ready("paused", 2, within=90)
    reader.rest()

    assert 1000 <= at_rest < 4000
    reader.assert_exact(4000)
    kube.wait_condition("paused", "Complete", "True", within=60)


def is_rolled(kube, name, count):
    """Whether what the job says is about its newest spec, and all workers are new and ready."""
    job = kube.get("roj", name)
    status = job["status"]
    is_seen = status["observedGeneration"] == job["metadata"]["generation"]
    return (
        is_seen
        and status["workerGroups"][0]["updated"] == count
        and status["readyWorkers"] == f"{count}/{count}"
    )


@pytest.mark.probe("P-41")
def test_an_edited_template_rolls_while_a_learner_reads(kube, make_job, reading):
    strategy = {"type": "RollingReplace", "maxUnavailable": 1}
    kube.apply(make_job("rolled", replicas=3, updateStrategy=strategy))
    kube.wait_ready("rolled", 3, within=90)
    old = set(kube.pods("rolled"))
    reader = reading("rolled", limit=1000)
    reader.wait_for(1000)
    with PodWatch(kube, "rolled") as pods:
        until(lambda: len(pods.events()) >= 3, what="the pods before the edit")
        group = {"name": "w", "elastic": True, "template": make_job.template(EDITED="yes")}
        kube.patch("rolled", {"workerGroups": [group]})
        reader.limit = 3000
        until(lambda: is_rolled(kube, "rolled", 3), within=150, what="three new workers")
        assert pods.fewest_ready("w") == 2
        assert {name: code for name, code in pods.exit_codes().items() if name in old} == dict.fromkeys(
            old, 143
        )
    variables = [
        {variable["name"]: variable.get("value") for variable in pod["spec"]["containers"][0]["env"]}
        for pod in kube.pods("rolled").values()
    ]
    assert [variable.get("EDITED") for variable in variables] == ["yes"] * 3
    reader.rest()

    reader.assert_exact(4000)
    kube.wait_condition("rolled", "Complete", "True", within=60)


def test_deleted_while_it_runs_it_leaves_nothing(platform, kube, make_job, reading):
    def others():
        return set(kube.run("get", "leases,secrets,configmaps,services,jobs", "-o", "name").split())

    before = others()
    kube.apply(make_job("gone", replicas=2, redis={"cleanupPolicy": "Delete"}))
    reader = reading("gone", limit=200)
    reader.wait_for(200)
    mark = f"*{kube.namespace}/gone*"
    with platform.server() as server:
        assert server.keys(mark)

        began = time.monotonic()
        kube.run("delete", "roj", "gone", "--timeout=30s")
        until(lambda: not kube.pods("gone"), what="no pod")
        until(lambda: not server.keys(mark), what="no key")
        assert time.monotonic() - began < LEFT_WITHIN_S
    assert others() == before
    reader.limit = None


def test_made_anew_under_its_name_it_starts_clean(kube, make_job, reading):
    kube.apply(make_job("again"))
    first = reading("again", limit=100)
    first.wait_for(100)
    old = until(lambda: kube.status("again").get("stream", {}).get("key"), what="the stream in the status")
    kube.run("delete", "roj", "again", "--timeout=60s")

    kube.apply(make_job("again", total=400))
    until(lambda: kube.status("again").get("stream", {}).get("key", old) != old, what="a stream of its own")
    second = reading("again")
    second.rest()

    second.assert_exact(400)
    assert {read.attempt for read in second.seen} == {0}
    kube.wait_condition("again", "Complete", "True", within=60)
    assert kube.status("again")["progress"]["frames"] == 400
    first.limit = None


def test_equal_names_in_two_namespaces(platform, kube, make_job, reading):
    (other,) = platform.others
    kube.apply(make_job("twin", total=400))
    other.apply(make_job("twin", total=600))

    reader = reading("twin")
    reader.rest()
    reader.assert_exact(400)
    kube.wait_condition("twin", "Complete", "True", within=60)
    assert other.condition("twin", "Complete")[0] == "False", "nobody has read it yet"
    from platform_tools import Reader

    theirs = Reader(platform.stream(other, "twin"))
    theirs.rest()
    theirs.assert_exact(600)
    other.wait_condition("twin", "Complete", "True", within=60)
