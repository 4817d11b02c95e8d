"""The kinds of objects that the operator touches, and calls on them as plain records. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from rollout_contract import names

Document = dict[str, Any]

JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
SERVER_SIDE_APPLY = "application/apply-patch+yaml"
METADATA_ONLY = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
"""Accepted by every list: names and versions without specs."""

FIELD_MANAGER = "rollout-operator"

_METHODS = {
    "get": "GET",
    "list": "GET",
    "watch": "GET",
    "create": "POST",
    "update": "PUT",
    "patch": "PATCH",
    "delete": "DELETE",
}


@dataclass(frozen=True, slots=True)
class Call:
    """One request, in the words of access rules: `verb` and `resource` are what a Role must grant for it."""

    verb: str
    resource: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    body: Document | None = None
    content_type: str = JSON
    accept: str = JSON

    @property
    def method(self) -> str:
        """The HTTP method."""
        return _METHODS[self.verb]


@dataclass(frozen=True, slots=True)
class Resource:
    """A namespaced kind."""

    prefix: str
    plural: str

    def path(self, namespace: str | None, name: str = "", part: str = "") -> str:
        """Of an object (or a part of it), of a namespace's objects, or (namespace None) of all in the cluster."""
        space = "" if namespace is None else f"/namespaces/{namespace}"
        return "/".join(filter(None, (f"{self.prefix}{space}/{self.plural}", name, part)))

    def get(self, namespace: str, name: str, part: str = "") -> Call:
        """Read one object."""
        return Call("get", self._named(part), self.path(namespace, name, part))

    def list(self, namespace: str | None, *, accept: str = JSON, **query: str) -> Call:
        """Read one page of objects."""
        return Call("list", self.plural, self.path(namespace), query, accept=accept)

    def list_one(self, namespace: str, name: str) -> Call:
        """A list of the one object of that name, or of none: needs no right but that to list."""
        return self.list(namespace, fieldSelector=f"metadata.name={name}")

    def watch(self, namespace: str | None, **query: str) -> Call:
        """Follow changes."""
        flags = {"watch": "true", "allowWatchBookmarks": "true"}
        return Call("watch", self.plural, self.path(namespace), {**flags, **query})

    def create(self, namespace: str, body: Document) -> Call:
        """Create an object; a field that the server does not know is refused."""
        query = {"fieldValidation": "Strict", "fieldManager": FIELD_MANAGER}
        return Call("create", self.plural, self.path(namespace), query, body)

    def check(self, namespace: str, body: Document) -> Call:
        """The same as `create`, but for the creation: every rule of the server is applied, and nothing is stored."""
        call = self.create(namespace, body)
        return replace(call, query={**call.query, "dryRun": "All"})

    def update(self, namespace: str, name: str, body: Document) -> Call:
        """Replace an object as of the resourceVersion that the body holds."""
        query = {"fieldManager": FIELD_MANAGER}
        return Call("update", self.plural, self.path(namespace, name), query, body)

    def merge(self, namespace: str, name: str, body: Document) -> Call:
        """Patch an object; a UID or resourceVersion in the body is a precondition."""
        query = {"fieldValidation": "Strict", "fieldManager": FIELD_MANAGER}
        return Call("patch", self.plural, self.path(namespace, name), query, body, MERGE_PATCH)

    def apply(self, namespace: str, name: str, body: Document, *, part: str = "") -> Call:
        """Server-side apply: the fields that we set are ours, those that we no longer set go."""
        query = {"fieldValidation": "Strict", "fieldManager": FIELD_MANAGER, "force": "true"}
        path = self.path(namespace, name, part)
        return Call("patch", self._named(part), path, query, body, SERVER_SIDE_APPLY)

    def delete(self, namespace: str, name: str, options: Document) -> Call:
        """Delete an object; `options` hold the preconditions."""
        body = {"apiVersion": "v1", "kind": "DeleteOptions", **options}
        return Call("delete", self.plural, self.path(namespace, name), body=body)

    def _named(self, part: str) -> str:
        return f"{self.plural}/{part}" if part else self.plural


PODS = Resource("/api/v1", "pods")
JOBS = Resource(f"/apis/{names.API_VERSION}", names.PLURAL)
LEASES = Resource("/apis/coordination.k8s.io/v1", "leases")
EVENTS = Resource("/apis/events.k8s.io/v1", "events")
"""The newer API of the same events that `kubectl describe` shows."""
SCHEMA = Call("get", "openapi", f"/openapi/v3/apis/{names.API_VERSION}")
"""The schema that the server checks jobs with; every account may read it, unlike the CRD itself."""
