"""Builders for documents of the contract."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from rollout_contract.errors import SpecError
from rollout_contract.spec import RolloutJob, parse_manifest

SMALLEST: dict[str, Any] = {
    "apiVersion": "rolloutjob.dev/v1alpha1",
    "kind": "RolloutJob",
    "metadata": {"name": "cartpole"},
    "spec": {
        "env": {"entrypoint": "envs:make_env"},
        "policy": {"entrypoint": "policy:make_policy"},
        "collector": {"framesPerBatch": 40},
    },
}

REMOVE = "<remove>"

MakeManifest = Callable[..., dict[str, Any]]


@pytest.fixture(scope="session")
def manifest_with() -> MakeManifest:
    """`manifest_with({"spec.seed": 7})`: the smallest manifest with values put at paths, or removed by "<remove>"."""

    def make(changes: dict[str, object] | None = None) -> dict[str, Any]:
        document = copy.deepcopy(SMALLEST)
        for path, value in (changes or {}).items():
            *parents, last = path.split(".")
            place = document
            for key in parents:
                place = place.setdefault(key, {})
            if value == REMOVE:
                del place[last]
            else:
                place[last] = copy.deepcopy(value)
        return document

    return make


@pytest.fixture(scope="session")
def job_with(manifest_with: MakeManifest) -> Callable[..., RolloutJob]:
    """The parsed job of such a manifest."""
    return lambda changes=None: parse_manifest(manifest_with(changes))


@pytest.fixture(scope="session")
def faults_of(manifest_with: MakeManifest) -> Callable[[dict[str, object]], dict[str, str]]:
    """Path → message of every fault of such a manifest, empty if it is valid."""

    def judge(changes: dict[str, object]) -> dict[str, str]:
        try:
            parse_manifest(manifest_with(changes))
        except SpecError as error:
            return {fault.path: fault.message for fault in error.faults}
        return {}

    return judge
