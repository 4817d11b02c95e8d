"""The CustomResourceDefinition of RolloutJob, made from the models: what `make crd` writes and the server enforces.

Called by the script that writes the committed files, by the test that compares them, and, for its hash and the schema,
by whoever asks whether the installed definition is the one that this version needs (`crd_skew`). Pure.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any

from rollout_contract import names
from rollout_contract.crd_rule import CelRule
from rollout_contract.crd_rules import STATE_RULES
from rollout_contract.crd_schema import Schema, openapi_schema
from rollout_contract.crd_transitions import transition_rules

CRD_NAME = f"{names.PLURAL}.{names.GROUP_NAME}"
SCHEMA_HASH = f"{names.GROUP_NAME}/schema-hash"
"""Annotation: which schema this is. The same text ends the schema's own description, which every client may read."""
SCHEMA_MARK = "Schema "
"""What stands before the hash in the description."""
VERSION = names.API_VERSION.rpartition("/")[2]

_COLUMNS: tuple[tuple[str, str, str, int, str], ...] = (
    ("State", "string", ".status.state", 0, "For people; programs read the conditions"),
    ("Ready", "string", ".status.readyWorkers", 0, "Ready and wanted workers"),
    ("Frames", "integer", ".status.progress.frames", 0, "Frames appended to the stream"),
    ("Weights", "integer", ".status.weights.latestVersion", 0, "Newest version of the policy's weights"),
    ("Age", "date", ".metadata.creationTimestamp", 0, "Time since the job was created"),
    ("Mode", "string", ".spec.collector.mode", 1, "Collector inside each worker"),
    ("FPS", "integer", ".status.progress.framesPerSecond", 1, "Frames per second of all workers"),
    ("Lag", "integer", ".status.stream.unackedFrames", 1, "Frames that no learner has acked"),
    (
        "Message",
        "string",
        '.status.conditions[?(@.type=="Ready")].message',
        1,
        "What keeps the job from its work",
    ),
)
"""Name, type, where the value is, priority (1: with `-o wide`), meaning."""


def crd_document() -> dict[str, Any]:
    """The whole definition, ready for `kubectl apply`."""
    spec = _spec(_schema_with_rules())
    mark = _hash_of(spec)
    root = spec["versions"][0]["schema"]["openAPIV3Schema"]
    root["description"] += f" {SCHEMA_MARK}{mark}"
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": CRD_NAME,
            "annotations": {SCHEMA_HASH: mark},
            "labels": {"app.kubernetes.io/name": "rolloutjob", "app.kubernetes.io/part-of": "rolloutjob"},
        },
        "spec": spec,
    }


def schema_hash() -> str:
    """Of the definition that this version needs: changes with every field, bound, default, rule and column."""
    return str(crd_document()["metadata"]["annotations"][SCHEMA_HASH])


def _hash_of(spec: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:16]


def _spec(schema: Schema) -> dict[str, Any]:
    return {
        "group": names.GROUP_NAME,
        "scope": "Namespaced",
        "names": {
            "kind": names.KIND,
            "listKind": f"{names.KIND}List",
            "plural": names.PLURAL,
            "singular": names.KIND.lower(),
            "shortNames": [names.SHORT_NAME],
            "categories": ["all", "rl"],
        },
        "versions": [
            {
                "name": VERSION,
                "served": True,
                "storage": True,
                "subresources": {
                    "status": {},
                    "scale": {
                        "specReplicasPath": ".spec.replicas",
                        "statusReplicasPath": ".status.replicas",
                        "labelSelectorPath": ".status.selector",
                    },
                },
                "selectableFields": [{"jsonPath": ".spec.collector.mode"}, {"jsonPath": ".status.state"}],
                "additionalPrinterColumns": [
                    # A priority of zero is left out, as the server leaves it out: what is applied and what is stored are the
                    # same, and Helm and kubectl own the definition together without a conflict.
                    {"name": name, "type": kind, "jsonPath": path, "description": text}
                    | ({"priority": priority} if priority else {})
                    for name, kind, path, priority, text in _COLUMNS
                ],
                "schema": {"openAPIV3Schema": schema},
            }
        ],
    }


def _schema_with_rules() -> Schema:
    schema = openapi_schema()
    # CEL cannot name `kwargs`, whose values are free-form.
    schema["properties"]["spec"]["properties"]["env"]["not"] = {"required": ["kwargs", "kwargsFrom"]}
    _attach(schema, STATE_RULES)
    _attach(schema, transition_rules(schema["properties"]["spec"]))
    return schema


def _attach(schema: Schema, rules: Iterable[CelRule]) -> None:
    for rule in rules:
        _node_at(schema, rule.at).setdefault("x-kubernetes-validations", []).append(rule.to_schema())


def _node_at(schema: Schema, path: str) -> Schema:
    node = schema
    for part in path.split(".") if path else ():
        node = node["properties"][part.removesuffix("[]")]
        if part.endswith("[]"):
            node = node["items"]
    return node
