"""The rights of the platform's accounts are the calls that they make: compared with the cluster's own record."""

from __future__ import annotations

import time
from typing import Any

import audit_log
import pytest
from audit_log import Right
from installed import POD_SECURITY, SECURITY, Commands, image, until
from small_jobs import job

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400), pytest.mark.xdist_group("platform")]

REPEATED_AFTER_S = 61.0
"""An event that comes again is counted in the first one, at most once a minute."""
NEVER_CALLED = {Right("rolloutjob.dev", "rolloutjobs/finalizers", "update")}
"""Asked for by an admission plugin that looks at owner references; nothing calls it."""
ANYBODYS = {"selfsubjectreviews", "selfsubjectaccessreviews", "selfsubjectrulesreviews"}
"""Every account has these by default."""


@pytest.mark.probe("P-52")
def test_what_is_granted_is_what_is_called(platform: Any, token_of: Any) -> None:
    if platform.audit is None:
        pytest.skip("needs the cluster's audit log (E2E_AUDIT_LOG names its file)")
    _replace_operator(platform)
    with platform.gateway(token_of(platform.editor)) as gateway:
        _live(platform, gateway)
    for component in ("operator", "gateway"):
        account = f"{platform.release.full}-{component}"
        granted = audit_log.granted(account, platform.home.namespace)
        calls = [
            call
            for call in platform.audit.of(platform.account(component))
            if call.right.resource not in ANYBODYS
        ]
        assert platform.audit.refused(platform.account(component)) == [], component
        used = {(call.namespace, call.right) for call in calls}
        beyond = {
            (namespace, right)
            for namespace, right in used
            if right not in granted.get(namespace, set()) | granted.get("", set())
        }
        assert beyond == set(), component
        unused = {right for rights in granted.values() for right in rights} - {right for _, right in used}
        assert unused == (NEVER_CALLED if component == "operator" else set()), component


@pytest.mark.probe("P-52")
def test_nothing_is_wild_or_secret(platform: Any) -> None:
    """As the cluster has them, after Helm and aggregation."""
    operator = audit_log.granted(f"{platform.release.full}-operator", platform.home.namespace)
    assert set(operator) == {platform.home.namespace, platform.a.namespace, platform.b.namespace}
    gateway = audit_log.granted(f"{platform.release.full}-gateway", platform.home.namespace)
    assert set(gateway) == {""}  # only with TokenReview, and only these
    assert {right.resource for right in gateway[""]} == {"tokenreviews", "subjectaccessreviews"}
    for rights in (*operator.values(), *gateway.values()):
        assert not [right for right in rights if "*" in right or "secrets" in right.resource]
    redis = audit_log.granted(f"{platform.release.full}-redis", platform.home.namespace)
    assert redis == {}


@pytest.mark.probe("P-52")
def test_no_pod_but_the_two_holds_a_token(platform: Any) -> None:
    """Workers, the server and the pods of tests have nothing to say to the API server."""
    platform.a.apply(job("tokenless"))
    platform.a.ready("tokenless", 1)
    for space in (platform.home, platform.a):
        for pod in space.get("pods")["items"]:
            component = pod["metadata"]["labels"].get("app.kubernetes.io/component")
            if component not in ("operator", "gateway"):
                assert pod["spec"].get("automountServiceAccountToken") is False, pod["metadata"]["name"]
                mounts = [m for c in pod["spec"]["containers"] for m in c.get("volumeMounts", ())]
                assert not [m for m in mounts if "serviceaccount" in m["mountPath"]]
    platform.a("delete", "rolloutjob", "tokenless", "--wait=false")


def _replace_operator(platform: Any) -> None:
    """A process that finds the Lease of another one."""
    label = f"app.kubernetes.io/instance={platform.release.name},app.kubernetes.io/component=operator"
    platform.home("delete", "pods", "--selector", label)
    platform.home("rollout", "status", f"deployment/{platform.release.full}-operator", "--timeout=90s")


def _live(platform: Any, gateway: Any) -> None:
    """A job's whole life, with all that may happen to one."""
    a: Commands = platform.a
    path = f"/v1/namespaces/{a.namespace}/rolloutjobs/life"
    platform.b.apply(_failing())
    a.apply(_foreign_pod("life-w-0-0"))
    life = job("life", redis={"cleanupPolicy": "Delete"}, ttlSecondsAfterFinished=1)
    platform.editor.apply(life)
    a.condition("life", "WorkersReady", "False", "PodNameTaken")
    a("delete", "pod", "life-w-0-0", "--grace-period=0", "--force")
    a.ready("life", 1)

    first = _suspend_and_resume(a, gateway, path)
    for size in (2, 1):
        platform.editor("scale", "rolloutjob/life", f"--replicas={size}")
        a.ready("life", size)
    before = a.workers("life")
    patch = '[{"op": "add", "path": "/spec/workerGroups/0/template/metadata", "value": {"labels": {"rolled": "yes"}}}]'
    platform.editor("patch", "rolloutjob", "life", "--type=json", "--patch", patch)
    until(lambda: set(a.workers("life").values()).isdisjoint(before.values()), "new worker", within_s=90)
    a.ready("life", 1)
    _use_gateway(gateway, path)
    platform.b.condition("fails", "Failed", "True", within_s=120)

    time.sleep(max(0.0, first + REPEATED_AFTER_S - time.monotonic()))
    _suspend_and_resume(a, gateway, path)
    assert gateway.post(f"{path}/complete").status_code == 202
    until(lambda: a.get("rolloutjob", "life") is None, "end of the job's life", within_s=90)
    platform.b("delete", "rolloutjob", "fails")


def _suspend_and_resume(a: Commands, gateway: Any, path: str) -> float:
    """When it was suspended."""
    assert gateway.post(f"{path}/suspend").status_code == 200
    a.condition("life", "Suspended", "True")
    when = time.monotonic()
    assert gateway.post(f"{path}/resume").status_code == 200
    a.ready("life", 1)
    return when


def _use_gateway(gateway: Any, path: str) -> None:
    header = b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
    weights = len(header).to_bytes(8, "little") + header + bytes(4)
    answers = [
        gateway.get(path.rpartition("/")[0]),
        gateway.get(path),
        gateway.patch(path, json={"metadata": {"labels": {"team": "rl"}}}),
        *(gateway.get(f"{path}/{part}") for part in ("status", "workers", "stream", "seed", "episodes")),
        gateway.put(f"{path}/seed", json={"seed": 9}),
        gateway.put(f"{path}/weights", content=weights),
        gateway.get(f"{path}/weights/latest"),
        gateway.get("/metrics"),
    ]
    assert [(str(a.url), a.status_code) for a in answers if a.status_code >= 300] == []
    with gateway.stream("GET", f"{path}/events") as events:
        assert next(events.iter_lines())


def _failing() -> dict[str, Any]:
    """Its workers end by themselves, until there were enough of them."""
    policy = {"entrypoint": "crash:make_policy"}
    return job("fails", policy=policy, failurePolicy={"backoffLimit": 1, "backoffSeconds": 0})


def _foreign_pod(name: str) -> dict[str, Any]:
    """A pod of somebody else that has a worker's name."""
    container = {
        "name": "main",
        "image": image("rollout-api"),
        "imagePullPolicy": "IfNotPresent",
        "command": ["sleep", "600"],
        "securityContext": SECURITY,
    }
    spec = {"securityContext": POD_SECURITY, "automountServiceAccountToken": False, "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
