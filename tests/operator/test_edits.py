"""Every field that may be edited reaches what it is about: the running workers, the next ones, or the operator itself."""

from __future__ import annotations

import pytest
from operator_builders import SETTINGS, elastic, make_job

from rollout_contract.mutability import GROUP, SPEC, Change
from rollout_contract.names import WorkerId
from rollout_contract.unbuilt import TABLE
from rollout_operator import shares
from rollout_operator.decisions import Create
from rollout_operator.look import template_hash_of
from rollout_operator.manifests import worker_document

OPERATOR = frozenset({
    "suspend", "replicas", "updateStrategy", "failurePolicy", "startupDeadlineSeconds", "stalledDeadlineSeconds",
    "activeDeadlineSeconds", "ttlSecondsAfterFinished", "podRetention", "weights.fetchTimeoutSeconds",
})  # fmt: skip
"""Fields that the operator goes by at its next look; each has tests of its own."""
OTHER = {
    "collector.totalFrames": 20_000, "collector.maxFramesPerTraj": 7, "collector.initRandomFrames": 70,
    "collector.resetAtEachBatch": True, "stream.maxUnackedFrames": 777, "stream.maxBytes": "1Gi",
    "stream.onFull": "DropNewest", "stream.compression": "Lz4", "stream.maxFrameBytes": "1Mi", "stream.groups": ["a"],
    "stream.claimIdleSeconds": 7, "weights.maxStaleness": 7, "weights.onStale": "Tag", "weights.keepVersions": 7,
    "weights.maxBytes": "1Gi",
}  # fmt: skip
UNBUILT = frozenset(row.path.removeprefix("spec.") for row in TABLE) - OTHER.keys()
BY_UNBUILT = frozenset({"collector.collectorsPerWorker"})
"""Of which no other value goes with a mode that is built."""
EDITABLE = {path: change for path, change in SPEC.items() if change is not Change.NEVER}


def edited(path):
    section, _, field = path.partition(".")
    return make_job(**{section: {field: OTHER[path]}})


def told(job):
    (group,) = job.spec.worker_groups
    return worker_document(job, group, Create(WorkerId(group.name, 0, 0)), SETTINGS, grace_s=60)


@pytest.mark.probe("P-41")
def test_every_field_that_may_be_edited_is_looked_at_here():
    assert OPERATOR | OTHER.keys() | UNBUILT | BY_UNBUILT >= EDITABLE.keys()


@pytest.mark.probe("P-41")
@pytest.mark.parametrize("path", OTHER)
def test_an_edit_reaches_the_workers_that_run_or_the_next_ones_where_none_run(path):
    is_told = shares.stream_settings(make_job()) != shares.stream_settings(edited(path))
    reaches_the_next = told(make_job()) != told(edited(path))
    assert is_told or (reaches_the_next and SPEC[path] is Change.SUSPENDED)


@pytest.mark.probe("P-41")
@pytest.mark.parametrize(
    ("field", "edit"), [("template", {"spec": {"nodeSelector": {"a": "b"}}}), ("device", "Cpu"), ("sharedMemory", "1Gi")]
)  # fmt: skip
def test_an_edit_of_what_a_pod_looks_like_replaces_it(field, edit):
    (before,), (after,) = (
        make_job(workerGroups=[elastic("g", **more)]).spec.worker_groups for more in ({}, {field: edit})
    )
    assert template_hash_of(before) != template_hash_of(after)
    assert GROUP[field] is not Change.NEVER
