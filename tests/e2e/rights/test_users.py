"""People with a role in one namespace: all that the documentation does there, and nothing elsewhere."""

from __future__ import annotations

from typing import Any

import installed
import pytest
import yaml
from installed import POD_SECURITY, SECURITY, Commands, Refused, image, until
from small_jobs import code, job

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240), pytest.mark.xdist_group("platform")]

EXAMPLES = installed.ROOT / "examples"
FORBIDDEN = r"(?i)forbidden"


def learner_job() -> dict[str, Any]:
    """A learner as a Job, as far as its rights go."""
    container = {
        "name": "learner",
        "image": image("rollout-api"),
        "command": ["python", "-c", "print('read')"],
        "securityContext": SECURITY,
    }
    pod = {"restartPolicy": "Never", "securityContext": POD_SECURITY, "containers": [container]}
    spec = {"backoffLimit": 0, "template": {"spec": pod}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "learner"}, "spec": spec}


@pytest.mark.probe("P-52")
def test_an_editor_does_everything_with_kubectl(platform: Any) -> None:
    editor: Commands = platform.editor
    editor("create", "configmap", "mine", "--from-literal=policy.py=# soon")
    editor("create", "configmap", "mine", "--from-literal=policy.py=# now", "--dry-run=client", "-o", "yaml")
    editor("patch", "configmap", "mine", "--type=merge", "--patch", '{"data": {"policy.py": "# now"}}')
    editor.apply(job("mine", collector={"framesPerBatch": 64, "totalFrames": 640}))
    editor("scale", "rolloutjob/mine", "--replicas=2")
    editor("wait", "rolloutjob/mine", "--for=condition=Complete", "--timeout=120s", within_s=130)
    assert "mine" in editor("get", "rolloutjobs", "--output=wide")
    assert "Complete" in editor("describe", "rolloutjob", "mine")
    assert editor("get", "events").strip()

    editor.apply(job("more"))
    editor.ready("more", 1)
    (worker,) = editor.workers("more")
    editor("logs", worker)
    editor("patch", "rolloutjob", "more", "--type=merge", "--patch", '{"spec": {"suspend": true}}')
    editor("wait", "rolloutjob/more", "--for=condition=Suspended", "--timeout=60s")

    editor.apply(learner_job())
    editor("wait", "job/learner", "--for=condition=Complete", "--timeout=90s", within_s=100)
    assert "read" in editor("logs", "job/learner")
    editor("delete", "job", "learner", "--wait=false")
    editor("delete", "rolloutjob", "mine", "more", "--timeout=60s")
    editor("delete", "configmap", "mine")


def test_an_editor_does_nothing_elsewhere(platform: Any) -> None:
    for space in (platform.b, platform.home, Commands("default")):
        elsewhere = Commands(space.namespace, platform.editor.kubeconfig)
        for command in (
            ("get", "rolloutjobs"),
            ("get", "pods"),
            ("get", "configmaps"),
            ("get", "events"),
            ("delete", "rolloutjobs", "--all"),
            ("scale", "rolloutjob/any", "--replicas=2"),
            ("create", "configmap", "any"),
        ):
            with pytest.raises(Refused, match=FORBIDDEN):
                elsewhere(*command)
        with pytest.raises(Refused, match=FORBIDDEN):
            elsewhere.apply(job("any"))


@pytest.mark.parametrize("who", ["editor", "viewer"])
def test_nobody_sees_secrets_or_gets_more_rights(platform: Any, who: str) -> None:
    person: Commands = getattr(platform, who)
    more = "--clusterrole=admin", "--user=me"
    for command in (
        ("get", "secrets"),
        ("get", "nodes"),
        ("get", "rolloutjobs", "--all-namespaces"),
        ("create", "rolebinding", "more", *more),
        ("create", "token", "editor"),
    ):
        with pytest.raises(Refused, match=FORBIDDEN):
            person(*command)
    for part in ("status", "finalizers"):
        with pytest.raises(Refused, match="no"):
            person("auth", "can-i", "patch", "rolloutjobs.rolloutjob.dev", f"--subresource={part}")


def test_a_viewer_reads_and_no_more(platform: Any) -> None:
    platform.a.apply(job("seen"))
    platform.a.ready("seen", 1)
    viewer: Commands = platform.viewer
    (worker,) = viewer.workers("seen")
    for command in (
        ("get", "rolloutjob", "seen"),
        ("describe", "rolloutjob", "seen"),
        ("get", "events"),
        ("wait", "rolloutjob/seen", "--for=condition=Ready", "--timeout=30s"),
    ):
        assert viewer(*command).strip(), command
    viewer("logs", worker)
    for command in (
        ("scale", "rolloutjob/seen", "--replicas=2"),
        ("delete", "rolloutjob", "seen"),
        ("delete", "pod", worker),
        ("exec", worker, "--", "true"),
        ("patch", "rolloutjob", "seen", "--type=merge", "--patch", '{"spec": {"suspend": true}}'),
        ("create", "configmap", "any"),
    ):
        with pytest.raises(Refused, match=FORBIDDEN):
            viewer(*command)
    platform.a("delete", "rolloutjob", "seen", "--wait=false")


@pytest.mark.probe("P-52")
def test_the_gateway_lends_nobody_a_right(platform: Any, token_of: Any) -> None:
    a, b = (f"/v1/namespaces/{space.namespace}/rolloutjobs" for space in (platform.a, platform.b))
    body = job("lent", replicas=0)
    body["spec"]["suspend"] = True
    with platform.gateway(token_of(platform.viewer)) as viewer:
        assert viewer.get(a).status_code == 200
        assert viewer.post(a, json=body).status_code == 403
        assert viewer.get(b).status_code == 403
    with platform.gateway(token_of(platform.editor)) as editor:
        assert editor.post(a, json=body).status_code == 201
        assert editor.post(b, json=body).status_code == 403
        names = [item["metadata"]["name"] for item in editor.get("/v1/rolloutjobs").json()["items"]]
        assert "lent" in names
        assert editor.delete(f"{a}/lent").status_code == 200
    with platform.gateway(None) as stranger:
        assert [stranger.get(path).status_code for path in (a, b, "/metrics", "/")] == [401] * 4


@pytest.mark.parametrize(("role", "may", "may_not"), [
    ("view", ["get", "list", "watch"], ["create", "patch", "delete", "deletecollection"]),
    ("edit", ["get", "list", "watch", "create", "patch", "delete"], ["deletecollection"]),
    ("admin", ["get", "list", "watch", "create", "patch", "delete", "deletecollection"], []),
])  # fmt: skip
def test_the_clusters_own_roles_take_ours_up(
    platform: Any, role: str, may: list[str], may_not: list[str]
) -> None:
    admin: Commands = platform.b
    user = f"--as=somebody-with-{role}"
    admin("create", "rolebinding", f"own-{role}", f"--clusterrole={role}", f"--user={user.partition('=')[2]}")

    def can(verb: str) -> bool:
        try:
            return admin("auth", "can-i", verb, "rolloutjobs.rolloutjob.dev", user).strip() == "yes"
        except Refused:  # kubectl's way to say no
            return False

    until(lambda: can("get"), f"aggregation into {role}", within_s=20)
    assert {verb: can(verb) for verb in (*may, *may_not)} == dict.fromkeys(may, True) | dict.fromkeys(
        may_not, False
    )


def test_the_editors_role_covers_every_example(platform: Any) -> None:
    """What an example applies is something that a namespace's editor may create, change and delete."""
    kinds = sorted(
        {
            (document["apiVersion"], document["kind"])
            for path in EXAMPLES.rglob("*.yaml")
            for document in yaml.safe_load_all(path.read_text(encoding="utf-8"))
            if isinstance(document, dict) and "kind" in document
        }
    )
    assert ("rolloutjob.dev/v1alpha1", "RolloutJob") in kinds
    refused = []
    for version, kind in kinds:
        group = version.rpartition("/")[0]
        resource = f"{kind.lower()}s" + (f".{group}" if group else "")
        for verb in ("create", "get", "patch", "delete"):
            try:
                platform.editor("auth", "can-i", verb, resource)
            except Refused as error:
                refused.append((verb, resource, str(error)))
    assert refused == []


def test_every_pod_is_at_home_in_a_restricted_namespace(platform: Any) -> None:
    """The API server lets no other pod in: that they run says it. What the level does not ask for is looked at."""
    platform.a.apply(code(), job("strict"))
    platform.a.ready("strict", 1)
    for space in (platform.home, platform.a, platform.b):
        labels = space.get("namespace", space.namespace)["metadata"]["labels"]
        assert labels["pod-security.kubernetes.io/enforce"] == "restricted"
        for pod in space.get("pods")["items"]:
            if pod["metadata"]["labels"].get("app.kubernetes.io/part-of") == "rolloutjob":
                contexts = [c["securityContext"] for c in pod["spec"]["containers"]]
                assert all(c["readOnlyRootFilesystem"] for c in contexts), pod["metadata"]["name"]
    assert platform.a.workers("strict")
    platform.a("delete", "rolloutjob", "strict", "--wait=false")


def test_the_release_passes_its_own_test(platform: Any) -> None:
    """`helm test` in a namespace that enforces the restricted level."""
    said = platform.home.helm("test", platform.release.name, "--timeout", "90s")
    assert "Succeeded" in said
