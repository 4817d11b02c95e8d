"""Jobs over the interface: list, create, read, patch, delete, and what becomes of wrong ones."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx2
import pytest
import yaml
from fastapi import FastAPI

from rollout_cli.local.job_file import JobFile
from rollout_contract.messages import EndKind
from rollout_contract.spec import RolloutJob
from rollout_stream.aio import Control

JOBS = "/v1/namespaces/default/rolloutjobs"
JSON = {"content-type": "application/json"}
YAML = {"content-type": "application/yaml"}


def finished(type_: str) -> dict[str, Any]:
    """The status of a job that is over."""
    return {
        "state": type_,
        "conditions": [
            {
                "type": type_,
                "status": "True",
                "reason": "TotalFramesReached",
                "message": "",
                "lastTransitionTime": "2026-01-01T10:00:00Z",
                "observedGeneration": 1,
            }
        ],
    }


async def test_a_manifest_becomes_a_job_with_its_defaults_written_out(
    client: httpx2.AsyncClient, make_manifest: Any
) -> None:
    answer = await client.post(JOBS, content=yaml.safe_dump(make_manifest()), headers=YAML)
    assert answer.status_code == 201, answer.text
    created = answer.json()
    assert answer.headers["location"] == f"{JOBS}/cartpole"
    assert answer.headers["etag"] == f'"{created["metadata"]["resourceVersion"]}"'
    assert created["metadata"]["namespace"] == "default"
    assert created["metadata"]["generation"] == 1
    assert created["spec"]["weights"]["keepVersions"] == 3
    assert (await client.get(f"{JOBS}/cartpole")).json() == created
    listed = (await client.get(JOBS)).json()
    assert listed["kind"] == "RolloutJobList"
    assert listed["items"] == [created]


async def test_yaml_and_json_mean_the_same(client: httpx2.AsyncClient, make_manifest: Any) -> None:
    text = json.dumps(make_manifest())
    answers = [
        await client.post(f"{JOBS}?dryRun=All", content=text, headers=kind) for kind in (JSON, YAML, {})
    ]
    assert [answer.status_code for answer in answers] == [201, 201, 201]
    assert len({json.dumps(answer.json()["spec"]) for answer in answers}) == 1
    assert (await client.get(JOBS)).json()["items"] == []


async def test_a_second_job_is_refused(
    client: httpx2.AsyncClient, job: RolloutJob, make_manifest: Any
) -> None:
    for query in ("", "?dryRun=All"):
        answer = await client.post(JOBS + query, json=make_manifest())
        assert answer.status_code == 409
        assert answer.json()["type"] == "urn:rolloutjob:problem:already-exists"


@pytest.mark.probe("P-60")
async def test_every_fault_of_a_manifest_is_listed_with_its_path(
    client: httpx2.AsyncClient, make_manifest: Any
) -> None:
    document = make_manifest(collector={"framesPerBatch": 0}, replicas=-1, colour="blue")
    document["metadata"]["name"] = "a" * 41
    answer = await client.post(JOBS, json=document)
    assert answer.status_code == 422
    problem = answer.json()
    assert problem["type"] == "urn:rolloutjob:problem:spec-invalid"
    assert {fault["path"] for fault in problem["errors"]} == {
        "metadata.name",
        "spec.collector.framesPerBatch",
        "spec.colour",
        "spec.replicas",
    }
    assert all(fault["message"] for fault in problem["errors"])


@pytest.mark.parametrize(
    ("content", "headers", "status"),
    [
        pytest.param(b"{", JSON, 400, id="broken JSON"),
        pytest.param(b"a: [", YAML, 400, id="broken YAML"),
        pytest.param(b"\xff\xfe", YAML, 400, id="no UTF-8"),
        pytest.param(b'{"a": 1, "a": 2}', JSON, 400, id="a key twice"),
        pytest.param(b"a: 1\na: 2", YAML, 400, id="a YAML key twice"),
        pytest.param(b"a: 1\n---\na: 2", YAML, 400, id="two documents"),
        pytest.param(b"!!python/object/apply:os.system [id]", YAML, 400, id="code in YAML"),
        pytest.param(b'{"a": NaN}', JSON, 400, id="NaN"),
        pytest.param(b"[" * 200_000, JSON, 400, id="deep JSON"),
        pytest.param(b"[" * 200_000, YAML, 400, id="deep YAML"),
        pytest.param(b"9" * 200_000, JSON, 400, id="a long number"),
        pytest.param(b"9" * 200_000, YAML, 400, id="a long YAML number"),
        pytest.param(b"1" + b":59" * 100_000, YAML, 400, id="a sexagesimal number"),
        pytest.param(b"", JSON, 400, id="empty JSON"),
        pytest.param(b"", YAML, 422, id="empty YAML"),
        pytest.param(b"[]", JSON, 422, id="a list"),
        pytest.param(b"hello", YAML, 422, id="a text"),
        pytest.param(b"a: &a [*a]", YAML, 422, id="a loop"),
        pytest.param(b"{}", {"content-type": "text/plain"}, 415, id="plain text"),
        pytest.param(b"{}", {"content-type": "application/x-www-form-urlencoded"}, 415, id="a form"),
        pytest.param(b"{}", {"content-type": "multipart/form-data; boundary=x"}, 415, id="multipart"),
        pytest.param(b"{}", {"content-type": "application/json; charset=utf-16"}, 415, id="another charset"),
        pytest.param(b"x" * (3 * 2**20), YAML, 413, id="too large"),
    ],
)
async def test_what_is_no_manifest_is_refused(
    client: httpx2.AsyncClient, content: bytes, headers: dict[str, str], status: int
) -> None:
    answer = await client.post(JOBS, content=content, headers=headers)
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["detail"]


async def test_aliases_that_unfold_without_end_are_refused(client: httpx2.AsyncClient) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 30)]
    answer = await client.post(JOBS, content="\n".join(lines), headers=YAML)
    assert answer.status_code == 422
    assert len(answer.content) < 10_000


async def test_the_path_decides_the_namespace(client: httpx2.AsyncClient, make_manifest: Any) -> None:
    document = make_manifest()
    document["metadata"]["namespace"] = "other"
    answer = await client.post(JOBS, json=document)
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["path"] == "metadata.namespace"
    answer = await client.post("/v1/namespaces/other/rolloutjobs", json=document)
    assert answer.status_code == 201
    assert (await client.get(JOBS)).json()["items"] == []
    assert len((await client.get("/v1/rolloutjobs")).json()["items"]) == 1


@pytest.mark.parametrize(
    ("selector", "found"),
    [
        ("team=rl", 1),
        ("team==rl,!old", 1),
        ("team!=rl", 0),
        ("team in (a, rl)", 1),
        ("team notin (rl)", 0),
        ("team", 1),
        ("!team", 0),
        ("old!=x", 1),
        ("old=", 0),
    ],
)
async def test_labels_select(client: httpx2.AsyncClient, job: RolloutJob, selector: str, found: int) -> None:
    answer = await client.get(JOBS, params={"labelSelector": selector})
    assert len(answer.json()["items"]) == found


@pytest.mark.parametrize(
    "query",
    [
        "labelSelector=a b",
        "labelSelector=a in b",
        "labelSelector=,",
        "labelSelector==x",
        "limit=0",
        "limit=501",
        "limit=x",
    ],
)
async def test_a_wrong_query_is_refused(client: httpx2.AsyncClient, query: str) -> None:
    answer = await client.get(f"{JOBS}?{query}")
    assert answer.status_code == 422
    assert answer.json()["type"] == "urn:rolloutjob:problem:invalid"


async def test_a_job_that_is_not_there(client: httpx2.AsyncClient, job: RolloutJob) -> None:
    for path in (f"{JOBS}/other", "/v1/namespaces/other/rolloutjobs/cartpole"):
        for end in ("", "/status", "/workers", "/weights", "/weights/1", "/seed", "/episodes", "/events"):
            answer = await client.get(path + end)
            assert answer.status_code == 404
            assert answer.json()["type"] == "urn:rolloutjob:problem:not-found"


async def test_scale_by_merge_patch(client: httpx2.AsyncClient, path: str, job: RolloutJob) -> None:
    patch = {
        "spec": {"replicas": 5, "stream": {"maxUnackedFrames": 4096}},
        "metadata": {"labels": {"team": None, "a": "b"}},
    }
    answer = await client.patch(path, json=patch)
    assert answer.status_code == 200, answer.text
    changed = answer.json()
    assert changed["spec"]["replicas"] == 5
    assert changed["spec"]["stream"]["maxUnackedFrames"] == 4096
    assert changed["spec"]["stream"]["claimIdleSeconds"] == 30
    assert changed["metadata"]["labels"] == {"a": "b"}
    assert changed["metadata"]["generation"] == 2
    assert changed["metadata"]["resourceVersion"] != job.metadata.resource_version


async def test_a_dry_run_changes_nothing(client: httpx2.AsyncClient, path: str) -> None:
    answer = await client.patch(f"{path}?dryRun=All", json={"spec": {"replicas": 5}})
    assert answer.json()["spec"]["replicas"] == 5
    assert (await client.get(path)).json()["spec"]["replicas"] == 2


@pytest.mark.parametrize(
    ("patch", "status", "path_at_fault"),
    [
        pytest.param({"spec": {"seed": 3}}, 422, "spec.seed", id="immutable"),
        pytest.param({"spec": {"replicas": -1}}, 422, "spec.replicas", id="out of range"),
        pytest.param({"spec": {"repliccas": 3}}, 422, "spec.repliccas", id="unknown"),
        pytest.param({"metadata": {"name": "other"}}, 422, "metadata.name", id="another name"),
        pytest.param({"metadata": None}, 422, "metadata", id="no metadata"),
        pytest.param({"spec": None}, 422, "spec", id="no spec"),
        pytest.param({"status": {"state": "Complete"}}, 422, "status", id="status"),
        pytest.param(
            {"spec": {"collector": {"framesPerBatch": 128}}}, 422, "spec.collector.framesPerBatch", id="deep"
        ),
    ],
)
async def test_an_edit_that_is_not_allowed(
    client: httpx2.AsyncClient, path: str, patch: dict[str, Any], status: int, path_at_fault: str
) -> None:
    before = (await client.get(path)).json()
    answer = await client.patch(path, json=patch)
    assert answer.status_code == status, answer.text
    assert answer.json()["errors"][0]["path"] == path_at_fault
    assert (await client.get(path)).json() == before


async def test_a_patch_that_is_no_object(client: httpx2.AsyncClient, path: str) -> None:
    for content in (b"[]", b"3", b"null", b'"x"', b"", b"{"):
        answer = await client.patch(
            path, content=content, headers={"content-type": "application/merge-patch+json"}
        )
        assert answer.status_code == 400
    deep = b'{"a":' * 500 + b"1" + b"}" * 500
    assert (await client.patch(path, content=deep, headers=JSON)).status_code == 422


@pytest.mark.probe("P-53")
async def test_an_edit_that_was_overtaken(client: httpx2.AsyncClient, path: str, job: RolloutJob) -> None:
    version = job.metadata.resource_version
    tag = (await client.get(path)).headers["etag"]
    await client.patch(path, json={"spec": {"replicas": 3}})
    by_patch = await client.patch(
        path, json={"metadata": {"resourceVersion": version}, "spec": {"replicas": 4}}
    )
    by_header = await client.patch(path, json={"spec": {"replicas": 4}}, headers={"if-match": tag})
    assert [by_patch.status_code, by_header.status_code] == [409, 412]
    assert by_patch.json()["resourceVersion"] == by_header.json()["resourceVersion"]
    assert (await client.delete(path, headers={"if-match": tag})).status_code == 412
    assert (await client.get(path)).json()["spec"]["replicas"] == 3
    newest = (await client.get(path)).headers["etag"]
    answer = await client.patch(path, json={"spec": {"replicas": 4}}, headers={"if-match": newest})
    assert answer.status_code == 200


async def test_edits_at_once_all_arrive(client: httpx2.AsyncClient, path: str) -> None:
    patches = [{"metadata": {"labels": {f"l{i}": "x"}}} for i in range(4)]
    answers = await asyncio.gather(*(client.patch(path, json=patch) for patch in patches))
    assert [answer.status_code for answer in answers] == [200] * 4
    labels = (await client.get(path)).json()["metadata"]["labels"]
    assert labels == {"team": "rl", "l0": "x", "l1": "x", "l2": "x", "l3": "x"}


async def test_suspend_and_resume(client: httpx2.AsyncClient, path: str) -> None:
    assert (await client.post(path + "/suspend")).json()["spec"]["suspend"] is True
    assert (await client.post(path + "/suspend")).status_code == 200
    assert (await client.post(path + "/resume")).json()["spec"]["suspend"] is False


@pytest.mark.parametrize(
    "metadata",
    [
        {"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "x", "uid": "y"}]},
        {"ownerReferences": None},
        {"finalizers": ["x.y/z"]},
        {"finalizers": None},
        {"generation": 99},
        {"creationTimestamp": None},
        {"deletionTimestamp": "2020-01-01T00:00:00Z"},
        {"managedFields": []},
        {"generateName": "x"},
        {"lables": {"a": "b"}},
    ],
    ids=lambda metadata: next(iter(metadata)),
)
async def test_a_patch_of_other_metadata_is_refused(
    client: httpx2.AsyncClient, path: str, metadata: dict[str, Any]
) -> None:
    """A cluster deletes what has an owner that is not there."""
    before = (await client.get(path)).json()
    patch = {"metadata": metadata, "spec": {"replicas": 3}}
    answer = await client.patch(path, json=patch)
    assert answer.status_code == 422
    assert [f["path"] for f in answer.json()["errors"]] == [f"metadata.{key}" for key in metadata]
    assert (await client.get(path)).json() == before


@pytest.mark.parametrize(
    ("method", "end", "query"),
    [
        ("DELETE", "", "dryRun=All"),
        ("DELETE", "", "dry_run=All"),
        ("PATCH", "", "dryrun=All"),
        ("PATCH", "", "dryRun=All&force=true"),
        ("POST", "/suspend", "dryRun=All"),
        ("POST", "/complete", "dryRun=All"),
        ("PUT", "/seed", "dryRun=All"),
        ("PUT", "/weights", "dryRun=All"),
    ],
)
async def test_a_parameter_that_a_changing_call_does_not_know(
    client: httpx2.AsyncClient, path: str, control: Control, method: str, end: str, query: str
) -> None:
    """Whoever wrote it believes that nothing happens."""
    before = (await client.get(path)).json()
    body = {"seed": 5} if end == "/seed" else {"spec": {"replicas": 3}}
    answer = await client.request(method, f"{path}{end}?{query}", json=body)
    assert answer.status_code == 422, answer.text
    assert answer.json()["errors"][0]["path"].startswith("query.")
    assert (await client.get(path)).json() == before
    assert (await control.seed()).epoch == 0
    assert not (await control.read_control()).ended


async def test_delete(client: httpx2.AsyncClient, path: str) -> None:
    answer = await client.delete(path)
    assert answer.status_code == 200
    assert answer.json()["metadata"]["name"] == "cartpole"
    assert (await client.get(path)).status_code == 404
    assert (await client.delete(path)).status_code == 404


async def test_complete_ends_the_stream_for_good(
    client: httpx2.AsyncClient, path: str, control: Control
) -> None:
    for _ in range(2):
        assert (await client.post(path + "/complete")).status_code == 202
    state = await control.read_control()
    assert state.end is not None
    assert (state.end.kind, state.end.reason) == ("finished", "CompletedByRequest")


async def test_a_failed_job_cannot_be_completed(
    client: httpx2.AsyncClient, path: str, control: Control, job_file: JobFile
) -> None:
    await control.finish(EndKind.FAILED, reason="BackoffLimitExceeded")
    assert (await client.post(path + "/complete")).status_code == 409
    job_file.write_status(finished("Failed"))
    answer = await client.post(path + "/complete")
    assert answer.status_code == 409
    assert answer.json()["type"] == "urn:rolloutjob:problem:not-possible"


async def test_a_finished_job_stays_as_it_is(
    client: httpx2.AsyncClient, path: str, job_file: JobFile
) -> None:
    job_file.write_status(finished("Complete"))
    answer = await client.patch(path, json={"spec": {"replicas": 9}})
    assert answer.status_code == 422
    assert answer.json()["type"] == "urn:rolloutjob:problem:immutable"
    assert (await client.post(path + "/suspend")).status_code == 422
    assert (await client.post(path + "/complete")).status_code == 202


async def test_a_method_that_is_not_there(client: httpx2.AsyncClient, path: str) -> None:
    answer = await client.put(path, json={})
    assert answer.status_code == 405
    assert "GET" in answer.headers["allow"] or "PATCH" in answer.headers["allow"]
    assert answer.json()["type"] == "urn:rolloutjob:problem:method-not-allowed"
    assert (await client.get(path + "/")).status_code == 404


async def test_what_nobody_expected_says_nothing_of_the_inside(
    app: FastAPI,
    client: httpx2.AsyncClient,
    path: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def broken(namespace: str, name: str) -> RolloutJob:
        raise RuntimeError("secret detail in /somewhere/inside.py")

    monkeypatch.setattr(app.state.gateway.store, "get", broken)
    answer = await client.get(path)
    assert answer.status_code == 500
    problem = answer.json()
    assert "secret" not in answer.text
    assert "inside" not in answer.text
    assert problem["incident"] in caplog.text
    assert "secret detail" in caplog.text
