"""What happens to real workers, their server and the gateway while a job runs: what the job says, and exact counts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cluster_tools import until

from rollout_contract.errors import RolloutFailed

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

KILL_CHILDREN = """
import os
for pid in filter(str.isdecimal, os.listdir("/proc")):
    if int(pid) not in (1, os.getpid()):
        os.kill(int(pid), 9)
"""
CLIENT = (Path(__file__).parent / "support" / "patient_client.py").read_text()


def test_workers_that_are_deleted_evicted_and_killed(kube, make_job, reading):
    env = {"entrypoint": "counting:make_env", "envsPerWorker": 2, "backend": "Process", "processes": 1}
    kube.apply(make_job("hurt", replicas=3, env=env, total=10_000, failurePolicy={"backoffSeconds": 0}))
    kube.wait_ready("hurt", 3, within=120)
    reader = reading("hurt", limit=600)
    reader.wait_for(600)

    kube.run("delete", "pod", "hurt-w-0-0", "--grace-period=1", "--wait=false")
    metadata = {"name": "hurt-w-1-0", "namespace": kube.namespace}
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata}
    path = f"/api/v1/namespaces/{kube.namespace}/pods/hurt-w-1-0/eviction"
    kube.run("create", "--raw", path, "-f", "-", stdin=json.dumps(eviction))
    kube.run("exec", "hurt-w-2-0", "--", "python", "-c", KILL_CHILDREN, check=False)

    def are_replaced():
        # A worker that waits for room in the stream does not step, and misses nobody: a little is read at each look.
        reader.limit = min(reader.limit + 60, 8000)
        ready = {pod["metadata"]["name"] for pod in kube.ready("hurt")}
        return ready == {"hurt-w-0-1", "hurt-w-1-1", "hurt-w-2-1"}

    until(are_replaced, within=180, what="workers in the place of all three")
    counts = kube.status("hurt")["workerGroups"][0]
    failure = kube.status("hurt")["lastFailure"]
    reader.rest()

    reader.assert_exact(10_000)
    assert {(read.index, read.attempt) for read in reader.seen} >= {(0, 1), (1, 1), (2, 1)}
    assert counts["failures"] == 1, "only the killed one counts"
    assert (failure["worker"], failure["exitCode"]) == (2, 1)
    kube.wait_condition("hurt", "Complete", "True", within=60)


def test_a_worker_that_runs_out_of_memory(kube, make_job):
    group = {"name": "w", "elastic": True, "template": make_job.template(memory="600Mi")}
    policy = {"backoffLimit": 1, "backoffSeconds": 0}
    kube.apply(make_job("greedy", group=group, kwargs={"hog_at": 15}, failurePolicy=policy))

    message = kube.wait_condition("greedy", "Failed", "True", "BackoffLimitExceeded", within=150)
    failure = kube.status("greedy")["lastFailure"]
    assert (failure["reason"], failure["exitCode"]) == ("OOMKilled", 137)
    assert "OOMKilled" in message
    assert "Failed" in kube.run("get", "roj", "greedy")


def test_workers_that_crash_again_and_again(kube, make_job, reading):
    policy = {"backoffLimit": 2, "backoffSeconds": 0}
    kube.apply(make_job("crashing", kwargs={"raise_at": 25}, failurePolicy=policy))
    reader = reading("crashing")

    message = kube.wait_condition("crashing", "Failed", "True", "BackoffLimitExceeded", within=150)
    assert "3 worker failures, backoffLimit is 2" in message
    failure = kube.status("crashing")["lastFailure"]
    assert "RuntimeError: step 25 is one too many" in failure["message"]
    until(lambda: reader.error, what="the reader's end")
    assert isinstance(reader.error, RolloutFailed), reader.error
    reader.assert_exact(kube.status("crashing")["progress"]["frames"])
    until(lambda: len(kube.pods("crashing")) == 1, within=60, what="the one that is kept")
    log = kube.run("logs", next(iter(kube.pods("crashing"))))
    assert "one too many" in log


def test_the_server_is_killed(platform, kube, make_job, reading):
    kube.apply(make_job("steady", replicas=2))
    kube.wait_ready("steady", 2, within=120)
    workers = {pod["metadata"]["uid"] for pod in kube.ready("steady")}
    reader = reading("steady", limit=1000)
    reader.wait_for(1000)
    server = kube.get("pod", "rollout-redis-0")["metadata"]["uid"]

    kube.run("delete", "pod", "rollout-redis-0", "--grace-period=1", "--wait=false")
    reader.limit = 1600
    until(
        lambda: (
            (kube.get("pod", "rollout-redis-0") or {}).get("metadata", {}).get("uid") not in {None, server}
        ),
        what="another server",
    )
    kube.run("wait", "pod/rollout-redis-0", "--for=condition=Ready", "--timeout=60s")
    reader.rest()

    reader.assert_exact(4000)
    kube.wait_condition("steady", "Complete", "True", "TotalFramesReached", within=90)
    assert kube.status("steady")["workerGroups"][0]["failures"] == 0
    assert workers, "the same workers wrote all of it"
    assert {read.attempt for read in reader.seen} == {0}


@pytest.fixture
def token(kube):
    """Of an account that may look at jobs."""
    kube.run("create", "serviceaccount", "viewer")
    kube.run("create", "role", "viewer", "--verb=get,list,watch", "--resource=rolloutjobs.rolloutjob.dev")
    kube.run("create", "rolebinding", "viewer", "--role=viewer", f"--serviceaccount={kube.namespace}:viewer")
    return kube.run("create", "token", "viewer").strip()


def gateways(kube):
    """Names of ready gateway pods."""
    selector = "app.kubernetes.io/component=gateway"
    return [
        pod["metadata"]["name"]
        for pod in kube.json("get", "pods", "-l", selector)["items"]
        if "deletionTimestamp" not in pod["metadata"]
        and all(status["ready"] for status in pod["status"].get("containerStatuses") or [{"ready": False}])
    ]


@pytest.mark.parametrize(("options", "may_fail_once"), [([], False), (["--grace-period=0", "--force"], True)])
def test_a_gateway_goes_while_a_client_talks(kube, make_job, token, options, may_fail_once, request):
    name = "asked-hard" if options else "asked"
    request.addfinalizer(
        lambda: kube.run("delete", "serviceaccount/viewer", "role/viewer", "rolebinding/viewer")
    )
    kube.apply(make_job(name, replicas=0))
    kube.wait_condition(name, "WorkersReady", "True", within=60)
    until(lambda: len(gateways(kube)) == 2, within=90, what="two gateways")
    image = kube.get("deployment", "rollout-gateway")["spec"]["template"]["spec"]["containers"][0]["image"]
    url = f"http://rollout-gateway/v1/namespaces/{kube.namespace}/rolloutjobs/{name}/status"
    client = ["run", name, f"--image={image}", "--restart=Never", "--command", "--", "python", "-c", CLIENT]
    kube.run(*client, url, token, "20")
    until(lambda: "200" in kube.run("logs", name, check=False), within=60, what="an answer")

    kube.run("delete", "pod", gateways(kube)[0], "--wait=false", *options)

    kube.run("wait", f"pod/{name}", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=60s")
    result = json.loads(kube.run("logs", name).splitlines()[-1])
    assert result["answers"] > 50
    assert result["given_up"] == []
    if not may_fail_once:
        assert result["tried_again"] == [], "it drains: nobody notices that it goes"
    until(lambda: len(gateways(kube)) == 2, within=90, what="two gateways again")
