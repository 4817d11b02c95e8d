"""The structural schema of the custom resource, made from the models: types, bounds, defaults, list kinds.

Used by `crd` alone. Starts from what pydantic says as JSON schema and turns it into the subset that Kubernetes takes:
no references, no unions with null, nested defaults spelled out, 64-bit integers, and unknown fields kept only where a
model keeps them. Rules that tie fields together are added by `crd`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rollout_contract.spec_models import RolloutJob

Schema = dict[str, Any]

LIST_MAPS: Mapping[str, tuple[str, ...]] = {
    "spec.workerGroups": ("name",),
    "spec.workerGroups.template.spec.containers": ("name",),
    "status.conditions": ("type",),
    "status.workerGroups": ("name",),
}
"""Lists of named things: the server refuses a name that is there twice, and appliers own one item each."""

LIST_SETS: frozenset[str] = frozenset({"spec.failurePolicy.rules.onExitCodes.values"})
"""Lists whose order means nothing and whose values may be there once. All other lists are replaced as a whole."""

MAX_LENGTHS: Mapping[str, int] = {"status.conditions.type": 316, "status.conditions.reason": 1024}
"""Bounds that only the cost budget of the rules needs; we write nothing near to them."""

MAX_EXACT = 2**53 - 1
"""The server keeps bounds as doubles: a larger one would overflow, and int64 has its own end."""

_KEPT = ("type", "pattern", "minLength", "maxLength", "minimum", "maximum", "minItems", "maxItems", "enum")
_KEEP_UNKNOWN = "x-kubernetes-preserve-unknown-fields"
_INT_OR_STRING = "x-kubernetes-int-or-string"


def openapi_schema() -> Schema:
    """The schema of the whole object, without rules."""
    document = RolloutJob.model_json_schema(by_alias=True)
    definitions = document["$defs"]
    parts = {
        name: _converted(document["properties"][name], definitions, path=name) for name in ("spec", "status")
    }
    parts["status"].pop("default", None)
    return {
        "type": "object",
        "description": document["description"],
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            # Declared so that a rule can point at it; every other field of the metadata is the server's.
            "metadata": {"type": "object", "properties": {"name": {"type": "string"}}},
            **parts,
        },
    }


def _converted(node: Mapping[str, Any], definitions: Mapping[str, Any], *, path: str) -> Schema:
    """One node, with everything below it."""
    node = _resolved(node, definitions)
    result: Schema = {}
    if node.get("description"):
        result["description"] = " ".join(node["description"].split())
    if node.get(_INT_OR_STRING):
        result |= _int_or_string(node)
    elif "const" in node:
        result |= {"type": "string", "enum": [node["const"]]}
    else:
        result |= {key: node[key] for key in _KEPT if key in node}
    if path in MAX_LENGTHS:
        result["maxLength"] = MAX_LENGTHS[path]
    match node.get("type"):
        case "integer":
            result["format"] = "int64"
            if result.get("maximum", 0) > MAX_EXACT:
                del result["maximum"]
        case "array":
            result["items"] = _converted(node["items"], definitions, path=path)
            result |= _list_kind(path)
        case "object":
            result |= _object(node, definitions, path=path)
    if node.get("default") is not None:
        result["default"] = _without_nulls(node["default"])
    return result


def _resolved(node: Mapping[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    """Follows references and drops `null` from unions: a field that is null counts as not written."""
    merged = dict(node)
    while "$ref" in merged or ("anyOf" in merged and not merged.get(_INT_OR_STRING)):
        if "$ref" in merged:
            merged = {**definitions[merged.pop("$ref").rpartition("/")[2]], **merged}
        else:
            (choice,) = [option for option in merged.pop("anyOf") if option.get("type") != "null"]
            merged = {**choice, **merged}
    return merged


def _int_or_string(node: Mapping[str, Any]) -> Schema:
    """Kubernetes takes exactly this form; the text's bounds stand beside it."""
    (text,) = [option for option in node["anyOf"] if option["type"] == "string"]
    bounds = {key: text[key] for key in ("pattern", "maxLength") if key in text}
    return {_INT_OR_STRING: True, "anyOf": [{"type": "integer"}, {"type": "string"}], **bounds}


def _list_kind(path: str) -> Schema:
    if path in LIST_MAPS:
        return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(LIST_MAPS[path])}
    return {"x-kubernetes-list-type": "set" if path in LIST_SETS else "atomic"}


def _object(node: Mapping[str, Any], definitions: Mapping[str, Any], *, path: str) -> Schema:
    others = node.get("additionalProperties")
    if "properties" not in node:
        return _mapping(node, others, definitions, path=path)
    result: Schema = {
        "properties": {
            key: _converted(child, definitions, path=f"{path}.{key}")
            for key, child in node["properties"].items()
        }
    }
    if node.get("required"):
        result["required"] = list(node["required"])
    if others is True:
        result[_KEEP_UNKNOWN] = True
    return result


def _mapping(node: Mapping[str, Any], others: Any, definitions: Mapping[str, Any], *, path: str) -> Schema:
    """A mapping with keys of the user's. Free-form values are kept key by key: only so are edits of keys noticed."""
    is_free = others is None or others is True
    values = {_KEEP_UNKNOWN: True} if is_free else _converted(others, definitions, path=path)
    result: Schema = {"additionalProperties": values}
    if "maxProperties" in node:
        result["maxProperties"] = node["maxProperties"]
    return result


def _without_nulls(value: Any) -> Any:
    match value:
        case dict():
            return {key: _without_nulls(item) for key, item in value.items() if item is not None}
        case list() | tuple():
            return [_without_nulls(item) for item in value]
        case _:
            return value
