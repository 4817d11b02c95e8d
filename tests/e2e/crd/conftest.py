"""A real API server for tests: the one that KUBECONFIG names. Without it these tests are skipped.

Every test works in a namespace of its own, which is deleted at its end. Jobs in them are marked as managed by nobody, so
that an operator that watches the whole cluster leaves them alone.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes import client, config
from kubernetes.client.exceptions import ApiException

ROOT = Path(__file__).parents[3]
GROUP, VERSION, PLURAL = "rolloutjob.dev", "v1alpha1", "rolloutjobs"


@dataclass(frozen=True, slots=True)
class Refusal:
    """What the server said: its status code and, of each cause, field and text."""

    code: int
    text: str
    fields: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Jobs:
    """RolloutJobs of one namespace, as any client would write them, with strict checks of fields."""

    api: client.CustomObjectsApi
    namespace: str

    def _call(self, function: Any, *arguments: Any, **options: Any) -> dict[str, Any] | Refusal:
        try:
            answer = function(GROUP, VERSION, self.namespace, PLURAL, *arguments, **options)
        except ApiException as error:
            details = yaml.safe_load(error.body) or {}
            causes = (details.get("details") or {}).get("causes") or ()
            fields = tuple(cause.get("field", "") for cause in causes)
            return Refusal(error.status, details.get("message", error.body), fields)
        return dict(answer)

    def create(self, job: dict[str, Any], *, dry_run: bool = True) -> dict[str, Any] | Refusal:
        options = {"dry_run": "All"} if dry_run else {}
        return self._call(self.api.create_namespaced_custom_object, job, field_validation="Strict", **options)

    def replace(self, job: dict[str, Any], *, dry_run: bool = True) -> dict[str, Any] | Refusal:
        options = {"dry_run": "All"} if dry_run else {}
        return self._call(
            self.api.replace_namespaced_custom_object,
            job["metadata"]["name"],
            job,
            field_validation="Strict",
            **options,
        )

    def set_status(self, job: dict[str, Any]) -> dict[str, Any] | Refusal:
        return self._call(self.api.replace_namespaced_custom_object_status, job["metadata"]["name"], job)


@pytest.fixture(scope="session")
def api_client() -> client.ApiClient:
    if not os.environ.get("KUBECONFIG"):
        pytest.skip("needs a cluster: set KUBECONFIG")
    return config.new_client_from_config()


@pytest.fixture(scope="session")
def installed_crd(api_client: client.ApiClient) -> None:
    """The definition of this checkout, as `kubectl apply --server-side` would put it there."""
    document = yaml.safe_load((ROOT / "charts" / "rollout-crd.yaml").read_text(encoding="utf-8"))
    definitions = client.ApiextensionsV1Api(api_client)
    definitions.patch_custom_resource_definition(
        document["metadata"]["name"],
        document,
        field_manager="rollout-e2e",
        force=True,
        _content_type="application/apply-patch+yaml",
    )
    for _ in range(100):
        found = definitions.read_custom_resource_definition(document["metadata"]["name"])
        hashes = found.metadata.annotations.get("rolloutjob.dev/schema-hash")
        established = {c.type for c in found.status.conditions or () if c.status == "True"}
        if (
            "Established" in established
            and hashes == document["metadata"]["annotations"]["rolloutjob.dev/schema-hash"]
        ):
            return
    pytest.fail("the definition was not established")


@pytest.fixture(scope="module")
def namespace(api_client: client.ApiClient) -> Iterator[str]:
    core = client.CoreV1Api(api_client)
    name = f"e2e-{uuid.uuid4().hex[:10]}"
    core.create_namespace({"metadata": {"name": name}})
    yield name
    core.delete_namespace(name)


@pytest.fixture(scope="module")
def jobs(api_client: client.ApiClient, installed_crd: None, namespace: str) -> Jobs:
    return Jobs(client.CustomObjectsApi(api_client), namespace)
