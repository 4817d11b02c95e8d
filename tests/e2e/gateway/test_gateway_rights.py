"""Rights in a cluster: a namespace's roles say everything, for each way to ask; the gateway lends none of its own."""

from __future__ import annotations

import json
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import httpx2
import pytest
from kubernetes import client

from rollout_contract.keys import JobKeys
from rollout_contract.messages import EndKind
from rollout_contract.spec import parse_manifest
from rollout_stream import Control, JobSettings
from rollout_stream.connection import ServerAddress
from rollout_stream.session import Session

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


def path_of(namespace: str, name: str = "", part: str = "") -> str:
    """Of a job, or of all in a namespace."""
    return "/".join(filter(None, [f"/v1/namespaces/{namespace}/rolloutjobs", name, part]))


def kind_of(answer: httpx2.Response) -> str:
    return str(answer.json()["type"]).rpartition(":")[2]


def test_it_is_ready(gateway: Any) -> None:
    stranger = gateway.caller(None)
    assert stranger.get("/healthz").json()["status"] == "ok"
    answer = stranger.get("/readyz")
    assert (answer.status_code, answer.json()["checks"]) == (200, {"store": "ok", "stream": "ok"})


@pytest.mark.probe("P-50")
def test_without_a_valid_token_nothing_is_answered(
    gateway: Any, namespaces: tuple[str, str], editor: Any
) -> None:
    header, body, signature = editor.token.split(".")
    forged = [
        None,
        "wrong-token-0123456789",
        f"{header}.{body}.{signature[:-8]}AAAAAAAA",
        editor.token + "x",
        "x" * 9000,
    ]
    for token in forged:
        caller = gateway.caller(token)
        for path in (path_of(namespaces[0]), "/v1/rolloutjobs", "/metrics", "/openapi.json"):
            answer = caller.get(path)
            assert (answer.status_code, kind_of(answer)) == (401, "unauthenticated"), path


def test_an_editor_may_do_everything_in_one_namespace(
    gateway: Any, namespaces: tuple[str, str], editor: Any, manifest: dict[str, Any]
) -> None:
    here, name = namespaces[0], manifest["metadata"]["name"]
    caller = gateway.caller(editor.token)
    dry = caller.post(path_of(here), json=manifest, params={"dryRun": "All"})
    assert dry.status_code == 201, dry.text
    assert caller.get(path_of(here, name)).status_code == 404
    created = caller.post(path_of(here), json=manifest)
    assert created.status_code == 201, created.text
    assert caller.post(path_of(here), json=manifest).status_code == 409
    assert created.json()["spec"]["collector"]["mode"] == "Sync"  # defaults are visible
    listed = caller.get(path_of(here), params={"labelSelector": "team=rl"}).json()["items"]
    assert name in [job["metadata"]["name"] for job in listed]

    version = caller.get(path_of(here, name)).json()["metadata"]["resourceVersion"]
    patched = caller.patch(path_of(here, name), json={"spec": {"replicas": 3}})
    assert (patched.status_code, patched.json()["spec"]["replicas"]) == (200, 3)
    stale = {"metadata": {"resourceVersion": version}, "spec": {"replicas": 4}}
    assert kind_of(caller.patch(path_of(here, name), json=stale)) == "conflict"
    assert caller.post(path_of(here, name, "suspend")).json()["spec"]["suspend"] is True
    assert caller.post(path_of(here, name, "resume")).json()["spec"]["suspend"] is False

    status = caller.get(path_of(here, name, "status")).json()
    assert status["live"] is None  # nobody has opened its stream
    assert status["liveError"]["reason"] == "StateLost"
    assert caller.get(path_of(here, name, "weights")).status_code == 503
    assert caller.delete(path_of(here, name)).status_code == 200
    assert caller.get(path_of(here, name)).status_code == 404
    assert caller.get(path_of(here, name, "status")).status_code == 404


def test_an_editor_may_do_nothing_elsewhere(
    gateway: Any, cluster: Any, namespaces: tuple[str, str], editor: Any, manifest: dict[str, Any]
) -> None:
    there, name = namespaces[1], manifest["metadata"]["name"]
    cluster.jobs().create_namespaced_custom_object(
        "rolloutjob.dev", "v1alpha1", there, "rolloutjobs", manifest
    )
    caller = gateway.caller(editor.token)
    requests = [
        ("GET", path_of(there), None),
        ("POST", path_of(there), manifest),
        ("GET", path_of(there, name), None),
        ("PATCH", path_of(there, name), {"spec": {"replicas": 2}}),
        ("DELETE", path_of(there, name), None),
        *(("POST", path_of(there, name, verb), None) for verb in ("suspend", "resume", "complete")),
        *(
            ("GET", path_of(there, name, part), None)
            for part in ("status", "workers", "events", "weights", "weights/latest", "seed", "episodes")
        ),
        ("PUT", path_of(there, name, "weights"), None),
        ("PUT", path_of(there, name, "seed"), {"seed": 7}),
    ]
    for method, path, body in requests:
        answer = caller.request(method, path, json=body)
        assert (answer.status_code, kind_of(answer)) == (403, "forbidden"), (method, path)
    # and where the name is not even in use the answer is the same: nothing is told of what is there
    assert caller.get(path_of(there, "nothing-here")).status_code == 403


def test_a_list_over_all_namespaces_shows_those_that_the_caller_may_see(
    gateway: Any, cluster: Any, namespaces: tuple[str, str], viewer: Any, manifest: dict[str, Any]
) -> None:
    seen = []
    for namespace in namespaces:
        for number in range(3):
            name = f"{manifest['metadata']['name']}-{number}"
            document = manifest | {
                "metadata": {"name": name, "labels": {"set": manifest["metadata"]["name"]}}
            }
            cluster.jobs().create_namespaced_custom_object(
                "rolloutjob.dev", "v1alpha1", namespace, "rolloutjobs", document
            )
            seen.append((namespace, name))
    caller = gateway.caller(viewer.token)
    query = {"labelSelector": f"set={manifest['metadata']['name']}", "limit": "2"}
    found, token = [], ""
    while True:
        answer = caller.get("/v1/rolloutjobs", params=query | ({"continue": token} if token else {}))
        assert answer.status_code == 200, answer.text
        page = answer.json()
        found += [(job["metadata"]["namespace"], job["metadata"]["name"]) for job in page["items"]]
        token = page["metadata"]["continue"]
        if not token:
            break
    assert found == [place for place in seen if place[0] == namespaces[0]]


def test_a_viewer_may_look_and_no_more(
    gateway: Any, cluster: Any, namespaces: tuple[str, str], viewer: Any, manifest: dict[str, Any]
) -> None:
    here, name = namespaces[0], manifest["metadata"]["name"]
    cluster.jobs().create_namespaced_custom_object(
        "rolloutjob.dev", "v1alpha1", here, "rolloutjobs", manifest
    )
    caller = gateway.caller(viewer.token)
    assert caller.get(path_of(here, name)).status_code == 200
    assert caller.get(path_of(here, name, "status")).status_code == 200
    changes = [
        caller.patch(path_of(here, name), json={"spec": {"replicas": 2}}),
        caller.put(path_of(here, name, "seed"), json={"seed": 1}),
        caller.put(path_of(here, name, "weights"), content=b"x"),
        caller.post(path_of(here, name, "complete")),
        caller.delete(path_of(here, name)),
    ]
    assert [answer.status_code for answer in changes] == [403] * 5


def test_weights_have_a_right_of_their_own(
    gateway: Any,
    cluster: Any,
    namespaces: tuple[str, str],
    make_caller: Callable[..., Any],
    manifest: dict[str, Any],
) -> None:
    here, name = namespaces[0], manifest["metadata"]["name"]
    cluster.jobs().create_namespaced_custom_object(
        "rolloutjob.dev", "v1alpha1", here, "rolloutjobs", manifest
    )
    group = "rolloutjob.dev"
    learner = make_caller(
        [
            {"apiGroups": [group], "resources": ["rolloutjobs"], "verbs": ["get", "list"]},
            {"apiGroups": [group], "resources": ["rolloutjobs/weights"], "verbs": ["get", "update"]},
        ]
    )
    caller = gateway.caller(learner.token)
    assert caller.get(path_of(here, name, "weights")).status_code == 503  # allowed; there is no stream yet
    assert caller.get(path_of(here, name, "seed")).status_code == 403
    assert caller.get(path_of(here, name, "events")).status_code == 403  # no right to watch
    assert caller.delete(path_of(here, name)).status_code == 403


def test_faults_of_the_server_have_paths(
    gateway: Any, namespaces: tuple[str, str], editor: Any, manifest: dict[str, Any]
) -> None:
    caller = gateway.caller(editor.token)
    wrong = json.loads(json.dumps(manifest))
    wrong["spec"]["collector"]["framesPerBatch"] = 0
    wrong["spec"]["replcas"] = 2
    answer = caller.post(path_of(namespaces[0]), json=wrong)
    assert (answer.status_code, kind_of(answer)) == (422, "spec-invalid")
    assert {fault["path"] for fault in answer.json()["errors"]} == {
        "spec.collector.framesPerBatch",
        "spec.replcas",
    }
    # what only the server judges: a label's value
    wrong = manifest | {"metadata": {**manifest["metadata"], "labels": {"team": "no spaces!"}}}
    answer = caller.post(path_of(namespaces[0]), json=wrong)
    assert answer.status_code == 422, answer.text
    assert [fault["path"] for fault in answer.json()["errors"]] == ["metadata.labels"]


def test_rights_that_are_taken_away_end_within_seconds(
    gateway: Any,
    cluster: Any,
    namespaces: tuple[str, str],
    make_caller: Callable[..., Any],
    rules: dict[str, Any],
    until: Callable[..., Any],
) -> None:
    someone = make_caller([])
    caller = gateway.caller(someone.token)
    assert caller.get(path_of(namespaces[0])).status_code == 403
    role = cluster.allow(namespaces[0], someone.name, rules["view"])
    until(lambda: caller.get(path_of(namespaces[0])).status_code == 200, deadline_s=15)
    cluster.forbid(namespaces[0], role)
    until(lambda: caller.get(path_of(namespaces[0])).status_code == 403, deadline_s=30)


def test_a_deleted_account_is_nobody_within_seconds(
    gateway: Any,
    cluster: Any,
    namespaces: tuple[str, str],
    make_caller: Callable[..., Any],
    rules: dict[str, Any],
    until: Callable[..., Any],
) -> None:
    someone = make_caller(rules["view"])
    caller = gateway.caller(someone.token)
    assert caller.get(path_of(namespaces[0])).status_code == 200
    client.CoreV1Api(cluster.api).delete_namespaced_service_account(someone.name, namespaces[0])
    until(lambda: caller.get(path_of(namespaces[0])).status_code == 401, deadline_s=40)


def test_events_follow_the_resource(
    gateway: Any, cluster: Any, namespaces: tuple[str, str], viewer: Any, manifest: dict[str, Any]
) -> None:
    here, name = namespaces[0], manifest["metadata"]["name"]
    jobs = cluster.jobs()
    jobs.create_namespaced_custom_object("rolloutjob.dev", "v1alpha1", here, "rolloutjobs", manifest)
    arguments = ("rolloutjob.dev", "v1alpha1", here, "rolloutjobs", name)
    events: list[str] = []
    with gateway.caller(viewer.token).stream("GET", path_of(here, name, "events")) as answer:
        lines = answer.iter_lines()
        for line in lines:
            if line.startswith("event: conditions"):
                break
        change = threading.Thread(
            target=lambda: (
                jobs.patch_namespaced_custom_object_status(*arguments, {"status": {"state": "Running"}}),
                jobs.delete_namespaced_custom_object(*arguments),
            )
        )
        change.start()
        deadline = time.monotonic() + 20
        state = ""
        for line in lines:
            assert time.monotonic() < deadline
            if line.startswith("data: ") and '"state"' in line:
                state = json.loads(line.removeprefix("data: "))["state"]
            if line.startswith("event: "):
                events.append(line.removeprefix("event: "))
            if line == "event: deleted":
                break
        change.join(10)
    assert state == "Running"
    assert events[-1] == "deleted"


def test_the_page_takes_the_token_and_keeps_it_sealed(
    gateway: Any, cluster: Any, namespaces: tuple[str, str], viewer: Any, manifest: dict[str, Any]
) -> None:
    here, name = namespaces[0], manifest["metadata"]["name"]
    cluster.jobs().create_namespaced_custom_object(
        "rolloutjob.dev", "v1alpha1", here, "rolloutjobs", manifest
    )
    visitor = gateway.caller(None)
    assert visitor.get("/").status_code == 401
    answer = visitor.post("/login", data={"token": viewer.token})
    assert answer.status_code == 303
    cookie = answer.cookies["rollout_session"]
    for part in viewer.token.split("."):
        assert part not in cookie
    visitor.cookies.set("rollout_session", cookie)
    assert name in visitor.get("/").text
    assert visitor.get("/", params={"namespace": here, "job": name}).status_code == 200
    assert visitor.get("/", params={"namespace": namespaces[1], "job": name}).status_code == 403
    # a cookie is for looking: what changes something wants the token itself
    assert visitor.delete(path_of(here, name)).status_code == 401


@pytest.mark.probe("P-54")
def test_no_secret_is_in_the_log_or_in_an_answer(
    gateway: Any, namespaces: tuple[str, str], editor: Any
) -> None:
    caller = gateway.caller(editor.token)
    answers = [
        caller.get("/readyz").text,
        caller.get("/metrics").text,
        caller.get(path_of(namespaces[0])).text,
        caller.get(path_of(namespaces[1])).text,
        caller.get(path_of(namespaces[0]), params={"continue": uuid.uuid4().hex}).text,
        gateway.log(),
    ]
    secrets = ["s3cr3t-probe-42", editor.token, editor.token.rpartition(".")[2], "0123456789abcdef0123"]
    assert [secret for secret in secrets for answer in answers if secret in answer] == []


@pytest.fixture
def open_job(
    cluster: Any, namespaces: tuple[str, str], redis_port: int, manifest: dict[str, Any]
) -> Iterator[Control]:
    """A job whose stream is open, as the operator opens it."""
    stored = cluster.jobs().create_namespaced_custom_object(
        "rolloutjob.dev", "v1alpha1", namespaces[0], "rolloutjobs", manifest
    )
    ref = parse_manifest(stored).ref
    address = ServerAddress(host="127.0.0.1", port=redis_port, password="s3cr3t-probe-42")
    with closing(Session(address)) as session:
        control = Control(session, ref)
        control.open_job(JobSettings(uid=ref.uid, seed=7, total_frames=100_000, groups=("learner",)))
        yield control
        control.delete()


def test_live_numbers_seed_and_the_end(
    gateway: Any, namespaces: tuple[str, str], editor: Any, open_job: Control
) -> None:
    path = path_of(namespaces[0], open_job.job.name)
    caller = gateway.caller(editor.token)
    status = caller.get(path + "/status").json()
    assert status["live"]["seed"] == status["live"]["seed"] | {"seed": 7, "epoch": 0}
    assert caller.put(path + "/seed", json={"seed": 9}, headers={"if-match": '"0"'}).json()["epoch"] == 1
    assert caller.put(path + "/seed", json={"seed": 10}, headers={"if-match": '"0"'}).status_code == 412
    assert caller.get(path + "/status").json()["live"]["seed"]["seed"] == 9
    place = caller.get(path + "/stream").json()
    assert place["key"] == JobKeys.of(open_job.job).batches
    assert caller.post(path + "/complete").status_code == 202
    assert open_job.read_control().ended == EndKind.FINISHED


@pytest.mark.probe("P-53")
def test_weights_of_two_learners(
    gateway: Any, namespaces: tuple[str, str], editor: Any, open_job: Control
) -> None:
    path = path_of(namespaces[0], open_job.job.name, "weights")
    caller = gateway.caller(editor.token)
    header = b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
    body = len(header).to_bytes(8, "little") + header + bytes(4)
    first = {"if-match": '"0"', "idempotency-key": "one"}
    assert caller.put(path, content=body, headers=first).json()["policyVersion"] == 1
    late = caller.put(path, content=body, headers={"if-match": '"0"', "idempotency-key": "two"})
    assert (late.status_code, late.json()["currentVersion"]) == (412, 1)
    assert caller.put(path, content=body, headers=first).json()["policyVersion"] == 1
    assert caller.get(path + "/latest").content == body
    refused = caller.put(path, content=b"\x80\x04cbuiltins\nexec\n.")
    assert refused.status_code in (415, 422)
    assert [item["policyVersion"] for item in caller.get(path).json()["items"]] == [1]


@pytest.mark.skipif(
    not os.environ.get("SOAK"), reason="takes ten minutes: no cluster makes shorter tokens; SOAK=1"
)
@pytest.mark.timeout(900)
def test_a_token_expires(
    gateway: Any,
    namespaces: tuple[str, str],
    make_caller: Callable[..., Any],
    rules: dict[str, Any],
    open_job: Control,
    until: Callable[..., Any],
) -> None:
    someone = make_caller(rules["view"], seconds=600)
    caller = gateway.caller(someone.token)
    path = path_of(namespaces[0], open_job.job.name)
    with caller.stream("GET", path + "/events", timeout=60) as answer:
        started = time.monotonic()
        for _ in answer.iter_lines():
            pass  # it ends by itself, with the token
    assert 500 < time.monotonic() - started < 700
    until(lambda: caller.get(path).status_code == 401, deadline_s=30)
