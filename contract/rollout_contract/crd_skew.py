"""Whether the installed definition of the resource has everything that this version of the platform reads and writes.

Asked by the operator and the gateway at their start and by `doctor`. An older definition prunes fields that it does not
know, silently, so a program that needs them must not write. A newer one only adds. Pure: the caller reads the schema,
from the definition itself or from the server's `/openapi/v3/apis/rolloutjob.dev/v1alpha1`, which needs no rights.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rollout_contract.crd import CRD_NAME, SCHEMA_MARK, VERSION, crd_document, schema_hash

OPENAPI_PATH = "/openapi/v3/apis/rolloutjob.dev/v1alpha1"
"""Where a server publishes the schema of what is installed, for everyone who may log in."""

MAX_NAMED = 5
"""Missing fields that a message names."""

_MARK = re.compile(re.escape(SCHEMA_MARK) + r"([0-9a-f]{16})\b")


@dataclass(frozen=True, slots=True)
class Skew:
    """The installed definition is older than this version needs."""

    found: str | None
    """Its schema's hash; None if it carries none."""
    needed: str
    missing: tuple[str, ...]
    """Fields, and values of closed sets, that it does not know."""

    def __str__(self) -> str:
        named = ", ".join(self.missing[:MAX_NAMED])
        more = f" and {len(self.missing) - MAX_NAMED} more" if len(self.missing) > MAX_NAMED else ""
        return (
            f"the CustomResourceDefinition {CRD_NAME} is older than this version: found schema {self.found or 'unknown'}, "
            f"needed {self.needed}; it lacks {named}{more}. Nothing is written until it is upgraded: run "
            "`kubectl apply --server-side --force-conflicts -f charts/rollout-crd.yaml` with the file of this version, "
            "or `helm upgrade` with crds.install=true."
        )


def skew_of(installed: Mapping[str, Any]) -> Skew | None:
    """What an installed schema (the value of `openAPIV3Schema`) lacks; None if this version can work with it."""
    found, needed = _MARK.search(str(installed.get("description", ""))), schema_hash()
    if found is not None and found[1] == needed:
        return None
    ours = crd_document()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    missing = tuple(_missing(ours, installed, ""))
    return Skew(found[1] if found else None, needed, missing) if missing else None


def schema_in(document: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The schema inside a definition, or inside the document at `OPENAPI_PATH`; None if there is none."""
    for version in document.get("spec", {}).get("versions", ()):
        if version.get("name") == VERSION:
            return _mapping(version.get("schema", {}).get("openAPIV3Schema"))
    schemas = document.get("components", {}).get("schemas", {})
    return next((_mapping(s) for name, s in schemas.items() if name.endswith(f".{VERSION}.RolloutJob")), None)


def _mapping(value: object) -> Mapping[str, Any] | None:
    return value if isinstance(value, Mapping) else None


def _missing(needed: Mapping[str, Any], found: Mapping[str, Any], path: str) -> Iterator[str]:
    if "items" in needed:
        yield from _missing(needed["items"], found.get("items", {}), path)
    for value in needed.get("enum", ()):
        if "enum" in found and value not in found["enum"]:
            yield f"{path}={value}"
    properties = found.get("properties", {})
    for name, child in needed.get("properties", {}).items():
        below = f"{path}.{name}" if path else name
        if below == "metadata":
            continue
        if name in properties:
            yield from _missing(child, properties[name], below)
        else:
            yield below
