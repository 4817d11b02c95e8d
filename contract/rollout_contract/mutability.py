"""Which fields of a job may be edited when: the table, and the faults of an edit.

Called by the gateway's PATCH, the local run's store and the operator; the CRD says the same in CEL. Every field of the
spec has exactly one answer: always, while suspended, or never. Both jobs given here are valid by themselves.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any

from rollout_contract.errors import Fault
from rollout_contract.faults import Location, path_of, shown
from rollout_contract.spec_enums import Determinism
from rollout_contract.spec_models import RolloutJob, RolloutJobSpec, WorkerGroup, desired_replicas
from rollout_contract.status import ConditionType, is_finished, is_true

Path = tuple[str, ...]


class Change(StrEnum):
    """When a field may be edited."""

    ALWAYS = "always"
    SUSPENDED = "while suspended"
    NEVER = "never"
    GROWS = "may grow or be unset"


SPEC: Mapping[str, Change] = {
    "suspend": Change.ALWAYS,
    "managedBy": Change.NEVER,
    "env": Change.NEVER,
    "policy": Change.NEVER,
    "code": Change.NEVER,
    "collector.mode": Change.NEVER,
    "collector.collectorsPerWorker": Change.SUSPENDED,
    "collector.coordination": Change.NEVER,
    "collector.framesPerBatch": Change.NEVER,
    "collector.totalFrames": Change.GROWS,
    "collector.maxFramesPerTraj": Change.SUSPENDED,
    "collector.initRandomFrames": Change.SUSPENDED,
    "collector.preemptionThresholdPercent": Change.SUSPENDED,
    "collector.resetAtEachBatch": Change.SUSPENDED,
    "seed": Change.NEVER,
    "determinism": Change.NEVER,
    "replicas": Change.ALWAYS,
    "updateStrategy": Change.SUSPENDED,
    "redis": Change.NEVER,
    "stream.shards": Change.NEVER,
    "stream.maxUnackedFrames": Change.ALWAYS,
    "stream.maxBytes": Change.ALWAYS,
    "stream.onFull": Change.ALWAYS,
    "stream.compression": Change.SUSPENDED,
    "stream.maxFrameBytes": Change.SUSPENDED,
    "stream.groups": Change.SUSPENDED,
    "stream.claimIdleSeconds": Change.ALWAYS,
    "stream.rateLimit": Change.ALWAYS,
    "weights.startPolicy": Change.NEVER,
    "weights.maxStaleness": Change.ALWAYS,
    "weights.onStale": Change.ALWAYS,
    "weights.applyAt": Change.NEVER,
    "weights.fetchTimeoutSeconds": Change.ALWAYS,
    "weights.keepVersions": Change.ALWAYS,
    "weights.maxBytes": Change.ALWAYS,
    "failurePolicy": Change.ALWAYS,
    "startupDeadlineSeconds": Change.ALWAYS,
    "stalledDeadlineSeconds": Change.ALWAYS,
    "activeDeadlineSeconds": Change.ALWAYS,
    "ttlSecondsAfterFinished": Change.ALWAYS,
    "podRetention": Change.ALWAYS,
}
"""Of every field of the spec but `workerGroups`; an object stands for all its fields."""

GROUP: Mapping[str, Change] = {
    "elastic": Change.SUSPENDED,
    "replicas": Change.ALWAYS,
    "minReplicas": Change.ALWAYS,
    "maxReplicas": Change.ALWAYS,
    "minAvailable": Change.ALWAYS,
    "device": Change.SUSPENDED,
    "sharedMemory": Change.SUSPENDED,
    "template": Change.ALWAYS,
}
"""Of every field of a worker group but its name, by which groups are compared."""

AFTER_THE_END = "ttlSecondsAfterFinished"
"""The one field of the spec that may be edited once the job is Complete or Failed."""

IDENTITY = ("name", "namespace", "uid")
"""Metadata that says which object this is."""

RECREATE = "Delete the job and create it again with the new value."
VERSIONS_FIXED = (
    f"cannot be changed with determinism Strict: it says which version makes which batch. {RECREATE}"
)


def faults_of_update(old: RolloutJob, new: RolloutJob) -> list[Fault]:
    """What of the edit from `old` to `new` is not allowed; empty if all of it is.

    `old` is the stored job with its status. Status and metadata are not compared, but for the job's identity.
    """
    return [
        *_identity_faults(old, new),
        *(_finished_faults(old, new) if is_finished(old.status) else _live_faults(old, new)),
    ]


def _identity_faults(old: RolloutJob, new: RolloutJob) -> Iterator[Fault]:
    before, after = old.metadata.to_document(), new.metadata.to_document()
    for key in IDENTITY:
        is_left_out = key == "uid" and key not in after
        if before.get(key) != after.get(key) and not is_left_out:
            yield _refused(
                ("metadata", key),
                before.get(key),
                after.get(key),
                "cannot be changed. Create another job instead.",
            )


def _finished_faults(old: RolloutJob, new: RolloutJob) -> Iterator[Fault]:
    end = ConditionType.COMPLETE if is_true(old.status, ConditionType.COMPLETE) else ConditionType.FAILED
    for location, before, after in _differences(_documents(old), _documents(new), ("spec",)):
        if location != ("spec", AFTER_THE_END):
            yield _refused(
                location,
                before,
                after,
                f"cannot be changed: the job is {end}, only {AFTER_THE_END} and metadata can be. {RECREATE}",
            )


def _live_faults(old: RolloutJob, new: RolloutJob) -> Iterator[Fault]:
    before, after = _documents(old), _documents(new)
    for row, change in SPEC.items():
        place = tuple(row.split("."))
        changed = _differences(_at(before, place), _at(after, place), ("spec", *place))
        yield from _judge(changed, change, is_suspended=old.spec.suspend)
    yield from _group_faults(old.spec, new.spec)
    if new.spec.determinism is Determinism.STRICT:
        yield from _strict_faults(old.spec, new.spec)


def _group_faults(old: RolloutJobSpec, new: RolloutJobSpec) -> Iterator[Fault]:
    before = {group.name: group for group in old.worker_groups}
    for index, group in enumerate(new.worker_groups):
        location: Location = ("spec", "workerGroups", index)
        if group.name in before:
            yield from _one_group_faults(before[group.name], group, location, is_suspended=old.suspend)
        elif not old.suspend:
            yield _refused(
                (*location, "name"), None, group.name, only_suspended("a worker group can be added")
            )
    missing = before.keys() - {group.name for group in new.worker_groups}
    for name in sorted(missing if not old.suspend else ()):
        yield _refused(
            ("spec", "workerGroups"), name, None, only_suspended("a worker group can be removed or renamed")
        )


def _one_group_faults(
    old: WorkerGroup, new: WorkerGroup, location: Location, *, is_suspended: bool
) -> Iterator[Fault]:
    before, after = old.to_document(), new.to_document()
    for key, change in GROUP.items():
        changed = _differences(before.get(key), after.get(key), (*location, key))
        yield from _judge(changed, change, is_suspended=is_suspended)


def _strict_faults(old: RolloutJobSpec, new: RolloutJobSpec) -> Iterator[Fault]:
    """Data are shared out over workers and versions in advance, so that neither their number nor the total can move."""
    fixed = (
        "cannot be changed with determinism Strict: data are shared out over the workers in advance. "
        + RECREATE
    )
    before = {group.name: group for group in old.worker_groups}
    bounds = old.weights.max_staleness, new.weights.max_staleness
    if bounds[0] != bounds[1]:
        yield _refused(("spec", "weights", "maxStaleness"), *bounds, VERSIONS_FIXED)
    if old.replicas != new.replicas:
        yield _refused(("spec", "replicas"), old.replicas, new.replicas, fixed)
    for index, group in enumerate(new.worker_groups):
        location: Location = ("spec", "workerGroups", index)
        previous = before.get(group.name)
        if previous is None:
            if old.suspend:
                yield _refused((*location, "name"), None, group.name, fixed)
        elif previous.replicas != group.replicas:
            yield _refused((*location, "replicas"), previous.replicas, group.replicas, fixed)
        elif old.replicas == new.replicas and desired_replicas(old, previous) != desired_replicas(new, group):
            yield _refused(location, desired_replicas(old, previous), desired_replicas(new, group), fixed)
    gone = before.keys() - {group.name for group in new.worker_groups}
    for name in sorted(gone if old.suspend else ()):
        yield _refused(("spec", "workerGroups"), name, None, fixed)
    totals = old.collector.total_frames, new.collector.total_frames
    if totals[0] != totals[1] and not old.suspend:
        yield _refused(
            ("spec", "collector", "totalFrames"),
            *totals,
            only_suspended("with determinism Strict it can be changed"),
        )


def _judge(
    changed: Iterator[tuple[Location, object, object]], change: Change, *, is_suspended: bool
) -> Iterator[Fault]:
    for location, before, after in changed:
        if change is Change.NEVER:
            yield _refused(location, before, after, f"cannot be changed. {RECREATE}")
        elif change is Change.SUSPENDED and not is_suspended:
            yield _refused(location, before, after, only_suspended("it can be changed"))
        elif change is Change.GROWS and not _has_grown(before, after):
            yield _refused(
                location,
                before,
                after,
                "may only grow or be unset. To end the job earlier, ask for it to complete.",
            )


def _has_grown(before: object, after: object) -> bool:
    return after is None or (isinstance(before, int) and isinstance(after, int) and after > before)


def only_suspended(what: str) -> str:
    """What an edit that has to wait for `suspend` is answered with; `what` is how the sentence begins."""
    return f"{what} only while the job is suspended. Set spec.suspend: true first, and false afterwards."


def _refused(location: Location, before: object, after: object, why: str) -> Fault:
    return Fault(path=path_of(location), value=after, message=f"{_said(before)} → {_said(after)}: {why}")


def _said(value: object) -> str:
    return "unset" if value is None else shown(value)


def _documents(job: RolloutJob) -> dict[str, Any]:
    return job.spec.to_document()


def _at(document: Mapping[str, Any], place: Path) -> Any:
    value: Any = document
    for key in place:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _differences(before: Any, after: Any, location: Location) -> Iterator[tuple[Location, object, object]]:
    """The smallest places that differ; free-form objects and lists are compared key by key as well."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in {**before, **after}:
            yield from _differences(before.get(key), after.get(key), (*location, key))
    elif _canonical(before) != _canonical(after):
        yield location, before, after


def _canonical(value: object) -> str:
    """Compares as JSON does: in Python, 1, 1.0 and True are equal."""
    return json.dumps(value, sort_keys=True)
