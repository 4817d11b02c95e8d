"""Templates that the cluster does not take cost no running worker; gates, priorities and queues of others are left alone."""

from __future__ import annotations

import time

import cluster_tools as tools
import pytest
from cluster_tools import fake_template, job, until

pytestmark = [pytest.mark.usefixtures("operator", "fake_nodes"), pytest.mark.slow, pytest.mark.timeout(180)]


def group(image="fake", **change):
    """The only group, of this image."""
    template = fake_template(image)
    template["spec"] |= change
    return {"name": "w", "elastic": True, "template": template}


def uids(kube, name):
    """Of the pods that live."""
    pods = kube.pods(name).values()
    return {p["metadata"]["uid"] for p in pods if "deletionTimestamp" not in p["metadata"]}


def rolled(kube, name, image, count):
    """Whether every worker has the image."""
    images = [pod["spec"]["containers"][0]["image"] for pod in kube.ready(name)]
    return images == [image] * count


@pytest.fixture
def cluster_wide(kubeconfig):
    """Makes objects of the cluster that go with the test."""
    kube, made = tools.Kube(kubeconfig, "default"), []

    def make(document):
        kube.apply(document)
        made.append((document["kind"], document["metadata"]["name"]))

    yield make
    for kind, name in reversed(made):
        kube.run("delete", kind, name, "--ignore-not-found")


def admission(kind, name, **more):
    return {"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": name}, **more}


PODS = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}


def policy_against(image, namespace):
    """A rule of the cluster against an image, in one namespace."""
    name = tools.unique("no-image")
    matches = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    spec = {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [PODS]},
        "validations": [
            {
                "expression": f"object.spec.containers.all(c, c.image != '{image}')",
                "message": f"image {image} is not allowed here",
            }
        ],
    }
    binding = {
        "policyName": name,
        "validationActions": ["Deny"],
        "matchResources": {"namespaceSelector": matches},
    }
    yield admission("ValidatingAdmissionPolicy", name, spec=spec)
    yield admission("ValidatingAdmissionPolicyBinding", name, spec=binding)


@pytest.mark.probe("P-41")
@pytest.mark.parametrize(
    ("change", "words"),
    [
        pytest.param({"serviceAccountName": "nobody"}, "nobody", id="an account that is not there"),
        pytest.param({"priorityClassName": "none-such"}, "none-such", id="a priority that is not there"),
        pytest.param({"nodeSelektor": {"a": "b"}}, "nodeSelektor", id="a field that is not known"),
        pytest.param({"dnsPolicy": "Sometimes"}, "Sometimes", id="a value that is not allowed"),
        pytest.param({"volumes": {"name": "a"}}, "volumes", id="a field of another shape"),
    ],
)
def test_a_roll_to_what_no_pod_can_be_made_from(kube, change, words):
    name = f"kept-{next(iter(change)).lower()[:10]}"
    kube.apply(job(name, replicas=3, updateStrategy={"maxUnavailable": 3}))
    kube.wait_ready(name, 3)
    before = uids(kube, name)

    kube.patch(name, {"workerGroups": [group(**change)]})
    assert words in kube.wait_condition(name, "Accepted", "False", "PodRejected")
    assert kube.condition(name, "WorkersReady")[0] == "True"
    assert kube.condition(name, "Ready")[:2] == ("False", "NotAccepted")
    time.sleep(3)
    assert uids(kube, name) == before
    status = kube.status(name)
    assert (status["readyWorkers"], status["workerGroups"][0]["updated"]) == ("3/3", 0)
    kube.run("scale", "roj", name, "--replicas=2")  # what needs no new pod goes on
    until(lambda: len(uids(kube, name)) == 2, what="one fewer")

    kube.patch(name, {"workerGroups": [group("fake:2")]})
    until(lambda: rolled(kube, name, "fake:2", 2), within=60, what="the roll")
    kube.wait_condition(name, "Accepted", "True", "SpecValid")


def test_a_rule_of_the_cluster_against_the_new_image(kube, cluster_wide):
    for document in policy_against("forbidden", kube.namespace):
        cluster_wide(document)
    kube.apply(job("ruled", replicas=2))
    kube.wait_ready("ruled", 2)
    before = uids(kube, "ruled")

    def refused():
        probe = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "probe"}}
        probe["spec"] = fake_template("forbidden")["spec"]
        return "not allowed here" in kube.run(
            "create", "--dry-run=server", "-f", "-", stdin=tools.json.dumps(probe), check=False
        )

    until(refused, what="the rule")
    kube.patch("ruled", {"workerGroups": [group("forbidden")]})
    message = kube.wait_condition("ruled", "Accepted", "False", "PodRejected")
    assert "image forbidden is not allowed here" in message
    time.sleep(2)
    assert uids(kube, "ruled") == before

    kube.patch("ruled", {"workerGroups": [group("allowed")]})
    until(lambda: rolled(kube, "ruled", "allowed", 2), within=60, what="the roll")


def test_a_webhook_that_does_not_answer(kube, cluster_wide):
    """Nobody knows whether a pod would be taken: nothing is taken down, and the job says what is asked in vain."""
    kube.apply(job("hooked", replicas=2))
    kube.wait_ready("hooked", 2)
    before = uids(kube, "hooked")
    name = tools.unique("silent")
    hook = {
        "name": "silent.example.com",
        "clientConfig": {"url": "https://127.0.0.1:1/"},
        "rules": [PODS],
        "failurePolicy": "Fail",
        "sideEffects": "None",
        "timeoutSeconds": 1,
        "admissionReviewVersions": ["v1"],
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": kube.namespace}},
    }
    cluster_wide(admission("ValidatingWebhookConfiguration", name, webhooks=[hook]))
    time.sleep(2)
    kube.patch("hooked", {"workerGroups": [group("fake:2")]})
    until(lambda: "silent.example.com" in kube.condition("hooked", "WorkersReady")[2], what="its name")
    assert kube.condition("hooked", "WorkersReady")[0] == "True"
    assert uids(kube, "hooked") == before
    kube.run("scale", "roj", "hooked", "--replicas=3")
    assert "silent.example.com" in kube.wait_condition("hooked", "WorkersReady", "False", "CreateFailed")

    kube.run("delete", "validatingwebhookconfiguration", name)
    until(lambda: rolled(kube, "hooked", "fake:2", 3), within=90, what="the roll")


def test_nothing_starts_while_one_group_cannot(kube):
    broken = {**group(serviceAccountName="later"), "name": "b", "elastic": False, "replicas": 1}
    kube.apply(job("whole", replicas=2, workerGroups=[group(), broken]))
    assert "later" in kube.wait_condition("whole", "Accepted", "False", "PodRejected")
    time.sleep(2)
    assert not kube.pods("whole")

    kube.run("create", "serviceaccount", "later")
    kube.wait_ready("whole", 3, within=60)


def test_a_suspended_job_is_looked_at_too(kube):
    kube.apply(job("early", suspend=True, group=group(priorityClassName="none-such")))
    assert "none-such" in kube.wait_condition("early", "Accepted", "False", "PodRejected")
    kube.patch("early", {"workerGroups": [group()]})
    kube.wait_condition("early", "Accepted", "True", "SpecValid")
    assert not kube.pods("early")


def test_gates_priority_and_queue_names_of_others(kube, cluster_wide):
    """As a gang scheduler or Kueue uses them: pods wait behind their gate with everything that was written on them."""
    priority = tools.unique("high")
    cluster_wide(
        {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": priority},
            "value": 1000,
        }
    )
    gated = group(schedulingGates=[{"name": "example.com/gang"}], priorityClassName=priority)
    labels = {"kueue.x-k8s.io/queue-name": "queue", "kueue.x-k8s.io/pod-group-name": "gang"}
    gated["template"]["metadata"] = {
        "labels": labels,
        "annotations": {"kueue.x-k8s.io/pod-group-total-count": "3"},
    }
    kube.apply(job("gang", replicas=3, group=gated, startupDeadlineSeconds=600))
    kube.wait_condition("gang", "WorkersReady", "False", "SchedulingGated")
    until(lambda: len(kube.pods("gang")) == 3, what="three pods")
    before = uids(kube, "gang")
    for pod in kube.pods("gang").values():
        assert pod["spec"]["schedulingGates"] == [{"name": "example.com/gang"}]
        assert (pod["spec"]["priorityClassName"], pod["spec"]["priority"]) == (priority, 1000)
        assert labels.items() <= pod["metadata"]["labels"].items()
        assert pod["metadata"]["annotations"]["kueue.x-k8s.io/pod-group-total-count"] == "3"

    # What opens the gate may add a place at the same time.
    for name in kube.pods("gang"):
        patch = '{"spec":{"schedulingGates":null,"nodeSelector":{"type":"kwok"}},"metadata":{"labels":{"seen":"yes"}}}'
        kube.run("patch", "pod", name, "--type=merge", "-p", patch)
    kube.wait_ready("gang", 3)
    assert uids(kube, "gang") == before
    assert kube.status("gang")["workerGroups"][0]["updated"] == 3
