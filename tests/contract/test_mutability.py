"""Edits of a job: one row per field, and what `faults_of_update` says to each."""

from __future__ import annotations

import itertools

import pytest

from rollout_contract.model_walk import fields_at
from rollout_contract.mutability import GROUP, SPEC, Change
from rollout_contract.spec import RolloutJob, WorkerGroup, faults_of_update, parse_manifest

BASE = {
    "spec.env.kwargs": {"a": 1},
    "spec.env.envsPerWorker": 2,
    "spec.code": {"configMapRef": {"name": "code"}},
    "spec.collector.totalFrames": 1000,
    "spec.seed": 7,
    "spec.redis.host": "r",
    "spec.workerGroups": [
        {"name": "cpu", "elastic": True},
        {
            "name": "gpu",
            "replicas": 2,
            "template": {"spec": {"containers": [{"name": "worker", "image": "a"}]}},
        },
    ],
}

ALWAYS, SUSPENDED, NEVER = Change.ALWAYS, Change.SUSPENDED, Change.NEVER

EDITS = [
    ("spec.suspend", True, ALWAYS),
    ("spec.replicas", 3, ALWAYS),
    ("spec.updateStrategy.type", "OnSuspend", SUSPENDED),
    ("spec.updateStrategy.maxUnavailable", 2, SUSPENDED),
    ("spec.startupDeadlineSeconds", 5, ALWAYS),
    ("spec.stalledDeadlineSeconds", 5, ALWAYS),
    ("spec.activeDeadlineSeconds", 5, ALWAYS),
    ("spec.ttlSecondsAfterFinished", 5, ALWAYS),
    ("spec.podRetention.failed", 5, ALWAYS),
    ("spec.failurePolicy.backoffLimit", 5, ALWAYS),
    ("spec.failurePolicy.backoffLimitPerWorker", 5, ALWAYS),
    ("spec.failurePolicy.backoffSeconds", 5, ALWAYS),
    ("spec.failurePolicy.rules", [{"name": "a", "action": "Ignore"}], ALWAYS),
    ("spec.managedBy", "example.com/other", NEVER),
    ("spec.determinism", "Strict", NEVER),
    ("spec.seed", 8, NEVER),
    ("spec.seed", None, NEVER),
    ("spec.code.configMapRef.name", "other", NEVER),
    ("spec.code", None, NEVER),
    ("spec.env.entrypoint", "other:make_env", NEVER),
    ("spec.env.kwargs.a", 2, NEVER),
    ("spec.env.kwargs.a", 1.0, NEVER),
    ("spec.env.kwargs.a", True, NEVER),
    ("spec.env.kwargs.b", 1, NEVER),
    ("spec.env.kwargs", None, NEVER),
    ("spec.env.tasks", [{"name": "a", "count": 2}], NEVER),
    ("spec.env.envsPerWorker", 4, NEVER),
    ("spec.env.backend", "Serial", NEVER),
    ("spec.env.processes", 2, NEVER),
    ("spec.env.stepTimeoutSeconds", 5, NEVER),
    ("spec.env.onError", "Restart", NEVER),
    ("spec.policy.entrypoint", "other:make_policy", NEVER),
    ("spec.policy.kwargs", {}, NEVER),
    ("spec.policy.exploration", "Mode", NEVER),
    ("spec.collector.mode", "MultiSync", NEVER),
    ("spec.collector.coordination", "Barrier", NEVER),
    ("spec.collector.framesPerBatch", 80, NEVER),
    ("spec.collector.maxFramesPerTraj", 5, SUSPENDED),
    ("spec.collector.initRandomFrames", 5, SUSPENDED),
    ("spec.collector.resetAtEachBatch", True, SUSPENDED),
    ("spec.redis.host", "other", NEVER),
    ("spec.redis.port", 6380, NEVER),
    ("spec.redis.tls", {"enabled": True}, NEVER),
    ("spec.redis.authSecretRef", {"name": "a", "key": "b"}, NEVER),
    ("spec.redis.keyTTLSecondsAfterFinished", 5, NEVER),
    ("spec.redis.cleanupPolicy", "Retain", NEVER),
    ("spec.stream.shards", 2, NEVER),
    ("spec.stream.maxUnackedFrames", 500, ALWAYS),
    ("spec.stream.maxBytes", "1Gi", ALWAYS),
    ("spec.stream.onFull", "DropNewest", ALWAYS),
    ("spec.stream.claimIdleSeconds", 5, ALWAYS),
    ("spec.stream.rateLimit", {"type": "Queue"}, ALWAYS),
    ("spec.stream.compression", "Zstd", SUSPENDED),
    ("spec.stream.maxFrameBytes", "1Mi", SUSPENDED),
    ("spec.stream.groups", ["learner"], SUSPENDED),
    ("spec.weights.maxStaleness", 1, ALWAYS),
    ("spec.weights.onStale", "Tag", ALWAYS),
    ("spec.weights.fetchTimeoutSeconds", 5, ALWAYS),
    ("spec.weights.keepVersions", 5, ALWAYS),
    ("spec.weights.maxBytes", "1Gi", ALWAYS),
    ("spec.weights.startPolicy", "WaitForWeights", NEVER),
    ("spec.weights.applyAt", "Step", NEVER),
]


def changed(manifest_with, edits):
    """The base manifest with more values put at paths; a worker group's under `gpu.` or `cpu.`."""
    document = manifest_with(BASE)
    for path, value in edits.items():
        *parents, last = path.split(".")
        place = document
        for key in parents:
            if place is document and key in ("cpu", "gpu"):
                place = place["spec"]["workerGroups"][("cpu", "gpu").index(key)]
            else:
                place = place.setdefault(key, {})
        place[last] = value
    return parse_manifest(document)


def paths(faults):
    return [fault.path for fault in faults]


@pytest.mark.parametrize(("path", "value", "change"), EDITS, ids=[f"{p}={v}" for p, v, _ in EDITS])
@pytest.mark.parametrize("suspended", [False, True], ids=["running", "suspended"])
def test_a_field_has_one_answer(path, value, change, suspended, manifest_with):
    state = {"spec.suspend": suspended}
    old = changed(manifest_with, state)
    new = changed(manifest_with, {**state, path: value})

    allowed = change is ALWAYS or (change is SUSPENDED and suspended)
    found = faults_of_update(old, new)
    assert paths(found) == ([] if allowed else [path])
    for fault in found:
        assert (
            "only while the job is suspended" if change is SUSPENDED else "cannot be changed"
        ) in fault.message


def test_dependent_fields_while_suspended(manifest_with):
    """`collectorsPerWorker` and preemption exist only with multi modes."""
    multi = {"spec.collector.mode": "MultiSync"}
    edit = {"spec.collector.collectorsPerWorker": 2, "spec.collector.preemptionThresholdPercent": 50}
    for suspended in (False, True):
        old = changed(manifest_with, {**multi, "spec.suspend": suspended})
        new = changed(manifest_with, {**multi, **edit, "spec.suspend": suspended})
        assert paths(faults_of_update(old, new)) == ([] if suspended else list(edit))


@pytest.mark.parametrize(
    ("path", "value", "change"),
    [
        ("gpu.replicas", 3, ALWAYS),
        ("gpu.minReplicas", 1, ALWAYS),
        ("gpu.maxReplicas", 9, ALWAYS),
        ("gpu.minAvailable", 1, ALWAYS),
        ("gpu.template", None, ALWAYS),
        ("gpu.template.spec.priorityClassName", "low", ALWAYS),
        ("gpu.device", "Cpu", SUSPENDED),
        ("gpu.sharedMemory", "1Gi", SUSPENDED),
        ("cpu.elastic", False, SUSPENDED),
    ],
)
@pytest.mark.parametrize("suspended", [False, True], ids=["running", "suspended"])
def test_a_groups_field_has_one_answer(path, value, change, suspended, manifest_with):
    old = changed(manifest_with, {"spec.suspend": suspended})
    new = changed(manifest_with, {"spec.suspend": suspended, path: value})

    index = ("cpu", "gpu").index(path.split(".")[0])
    where = f"spec.workerGroups[{index}].{path.split('.')[1]}"
    allowed = change is ALWAYS or suspended
    assert paths(faults_of_update(old, new)) == ([] if allowed else [where])


@pytest.mark.parametrize(
    ("groups", "where"),
    [
        pytest.param(["cpu", "gpu", "more"], ["spec.workerGroups[2].name"], id="added"),
        pytest.param(["cpu"], ["spec.workerGroups"], id="removed"),
        pytest.param(["cpu", "tpu"], ["spec.workerGroups[1].name", "spec.workerGroups"], id="renamed"),
        pytest.param(["gpu", "cpu"], [], id="another order"),
    ],
)
def test_groups_come_and_go_only_while_suspended(groups, where, manifest_with):
    items = {"cpu": BASE["spec.workerGroups"][0], "gpu": BASE["spec.workerGroups"][1]}
    wanted = [items.get(name, {"name": name}) for name in groups]
    for suspended in (False, True):
        old = changed(manifest_with, {"spec.suspend": suspended})
        new = changed(manifest_with, {"spec.suspend": suspended, "spec.workerGroups": wanted})
        assert paths(faults_of_update(old, new)) == ([] if suspended else where)


@pytest.mark.probe("P-41")
@pytest.mark.parametrize(
    ("before", "after", "allowed"),
    [
        pytest.param(2000, 4000, True, id="grows"),
        pytest.param(4000, 1000, False, id="shrinks"),
        pytest.param(4000, None, True, id="is unset"),
        pytest.param(None, 4000, False, id="is set later"),
        pytest.param(None, None, True, id="stays unset"),
        pytest.param(4000, 4000, True, id="stays"),
    ],
)
@pytest.mark.parametrize("suspended", [False, True], ids=["running", "suspended"])
def test_total_frames_only_grow(before, after, allowed, suspended, manifest_with):
    old = changed(manifest_with, {"spec.suspend": suspended, "spec.collector.totalFrames": before})
    new = changed(manifest_with, {"spec.suspend": suspended, "spec.collector.totalFrames": after})

    found = faults_of_update(old, new)
    assert paths(found) == ([] if allowed else ["spec.collector.totalFrames"])
    assert all("may only grow or be unset" in fault.message for fault in found)


@pytest.mark.probe("P-41")
def test_an_immutable_field_says_what_to_do_instead(manifest_with):
    old, new = changed(manifest_with, {}), changed(manifest_with, {"spec.collector.framesPerBatch": 80})

    (fault,) = faults_of_update(old, new)
    assert str(fault) == (
        "spec.collector.framesPerBatch: 40 → 80: cannot be changed. "
        "Delete the job and create it again with the new value."
    )


def test_every_refused_field_is_reported(manifest_with):
    old = changed(manifest_with, {})
    new = changed(
        manifest_with,
        {"spec.seed": 8, "spec.env.kwargs.a": 2, "spec.env.backend": "Serial", "spec.replicas": 4},
    )

    assert paths(faults_of_update(old, new)) == ["spec.env.kwargs.a", "spec.env.backend", "spec.seed"]


def test_resuming_and_editing_in_one_step(manifest_with):
    """The previous spec decides: what was suspended may be edited and resumed at once, not the other way round."""
    paused = changed(manifest_with, {"spec.suspend": True})
    edited = changed(manifest_with, {"spec.stream.groups": ["learner"]})

    assert faults_of_update(paused, edited) == []
    assert paths(faults_of_update(changed(manifest_with, {}), edited)) == ["spec.stream.groups"]


@pytest.mark.parametrize(
    ("edit", "where"),
    [
        pytest.param({"spec.replicas": 3}, ["spec.replicas"], id="replicas"),
        pytest.param({"gpu.replicas": 3}, ["spec.workerGroups[1].replicas"], id="a group's replicas"),
        pytest.param(
            {"gpu.minReplicas": 3}, ["spec.workerGroups[1]"], id="a bound that moves the number of workers"
        ),
        pytest.param({"gpu.minReplicas": 1}, [], id="a bound that does not"),
        pytest.param(
            {"spec.weights.maxStaleness": 3}, ["spec.weights.maxStaleness"], id="which version makes what"
        ),
        pytest.param({"spec.weights.keepVersions": 5}, [], id="another field"),
    ],
)
@pytest.mark.parametrize("suspended", [False, True], ids=["running", "suspended"])
def test_strict_freezes_the_number_of_workers(edit, where, suspended, manifest_with):
    state = {"spec.determinism": "Strict", "spec.suspend": suspended}

    assert (
        paths(faults_of_update(changed(manifest_with, state), changed(manifest_with, {**state, **edit})))
        == where
    )


@pytest.mark.parametrize("groups", [["cpu"], ["cpu", "gpu", "more"]])
@pytest.mark.parametrize(
    ("suspended", "words"),
    [(True, "cannot be changed with determinism Strict"), (False, "only while the job is suspended")],
)
def test_strict_freezes_the_list_of_groups_also_while_suspended(groups, suspended, words, manifest_with):
    items = {"cpu": BASE["spec.workerGroups"][0], "gpu": BASE["spec.workerGroups"][1]}
    state = {"spec.determinism": "Strict", "spec.suspend": suspended}
    wanted = {"spec.workerGroups": [items.get(name, {"name": name}) for name in groups]}

    (fault,) = faults_of_update(changed(manifest_with, state), changed(manifest_with, {**state, **wanted}))
    assert words in fault.message


@pytest.mark.parametrize(("suspended", "where"), [(False, ["spec.collector.totalFrames"]), (True, [])])
def test_strict_shares_out_the_total_again_only_after_a_suspend(suspended, where, manifest_with):
    state = {"spec.determinism": "Strict", "spec.suspend": suspended}
    new = changed(manifest_with, {**state, "spec.collector.totalFrames": 2000})

    assert paths(faults_of_update(changed(manifest_with, state), new)) == where


@pytest.mark.parametrize("end", ["Complete", "Failed"])
@pytest.mark.parametrize(
    ("edit", "where"),
    [
        pytest.param({"spec.ttlSecondsAfterFinished": 60}, [], id="ttl"),
        pytest.param({"metadata.labels": {"a": "b"}}, [], id="metadata"),
        pytest.param({"spec.suspend": True}, ["spec.suspend"], id="suspend"),
        pytest.param({"spec.replicas": 0}, ["spec.replicas"], id="replicas"),
        pytest.param({"spec.collector.totalFrames": 2000}, ["spec.collector.totalFrames"], id="more frames"),
        pytest.param({"gpu.replicas": 3}, ["spec.workerGroups"], id="a group"),
    ],
)
def test_a_finished_job_takes_only_ttl_and_metadata(end, edit, where, manifest_with):
    status = {
        "conditions": [
            {
                "type": end,
                "status": "True",
                "reason": "TotalFramesReached",
                "lastTransitionTime": "2026-01-01T10:00:00Z",
                "observedGeneration": 1,
            }
        ]
    }
    found = faults_of_update(changed(manifest_with, {"status": status}), changed(manifest_with, edit))

    assert paths(found) == where
    assert all(f"the job is {end}, only ttlSecondsAfterFinished" in fault.message for fault in found)


@pytest.mark.parametrize(
    ("before", "after", "where"),
    [
        pytest.param({}, {"metadata.name": "other"}, ["metadata.name"], id="name"),
        pytest.param({}, {"metadata.namespace": "other"}, ["metadata.namespace"], id="namespace"),
        pytest.param({"metadata.uid": "a"}, {"metadata.uid": "b"}, ["metadata.uid"], id="uid"),
        pytest.param({"metadata.uid": "a"}, {}, [], id="uid left out"),
        pytest.param({}, {"metadata.generation": 3, "metadata.annotations": {"a": "b"}}, [], id="the rest"),
    ],
)
def test_an_edit_keeps_the_identity(before, after, where, manifest_with):
    assert paths(faults_of_update(changed(manifest_with, before), changed(manifest_with, after))) == where


def test_every_field_of_the_spec_has_a_row():
    """A row stands for a field with all below it; none is missing, none is said twice, none is about nothing."""
    for field in fields_at(RolloutJob, ("spec",)):
        below = fields_at(RolloutJob, ("spec", field))
        split = [row for row in SPEC if row.startswith(f"{field}.")]
        if field == "workerGroups":
            assert field not in SPEC
        elif split:
            assert field not in SPEC
            assert split == [f"{field}.{name}" for name in below]
        else:
            assert field in SPEC
    assert {row.split(".")[0] for row in SPEC} < set(fields_at(RolloutJob, ("spec",)))
    assert set(GROUP) | {"name"} == set(fields_at(WorkerGroup, ()))


def test_no_edit_is_no_fault(manifest_with):
    edits = [{}, {"spec.suspend": True}, {"spec.determinism": "Strict"}]
    for edit in edits:
        job = changed(manifest_with, edit)
        assert faults_of_update(job, job) == []
    for one, other in itertools.combinations(edits, 2):
        assert isinstance(faults_of_update(changed(manifest_with, one), changed(manifest_with, other)), list)
