"""The operator with exactly the rights that are documented: everything works, and nothing that is granted is unused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from cluster_tools import Kube, complete, fake_template, job, until

pytestmark = [pytest.mark.usefixtures("fake_nodes"), pytest.mark.slow, pytest.mark.timeout(300)]

JOB_RULES = [
    {
        "apiGroups": ["rolloutjob.dev"],
        "resources": ["rolloutjobs"],
        "verbs": ["list", "watch", "patch", "delete"],
    },
    {"apiGroups": ["rolloutjob.dev"], "resources": ["rolloutjobs/status"], "verbs": ["patch"]},
    {"apiGroups": ["rolloutjob.dev"], "resources": ["rolloutjobs/finalizers"], "verbs": ["update"]},
    {
        "apiGroups": [""],
        "resources": ["pods"],
        "verbs": ["get", "list", "watch", "create", "patch", "delete"],
    },
    {"apiGroups": ["events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch"]},
]
"""In each watched namespace."""
LEASE_RULES = [
    {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["create"]},
    {
        "apiGroups": ["coordination.k8s.io"],
        "resources": ["leases"],
        "resourceNames": ["rollout-operator"],
        "verbs": ["update"],
    },
    {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get"]},
]
"""In the operator's own namespace."""


def rbac(kind, name, **more):
    return {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": {"name": name}, **more}


def grant(kube, name, rules, account, home):
    """A Role with the rules, bound to the account."""
    kube.apply(rbac("Role", name, rules=rules))
    subject = {"kind": "ServiceAccount", "name": account, "namespace": home}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
    kube.apply(rbac("RoleBinding", name, roleRef=reference, subjects=[subject]))


def kubeconfig_of(kube, account, path, duration="10m"):
    """A kubeconfig with the account's token."""
    token = kube.run("create", "token", account, f"--duration={duration}").strip()
    config = json.loads(kube.run("config", "view", "--minify", "--raw", "-o", "json"))
    config["users"] = [{"name": config["users"][0]["name"], "user": {"token": token}}]
    path.write_text(yaml.safe_dump(config))
    return path


def used(operator):
    """(verb, resource) of every request that was answered."""
    found = set()
    for line in operator.probe("metrics")[1].splitlines():
        if line.startswith("rollout_api_calls_total") and 'code="403"' not in line:
            labels = dict(part.split("=") for part in line[line.index("{") + 1 : line.index("}")].split(","))
            found.add((labels["verb"].strip('"'), labels["resource"].strip('"')))
    return found


def granted():
    return {
        (verb, r) for rule in JOB_RULES + LEASE_RULES for r in rule["resources"] for verb in rule["verbs"]
    }


@pytest.mark.probe("P-52")
def test_rights_are_the_calls_that_are_made(namespaces, operators, redis_url, tmp_path):
    home, kube = namespaces(), namespaces(labels=["pod-security.kubernetes.io/enforce=restricted"])
    home.run("create", "serviceaccount", "operator")
    grant(home, "lease", LEASE_RULES, "operator", home.namespace)
    grant(kube, "jobs", JOB_RULES, "operator", home.namespace)
    path = kubeconfig_of(home, "operator", tmp_path / "kubeconfig")
    for verb, resource in (
        ("get", "secrets"),
        ("list", "nodes"),
        ("list", "namespaces"),
        ("get", "configmaps"),
    ):
        answer = Kube(path, kube.namespace).run("auth", "can-i", verb, resource, check=False)
        assert "yes" not in answer, f"{verb} {resource}: {answer}"

    operator = operators(home, KUBECONFIG=str(path), ROLLOUT_NAMESPACES=kube.namespace).start().wait_ready()
    live_through_everything(kube, redis_url)
    calls = used(operator) - {("get", "openapi")}
    operator.stop()
    again = operators(home, KUBECONFIG=str(path), ROLLOUT_NAMESPACES=kube.namespace).start().wait_ready()
    calls |= used(again) - {("get", "openapi")}

    by_kopf = {("list", "rolloutjobs"), ("watch", "rolloutjobs")}
    for_owner_references = {("update", "rolloutjobs/finalizers")}
    assert calls <= granted()
    after_a_minute = {("patch", "events")}  # an event that repeats: see the tests of the recorder
    assert granted() - calls <= by_kopf | for_owner_references | after_a_minute
    assert "forbidden" not in operator.log().lower() + again.log().lower()
    again.stop()


def live_through_everything(kube, redis_url):
    """Failures, a conflict, a foreign pod, a repeated event, a finalizer, the end of a life."""
    failing = fake_template(outcome="fail", after_ms=300)
    group = {"name": "w", "elastic": True, "template": failing}
    kube.apply(job("fails", group=group, failurePolicy={"backoffLimit": 1, "backoffSeconds": 0}))
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "full-w-0-0"}}
    spec = fake_template()["spec"]
    spec["securityContext"] = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    spec["containers"][0]["securityContext"] = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }
    kube.apply({**pod, "spec": spec})
    kube.apply(job("full", replicas=2, redis={"cleanupPolicy": "Delete"}, ttlSecondsAfterFinished=1))
    kube.wait_condition("full", "WorkersReady", "False", "PodNameTaken")
    kube.run("delete", "pod", "full-w-0-0", "--wait=false")
    kube.wait_condition("fails", "Failed", "True", within=60)
    kube.wait_ready("full", 2)
    # Enough edits at once that one of them meets a status that is being written.
    for size in (3, 4, 5, 6, 2):
        kube.run("scale", "roj", "full", f"--replicas={size}")
    kube.wait_ready("full", 2)
    complete(kube, "full", redis_url)
    until(lambda: kube.get("roj", "full") is None, within=60, what="the end of its life")


def test_a_token_that_expires_is_replaced(namespaces, operators, tmp_path):
    kube = namespaces()
    kube.run("create", "serviceaccount", "operator")
    grant(kube, "lease", LEASE_RULES, "operator", kube.namespace)
    grant(kube, "jobs", JOB_RULES, "operator", kube.namespace)
    path: Path = kubeconfig_of(kube, "operator", tmp_path / "kubeconfig")
    operator = operators(kube, KUBECONFIG=str(path)).start().wait_ready()
    kube.apply(job("one"))
    kube.wait_ready("one", 1)

    # The account is made anew: its old tokens are worthless from now on.
    kube.run("delete", "serviceaccount", "operator")
    kube.run("create", "serviceaccount", "operator")
    kubeconfig_of(kube, "operator", path)
    kube.run("scale", "roj", "one", "--replicas=3")

    kube.wait_ready("one", 3, within=90)
    assert operator.process.poll() is None
    until(lambda: operator.probe("readyz")[0] == 200, within=60, what="readiness")
    operator.stop()
