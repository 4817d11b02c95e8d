"""Each rule of edits, with an edit that it takes and one that it refuses: the server and the contract agree.

Jobs are stored for real, edits are dry runs. What may always be edited is in the table as well, so that nothing is refused
by accident.
"""

from __future__ import annotations

import itertools
from copy import deepcopy
from typing import Any

import pytest

from rollout_contract.mutability import GROUP, SPEC, Change
from rollout_contract.spec import faults_of_update, parse_manifest

Patch = dict[str, Any]

FULL: dict[str, Any] = {
    "managedBy": "example.org/nobody",
    "env": {"entrypoint": "m:env", "envsPerWorker": 8, "kwargs": {"a": 1, "deep": {"b": [1, 2]}}},
    "policy": {"entrypoint": "m:policy", "kwargs": {"hidden": 64}},
    "collector": {"mode": "MultiSync", "collectorsPerWorker": 2, "framesPerBatch": 64, "totalFrames": 1000},
    "seed": 7,
    "replicas": 2,
    "workerGroups": [
        {"name": "a", "elastic": True, "sharedMemory": "1Gi", "maxReplicas": 9},
        {"name": "b", "replicas": 2, "template": {"spec": {"containers": [{"name": "worker", "image": "x:1"}]}}},
    ],
    "stream": {"groups": ["learner"], "maxUnackedFrames": 640},
}  # fmt: skip

OTHER: dict[str, Any] = {
    "suspend": True,
    "managedBy": "example.org/other",
    "env": {"kwargs": {"a": 2}},
    "policy": {"exploration": "Mode"},
    "code": {"configMapRef": {"name": "c"}},
    "collector.mode": "MultiAsync",
    "collector.collectorsPerWorker": 4,
    "collector.coordination": "Barrier",
    "collector.framesPerBatch": 128,
    "collector.totalFrames": 2000,
    "collector.maxFramesPerTraj": 5,
    "collector.initRandomFrames": 5,
    "collector.preemptionThresholdPercent": 50,
    "collector.resetAtEachBatch": True,
    "seed": 8,
    "determinism": "Strict",
    "replicas": 3,
    "updateStrategy": {"maxUnavailable": 2},
    "redis": {"host": "r"},
    "stream.shards": 2,
    "stream.maxUnackedFrames": 1000,
    "stream.maxBytes": "1Gi",
    "stream.onFull": "DropNewest",
    "stream.compression": "Zstd",
    "stream.maxFrameBytes": "1Mi",
    "stream.groups": ["learner", "other"],
    "stream.claimIdleSeconds": 5,
    "stream.rateLimit": {"type": "MinSize", "minFrames": 5},
    "weights.startPolicy": "WaitForWeights",
    "weights.maxStaleness": 3,
    "weights.onStale": "Tag",
    "weights.applyAt": "Step",
    "weights.fetchTimeoutSeconds": 5,
    "weights.keepVersions": 5,
    "weights.maxBytes": "1Gi",
    "failurePolicy": {"backoffLimit": 1, "rules": [{"name": "r", "action": "Ignore"}]},
    "startupDeadlineSeconds": 5,
    "stalledDeadlineSeconds": 5,
    "activeDeadlineSeconds": 5,
    "ttlSecondsAfterFinished": 5,
    "podRetention": {"failed": 3},
}
"""Of every row of the mutability table: another valid value."""

OTHER_OF_GROUP: dict[str, Any] = {
    "elastic": False,
    "replicas": 5,
    "minReplicas": 1,
    "maxReplicas": 8,
    "minAvailable": 1,
    "device": "Cpu",
    "sharedMemory": "2Gi",
    "template": {"spec": {"containers": [{"name": "worker", "image": "x:2"}]}},
}
_numbers = itertools.count()


def merged(base: Any, patch: Any) -> Any:
    if not isinstance(base, dict) or not isinstance(patch, dict):
        return deepcopy(patch)
    result = dict(base)
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


def at(path: str, value: Any) -> Patch:
    for key in reversed(path.split(".")):
        value = {key: value}
    return value


def edited(stored: dict[str, Any], patch: Patch) -> dict[str, Any]:
    return merged(stored, {"spec": patch})


def with_groups(stored: dict[str, Any], change: Any) -> Patch:
    found = deepcopy(stored["spec"]["workerGroups"])
    change(found)
    return {"workerGroups": found}


class Stored:
    """Makes stored jobs, and asks both judges about an edit."""

    def __init__(self, jobs: Any) -> None:
        self._jobs = jobs

    def job(self, patch: Patch, *, ended: str = "") -> dict[str, Any]:
        document = {
            "apiVersion": "rolloutjob.dev/v1alpha1",
            "kind": "RolloutJob",
            "metadata": {"name": f"job-{next(_numbers)}"},
            "spec": merged(FULL, patch),
        }
        stored = self._jobs.create(document, dry_run=False)
        assert isinstance(stored, dict), stored
        if ended:
            condition = {
                "type": ended,
                "status": "True",
                "reason": "FramesReached",
                "lastTransitionTime": "2026-01-01T10:00:00Z",
                "observedGeneration": 1,
            }
            stored = self._jobs.set_status({**stored, "status": {"conditions": [condition]}})
            assert isinstance(stored, dict), stored
        return stored

    def verdict(self, stored: dict[str, Any], patch: Patch) -> tuple[bool, Any]:
        new = edited(stored, patch)
        answer = self._jobs.replace(new)
        allowed = isinstance(answer, dict)
        faults = faults_of_update(parse_manifest(stored), parse_manifest(new))
        assert allowed is not bool(faults), f"server: {answer}; contract: {[str(f) for f in faults]}"
        return allowed, answer


@pytest.fixture(scope="module")
def stored(jobs: Any) -> Stored:
    return Stored(jobs)


@pytest.fixture(scope="module")
def running(stored: Stored) -> dict[str, Any]:
    return stored.job({})


@pytest.fixture(scope="module")
def suspended(stored: Stored) -> dict[str, Any]:
    return stored.job({"suspend": True})


@pytest.fixture(scope="module")
def strict(stored: Stored) -> dict[str, Any]:
    return stored.job({"determinism": "Strict"})


def test_every_row_of_the_table_is_tried() -> None:
    assert set(OTHER) == set(SPEC)
    assert set(OTHER_OF_GROUP) == set(GROUP)


@pytest.mark.probe("P-41")
@pytest.mark.parametrize("path", SPEC)
def test_field_of_a_running_job(stored: Stored, running: dict[str, Any], path: str) -> None:
    allowed, answer = stored.verdict(running, at(path, OTHER[path]))
    assert allowed is (SPEC[path] in {Change.ALWAYS, Change.GROWS})
    if not allowed:
        assert answer.code == 422
        assert f"spec.{path}" in answer.fields
        assert "suspended" in answer.text or "Delete the job and create it again" in answer.text


@pytest.mark.parametrize("path", SPEC)
def test_field_of_a_suspended_job(stored: Stored, suspended: dict[str, Any], path: str) -> None:
    patch = at(path, OTHER[path]) if path != "suspend" else {"suspend": False}
    allowed, _ = stored.verdict(suspended, patch)
    assert allowed is (SPEC[path] is not Change.NEVER)


@pytest.mark.parametrize(
    "path",
    [
        path
        for path in (*SPEC, "env.kwargs", "policy.kwargs")
        if path
        in {"managedBy", "seed", "env.kwargs", "policy.kwargs", "stream.groups", "collector.totalFrames"}
    ],
)
def test_unsetting_a_field_of_a_running_job(stored: Stored, running: dict[str, Any], path: str) -> None:
    allowed, _ = stored.verdict(running, at(path, None))
    assert allowed is (path == "collector.totalFrames")


@pytest.mark.parametrize(
    "kwargs",
    [
        pytest.param({"a": None, "c": 1}, id="renamed-key"),
        pytest.param({"a": 2}, id="other-value"),
        pytest.param({"a": True}, id="other-type"),
        pytest.param({"c": 1}, id="one-more"),
        pytest.param({"deep": {"b": [2, 1]}}, id="order-of-a-list"),
        pytest.param({"deep": {"b": [1, 2, 3]}}, id="longer-list"),
        pytest.param({"deep": {"b": None, "c": [1, 2]}}, id="renamed-key-below"),
        pytest.param({"deep": {"c": 1}}, id="one-more-below"),
        pytest.param({"deep": {"b": [1, 3]}}, id="other-value-below"),
    ],
)
def test_free_form_arguments_cannot_be_edited(
    stored: Stored, running: dict[str, Any], kwargs: dict[str, Any]
) -> None:
    assert not stored.verdict(running, {"env": {"kwargs": kwargs}})[0]


@pytest.mark.parametrize(
    ("total", "allowed"),
    [
        pytest.param(1000, True, id="same"),
        pytest.param(1001, True, id="grows"),
        pytest.param(999, False, id="shrinks"),
        pytest.param(None, True, id="unset"),
    ],
)
def test_total_may_only_grow(
    stored: Stored, running: dict[str, Any], total: int | None, allowed: bool
) -> None:
    assert stored.verdict(running, at("collector.totalFrames", total))[0] is allowed


def test_total_cannot_be_set_later(stored: Stored) -> None:
    endless = stored.job({"collector": {"totalFrames": None}})
    assert not stored.verdict(endless, at("collector.totalFrames", 5000))[0]


@pytest.mark.parametrize("name", GROUP)
@pytest.mark.parametrize("is_suspended", [False, True])
def test_field_of_a_group(
    stored: Stored, running: dict[str, Any], suspended: dict[str, Any], name: str, is_suspended: bool
) -> None:
    before = suspended if is_suspended else running
    index = 1 if name in {"replicas", "template"} else 0

    def change(groups: list[dict[str, Any]]) -> None:
        groups[index][name] = OTHER_OF_GROUP[name]

    patch = with_groups(before, change) | ({"replicas": 1} if name == "elastic" else {})
    allowed, _ = stored.verdict(before, patch)
    assert allowed is (is_suspended or GROUP[name] is Change.ALWAYS)


GROUP_EDITS = [
    pytest.param(lambda g: g.append({"name": "c"}), False, id="added"),
    pytest.param(lambda g: g.pop(1), False, id="removed"),
    pytest.param(lambda g: g[1].update(name="c"), False, id="renamed"),
    pytest.param(lambda g: g.reverse(), True, id="other-order"),
    pytest.param(lambda g: g[0].pop("sharedMemory"), False, id="shared-memory-unset"),
    pytest.param(lambda g: g[0].pop("maxReplicas"), True, id="bound-unset"),
    pytest.param(lambda g: g[1].pop("template"), True, id="template-unset"),
    pytest.param(lambda g: (g.reverse(), g[0].update(device="Cpu")), False, id="moved-and-edited"),
]


@pytest.mark.parametrize(("change", "allowed"), GROUP_EDITS)
@pytest.mark.parametrize("is_suspended", [False, True])
def test_list_of_groups(
    stored: Stored,
    running: dict[str, Any],
    suspended: dict[str, Any],
    change: Any,
    allowed: bool,
    is_suspended: bool,
) -> None:
    before = suspended if is_suspended else running
    assert stored.verdict(before, with_groups(before, change))[0] is (allowed or is_suspended)


STRICT_EDITS = [
    pytest.param({"replicas": 3}, None, False, id="replicas"),
    pytest.param({}, lambda g: g[1].update(replicas=3), False, id="replicas-of-a-group"),
    pytest.param({}, lambda g: g[0].update(minReplicas=3), False, id="bound-that-moves-replicas"),
    pytest.param({}, lambda g: g[0].update(maxReplicas=1), False, id="upper-bound-that-moves-replicas"),
    pytest.param({}, lambda g: g[0].update(minReplicas=2), True, id="bound-that-moves-nothing"),
    pytest.param({"collector": {"totalFrames": 2000}}, None, False, id="total"),
    pytest.param({"weights": {"keepVersions": 5}}, None, True, id="something-else"),
    pytest.param({}, lambda g: g.reverse(), True, id="order-of-groups"),
]


@pytest.mark.parametrize(("patch", "change", "allowed"), STRICT_EDITS)
def test_strict(stored: Stored, strict: dict[str, Any], patch: Patch, change: Any, allowed: bool) -> None:
    patch = patch | (with_groups(strict, change) if change else {})
    assert stored.verdict(strict, patch)[0] is allowed


STRICT_SUSPENDED_EDITS = [
    pytest.param({}, lambda g: g.append({"name": "c"}), False, id="group-added"),
    pytest.param({}, lambda g: g.pop(1), False, id="group-removed"),
    pytest.param({"replicas": 1}, None, False, id="replicas"),
    pytest.param({"weights": {"maxStaleness": 5}}, None, False, id="which-version-makes-what"),
    pytest.param({"collector": {"totalFrames": 2000}}, None, True, id="total"),
    pytest.param({}, lambda g: g[0].update(device="Cpu"), True, id="device"),
]


@pytest.mark.parametrize(("patch", "change", "allowed"), STRICT_SUSPENDED_EDITS)
def test_strict_and_suspended(stored: Stored, patch: Patch, change: Any, allowed: bool) -> None:
    before = stored.job({"determinism": "Strict", "suspend": True})
    patch = patch | (with_groups(before, change) if change else {})
    assert stored.verdict(before, patch)[0] is allowed


@pytest.mark.parametrize("ended", ["Complete", "Failed"])
class TestAfterTheEnd:
    @pytest.mark.parametrize("path", SPEC)
    def test_field(self, stored: Stored, finished: dict[str, dict[str, Any]], ended: str, path: str) -> None:
        allowed, answer = stored.verdict(finished[ended], at(path, OTHER[path]))
        assert allowed is (path == "ttlSecondsAfterFinished")
        if not allowed:
            assert "spec" in answer.fields or f"spec.{path}" in answer.fields

    def test_groups(self, stored: Stored, finished: dict[str, dict[str, Any]], ended: str) -> None:
        patch = with_groups(finished[ended], lambda g: g[1].update(replicas=5))
        assert not stored.verdict(finished[ended], patch)[0]

    def test_metadata(self, jobs: Any, finished: dict[str, dict[str, Any]], ended: str) -> None:
        new = merged(finished[ended], {"metadata": {"labels": {"kept": "yes"}}})
        assert isinstance(jobs.replace(new), dict)


@pytest.fixture(scope="module")
def finished(stored: Stored) -> dict[str, dict[str, Any]]:
    return {ended: stored.job({"suspend": False}, ended=ended) for ended in ("Complete", "Failed")}


def test_status_and_spec_do_not_touch_each_other(jobs: Any, stored: Stored) -> None:
    before = stored.job({})
    after = jobs.set_status(
        {**before, "spec": merged(before["spec"], {"replicas": 9}), "status": {"replicas": 1}}
    )
    assert after["spec"]["replicas"] == 2
    assert after["metadata"]["generation"] == before["metadata"]["generation"]
    assert after["status"]["replicas"] == 1
    again = jobs.replace(merged(after, {"status": {"replicas": 5}, "spec": {"replicas": 3}}), dry_run=False)
    assert again["status"]["replicas"] == 1
    assert again["metadata"]["generation"] == before["metadata"]["generation"] + 1


def test_scale_reads_and_writes_replicas(jobs: Any, stored: Stored) -> None:
    before = stored.job({})
    name = before["metadata"]["name"]
    place = ("rolloutjob.dev", "v1alpha1", jobs.namespace, "rolloutjobs", name)
    body = {"spec": {"replicas": 5}}
    scaled = jobs.api.patch_namespaced_custom_object_scale(*place, body)
    assert scaled["spec"]["replicas"] == 5
    assert jobs.api.get_namespaced_custom_object(*place)["spec"]["replicas"] == 5
