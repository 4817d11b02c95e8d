"""Applies JSON merge patches to jobs: on the version that was meant, or on the newest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final

from fastapi import Depends

from rollout_api.errors import Kind, Problem, spec_problem
from rollout_api.gateway import Gateway, JobName, Namespace, TheGateway, TheStore
from rollout_api.merge_patch import merged
from rollout_api.store import Conflict, JobStore
from rollout_contract.errors import Fault
from rollout_contract.json_check import DocumentTooLarge, json_faults
from rollout_contract.spec import RolloutJob, faults_of_update, parse_manifest

PATCHED: Final = frozenset({"labels", "annotations", "resourceVersion"})
NAMED: Final = frozenset({"name", "namespace", "uid"})
"""Of the metadata: may stand in a patch, and must be the job's own."""
MAX_TRIES: Final = 5
"""A patch that names no resource version is tried again this often when the job changes under it."""


def check_patch(patch: Mapping[str, Any]) -> None:
    """Problem, with every fault, where this cannot be a patch of any job."""
    try:
        faults = list(json_faults(patch).values())
    except DocumentTooLarge as error:
        faults = [error.fault]
    if "status" in patch:
        faults.append(Fault("status", None, "is written by the operator alone: leave it out"))
    if "metadata" in patch and not isinstance(patch["metadata"], dict):
        faults.append(Fault("metadata", patch["metadata"], "must be a mapping"))
    else:  # an owner that is not there would have the cluster delete the job
        faults += [
            Fault(f"metadata.{key}", value, "is not patched here: a patch is of spec, labels and annotations")
            for key, value in patch.get("metadata", {}).items()
            if key not in PATCHED | NAMED
        ]
    if faults:
        raise spec_problem(faults)


@dataclass(frozen=True, slots=True)
class Patcher:
    """Patches the job that a request's path names, with the caller's rights."""

    gateway: Gateway
    store: JobStore
    namespace: str
    name: str

    async def apply(
        self, patch: Mapping[str, Any], *, dry_run: bool = False, if_match: str | None = None
    ) -> RolloutJob:
        """The job after the patch. One that names no version is put on the newest, again where that was overtaken.

        Problem where the job is not of the version named, or may not be changed like that.
        """
        named = patch.get("metadata", {}).get("resourceVersion")
        tries = 1 if named is not None or if_match is not None else MAX_TRIES
        while True:
            tries -= 1
            old = await self.store.get(self.namespace, self.name)
            version = _version_to_patch(old, patch, named=named, if_match=if_match)
            try:
                job = await self.store.patch(
                    self.namespace, self.name, patch, resource_version=version, dry_run=dry_run
                )
            except Conflict as error:
                if tries == 0:
                    raise _changed_meanwhile(None) from error
            else:
                self.gateway.forget(job)
                return job


async def _patcher(namespace: Namespace, name: JobName, gateway: TheGateway, store: TheStore) -> Patcher:
    return Patcher(gateway, store, namespace, name)


ThePatcher = Annotated[Patcher, Depends(_patcher)]


def _version_to_patch(
    old: RolloutJob, patch: Mapping[str, Any], *, named: str | None, if_match: str | None
) -> str:
    """The version of a job that may be patched so. Problem where it may not."""
    version = old.metadata.resource_version or ""
    if if_match is not None and if_match != version:
        raise Problem(
            Kind.PRECONDITION_FAILED,
            f"The job's resource version is {version}, not {if_match[:64]}: read it again.",
            members={"resourceVersion": version},
        )
    if named is not None and named != version:
        raise _changed_meanwhile(version)
    new = parse_manifest(merged(old.to_document(), patch))
    if faults := faults_of_update(old, new):
        raise spec_problem(faults, Kind.IMMUTABLE)
    return version


def _changed_meanwhile(version: str | None) -> Problem:
    now = f" Its resource version is {version} now." if version else ""
    return Problem(
        Kind.CONFLICT,
        f"The job was changed meanwhile.{now} Read it again and repeat the change.",
        members={"resourceVersion": version} if version else {},
    )
