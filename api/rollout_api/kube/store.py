"""Jobs in the Kubernetes API, with the rights of whoever asks.

Implements `store.JobStore`. Nothing is kept here: every call goes to the server with the caller's token, and what the server
refuses is refused. Documents are sent and kept as they are; a job that the contract cannot read is named, not shown.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any, Final

from rollout_api.identity import Identity
from rollout_api.kube.client import Document, KubernetesClient, Request
from rollout_api.kube.errors import MISSING_DEFINITION, Expired, error_of_page
from rollout_api.store import (
    JobChange,
    JobPage,
    LabelSelector,
    NotKnown,
    StoreUnavailable,
    Unknown,
)
from rollout_contract import names
from rollout_contract.errors import SpecError
from rollout_contract.spec import RolloutJob, parse_manifest

logger = logging.getLogger(__name__)

GROUP: Final = f"/apis/{names.API_VERSION}"
FIELD_MANAGER: Final = "rollout-gateway"
MERGE_PATCH: Final = "application/merge-patch+json"
WATCH_S: Final = 300
"""The server ends a watch after so long; it is gone on with."""
PAUSE_S: Final = 0.2
_WRITTEN_BY_THE_SERVER: Final = (
    "uid",
    "generation",
    "resourceVersion",
    "creationTimestamp",
    "deletionTimestamp",
    "managedFields",
)


class KubernetesStore:
    """`JobStore` over the API server. Without a token (as it is built) it can be asked for nothing but `check`."""

    def __init__(self, client: KubernetesClient, token: str = "") -> None:
        self._client = client
        self._token = token

    def __repr__(self) -> str:
        return "KubernetesStore(…)"

    def acting_for(self, caller: Identity) -> KubernetesStore:
        """See `JobStore`."""
        return KubernetesStore(self._client, caller.token)

    async def list(
        self, namespace: str | None, *, selector: LabelSelector, limit: int, continue_token: str = ""
    ) -> JobPage:
        """See `JobStore`. The token is the server's own; a page may have fewer jobs than asked for."""
        query = {"limit": str(limit), "labelSelector": selector.text, "continue": continue_token}
        request = Request("GET", _path(namespace), {k: v for k, v in query.items() if v}, is_repeatable=True)
        try:
            answer = await self._call(request)
        except Expired as error:
            raise error_of_page(error) from error
        jobs, unknown = [], []
        for item in answer.get("items") or []:
            try:
                jobs.append(_job(item))
            except Unknown as error:
                logger.warning("left out of a list: %s", error)
                unknown.append(_name_of(item))
        return JobPage(jobs, str((answer.get("metadata") or {}).get("continue") or ""), unknown)

    async def get(self, namespace: str, name: str) -> RolloutJob:
        """See `JobStore`."""
        return _job(await self._call(Request("GET", _path(namespace, name), is_repeatable=True)))

    async def create(self, job: RolloutJob, *, dry_run: bool = False) -> RolloutJob:
        """See `JobStore`."""
        document = job.to_document()
        document.pop("status", None)
        document["metadata"] = {
            key: value for key, value in document["metadata"].items() if key not in _WRITTEN_BY_THE_SERVER
        }
        query = _writing(dry_run=dry_run)
        return _job(await self._call(Request("POST", _path(job.metadata.namespace), query, document)))

    async def patch(
        self,
        namespace: str,
        name: str,
        patch: Mapping[str, Any],
        *,
        resource_version: str,
        dry_run: bool = False,
    ) -> RolloutJob:
        """See `JobStore`."""
        metadata = {**patch.get("metadata", {}), "resourceVersion": resource_version}
        body: Document = {"metadata": metadata}
        if "spec" in patch:
            body["spec"] = patch["spec"]
        request = Request(
            "PATCH", _path(namespace, name), _writing(dry_run=dry_run), body, content_type=MERGE_PATCH
        )
        return _job(await self._call(request))

    async def delete(self, namespace: str, name: str, *, resource_version: str | None = None) -> RolloutJob:
        """See `JobStore`. What is deleted is the very job that is answered, not one that came after it."""
        job = await self.get(namespace, name)
        preconditions = {"uid": job.metadata.uid}
        if resource_version is not None:
            preconditions["resourceVersion"] = resource_version
        body = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": preconditions,
            "propagationPolicy": "Background",
        }
        await self._call(Request("DELETE", _path(namespace, name), body=body))
        return job

    async def watch(self, namespace: str, name: str) -> AsyncIterator[JobChange]:
        """See `JobStore`. Goes on by itself where the server ends a watch in order, or has forgotten the version."""
        while True:
            job = await self.get(namespace, name)
            yield JobChange(job)
            version = job.metadata.resource_version or ""
            try:
                while True:
                    async with aclosing(self._watch_from(namespace, name, version)) as events:
                        async for event in events:
                            version = event["object"]["metadata"]["resourceVersion"]
                            if event["type"] != "BOOKMARK":
                                is_deleted = event["type"] == "DELETED"
                                yield JobChange(_job(event["object"]), is_deleted)
                                if is_deleted:
                                    return
                    await asyncio.sleep(
                        PAUSE_S
                    )  # a server that ends watches at once is not asked without end
            except Expired:
                continue

    async def check(self) -> None:
        """See `JobStore`. Asks, with the gateway's own account, whether the cluster knows RolloutJobs at all."""
        answer = await self._client.call(Request("GET", GROUP, is_repeatable=True))
        found = {resource.get("name") for resource in answer.get("resources") or []}
        if names.PLURAL not in found:
            raise StoreUnavailable(MISSING_DEFINITION)

    async def _watch_from(self, namespace: str, name: str, version: str) -> AsyncGenerator[Document]:
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "fieldSelector": f"metadata.name={name}",
            "resourceVersion": version,
            "timeoutSeconds": str(WATCH_S),
        }
        request = Request("GET", _path(namespace), query)
        async with aclosing(self._client.stream(request, token=self._checked_token())) as events:
            async for event in events:
                yield event

    async def _call(self, request: Request) -> Document:
        return await self._client.call(request, token=self._checked_token())

    def _checked_token(self) -> str:
        if not self._token:  # never with the gateway's own rights
            raise NotKnown("There is no token with the request.")
        return self._token


def _path(namespace: str | None, name: str = "") -> str:
    space = "" if namespace is None else f"/namespaces/{namespace}"
    return f"{GROUP}{space}/{names.PLURAL}" + (f"/{name}" if name else "")


def _writing(*, dry_run: bool) -> dict[str, str]:
    query = {"fieldManager": FIELD_MANAGER, "fieldValidation": "Strict"}
    return query | {"dryRun": "All"} if dry_run else query


def _name_of(document: Document) -> str:
    metadata = document.get("metadata") or {}
    return f"{metadata.get('namespace')}/{metadata.get('name')}"


def _job(document: Document) -> RolloutJob:
    document.setdefault("apiVersion", names.API_VERSION)  # items of a list may leave both out
    document.setdefault("kind", names.KIND)
    metadata = document.get("metadata") or {}
    metadata.pop("managedFields", None)
    try:
        return parse_manifest(document)
    except SpecError as error:
        faults = "; ".join(str(fault) for fault in error.faults[:5])
        raise Unknown(
            f"{_name_of(document)} holds what this version of the gateway does not know: {faults}"
        ) from error
