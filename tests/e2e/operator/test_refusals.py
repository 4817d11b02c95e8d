"""What a cluster refuses, and what stands in the way: the job's conditions say so, and nothing is doubled or stolen."""

from __future__ import annotations

import json
import time

import pytest
from cluster_tools import fake_template, job, until

pytestmark = [pytest.mark.usefixtures("operator", "fake_nodes"), pytest.mark.slow, pytest.mark.timeout(180)]


@pytest.mark.probe("P-45")
def test_a_foreign_pod_with_our_name(kube):
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "robbed-w-2-0", "labels": {"app": "theirs"}},
        "spec": fake_template()["spec"],
    }
    kube.apply(pod)
    uid = kube.get("pod", "robbed-w-2-0")["metadata"]["uid"]
    kube.apply(job("robbed", replicas=4))

    message = kube.wait_condition("robbed", "WorkersReady", "False", "PodNameTaken")
    assert "robbed-w-2-0" in message
    until(lambda: len(kube.ready("robbed")) == 3, what="three workers")
    theirs = kube.get("pod", "robbed-w-2-0")
    assert theirs["metadata"]["uid"] == uid
    assert "ownerReferences" not in theirs["metadata"]

    kube.run("delete", "pod", "robbed-w-2-0", "--wait=false")
    kube.wait_ready("robbed", 4)


def test_a_quota_that_is_used_up(namespaces, operators):
    kube = namespaces()
    operators(kube).start().wait_ready()
    kube.run("create", "quota", "few", "--hard=pods=2")
    kube.apply(job("poor", replicas=4))

    message = kube.wait_condition("poor", "WorkersReady", "False", "QuotaExceeded")
    assert "exceeded quota: few" in message
    assert len(kube.pods("poor")) == 2
    assert kube.condition("poor", "Accepted")[0] == "True"

    kube.run("delete", "quota", "few")
    kube.wait_ready("poor", 4)


def test_pod_security_that_refuses_a_template(namespaces, operators):
    kube = namespaces(labels=["pod-security.kubernetes.io/enforce=restricted"])
    operators(kube).start().wait_ready()
    kube.apply(job("modest", replicas=1))
    kube.wait_ready("modest", 1)

    template = fake_template()
    template["spec"]["hostNetwork"] = True
    kube.apply(job("bold", group={"name": "w", "elastic": True, "template": template}))

    assert "hostNetwork" in kube.wait_condition("bold", "Accepted", "False", "PodRejected")
    assert not kube.pods("bold")
    assert kube.status("bold")["state"] == "Pending"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        pytest.param({"nodeSelektor": {"a": "b"}}, "nodeSelektor", id="a field that is not known"),
        pytest.param({"serviceAccountName": "nobody"}, "nobody", id="an account that is not there"),
        pytest.param({"priorityClassName": "none-such"}, "none-such", id="a priority that is not there"),
        pytest.param({"dnsPolicy": "Sometimes"}, "Sometimes", id="a value that is not allowed"),
    ],
)
def test_a_template_that_no_pod_can_be_made_from(kube, change, words):
    name = f"odd-{next(iter(change)).lower()[:10]}"
    template = fake_template()
    template["spec"] |= change
    kube.apply(job(name, group={"name": "w", "elastic": True, "template": template}))

    assert words in kube.wait_condition(name, "Accepted", "False", "PodRejected")
    assert kube.condition(name, "Ready")[:2] == ("False", "NotAccepted")
    assert not kube.pods(name)


def test_another_writer_of_the_status_does_not_stay(kube):
    kube.apply(job("written"))
    kube.wait_ready("written", 1)
    change = json.dumps({"status": {"readyWorkers": "9/9", "state": "Failed"}})
    kube.run("patch", "roj", "written", "--subresource=status", "--type=merge", "-p", change)

    until(lambda: kube.status("written")["readyWorkers"] == "1/1", what="our status")
    assert kube.status("written")["state"] != "Failed"


def test_hands_off_what_another_manages(kube):
    kube.apply(job("theirs", managedBy="example.com/other"))
    kube.apply(job("marker"))
    kube.wait_ready("marker", 1)
    time.sleep(3)

    assert kube.status("theirs") == {}
    assert not kube.pods("theirs")


def test_a_namespace_that_is_not_watched_is_left_alone(kube, namespaces):
    other = namespaces()
    other.apply(job("alone"))
    kube.apply(job("marker2"))
    kube.wait_ready("marker2", 1)
    time.sleep(2)

    assert other.status("alone") == {}


@pytest.mark.probe("P-42")
@pytest.mark.parametrize(
    ("name", "template", "reason", "words"),
    [
        pytest.param(
            "nowhere",
            {"spec": {"nodeSelector": {"no": "such"}, "containers": [{"name": "worker", "image": "x"}]}},
            "Unschedulable",
            "didn't match Pod's node affinity/selector",
            id="no node fits",
        ),
        pytest.param(
            "imageless",
            {"spec": {"containers": [{"name": "worker", "image": "localhost:1/none:1"}]}},
            None,
            "localhost:1/none:1",
            id="no image",
        ),
        pytest.param(
            "secretless",
            {
                "spec": {
                    "containers": [
                        {
                            "name": "worker",
                            "image": "localhost/pause:3.10",
                            "env": [
                                {"name": "A", "valueFrom": {"secretKeyRef": {"name": "gone", "key": "k"}}}
                            ],
                        }
                    ]
                }
            },
            "CreateContainerConfigError",
            "gone",
            id="no secret",
        ),
        pytest.param(
            "mapless",
            {
                "spec": {
                    "volumes": [{"name": "v", "configMap": {"name": "no-code"}}],
                    "containers": [
                        {
                            "name": "worker",
                            "image": "localhost/pause:3.10",
                            "volumeMounts": [{"name": "v", "mountPath": "/v"}],
                        }
                    ],
                }
            },
            "Starting",
            "ConfigMap no-code",
            id="no config map to mount",
        ),
        pytest.param(
            "wrongname",
            {"spec": {"containers": [{"name": "worker", "image": "UPPER/case:1"}]}},
            None,  # the runtime's word for it: InvalidImageName or ErrImagePull
            "UPPER/case:1",
            id="no name of an image",
        ),
    ],
)
def test_pods_that_cannot_start_say_why(kube, name, template, reason, words):
    spec = {"group": {"name": "w", "elastic": True, "template": template}, "startupDeadlineSeconds": 12}
    kube.apply(job(name, **spec))

    message = kube.wait_condition(name, "WorkersReady", "False", reason)
    until(lambda: words in kube.condition(name, "WorkersReady")[2], what=words)
    message = kube.wait_condition(name, "Failed", "True", "StartupDeadlineExceeded", within=40)
    assert words in message
    until(lambda: not kube.pods(name), within=60, what="no pod")
