"""The definition of the resource: structural, small, complete, and the same as the committed files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from copy import deepcopy
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from rollout_contract.crd import SCHEMA_HASH, crd_document, schema_hash
from rollout_contract.crd_skew import schema_in, skew_of
from rollout_contract.mutability import GROUP, SPEC, Change
from rollout_contract.spec import RolloutJob, parse_manifest

ROOT = Path(__file__).parents[2]
MAX_BYTES = 120 * 1024
SMALLEST = {
    "apiVersion": "rolloutjob.dev/v1alpha1",
    "kind": "RolloutJob",
    "metadata": {"name": "smallest"},
    "spec": {
        "env": {"entrypoint": "m:env"},
        "policy": {"entrypoint": "m:policy"},
        "collector": {"framesPerBatch": 8},
    },
}


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return crd_document()


@pytest.fixture(scope="module")
def schema(document: dict[str, Any]) -> dict[str, Any]:
    return document["spec"]["versions"][0]["schema"]["openAPIV3Schema"]


@pytest.fixture(scope="module")
def writer() -> ModuleType:
    spec = spec_from_file_location("write_crd", ROOT / "charts" / "write_crd.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def nodes(node: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, node
    for name, child in node.get("properties", {}).items():
        yield from nodes(child, f"{path}.{name}" if path else name)
    for key in ("items", "additionalProperties"):
        if isinstance(node.get(key), dict):
            yield from nodes(node[key], f"{path}[]")


def test_committed_files_are_what_the_contract_makes(writer: ModuleType) -> None:
    assert writer.PLAIN.read_text(encoding="utf-8") == writer.plain_text(), "run `make crd`"
    assert writer.TEMPLATE.read_text(encoding="utf-8") == writer.template_text(), "run `make crd`"


def test_plain_file_is_the_document(document: dict[str, Any]) -> None:
    assert yaml.safe_load((ROOT / "charts" / "rollout-crd.yaml").read_text(encoding="utf-8")) == document


@pytest.mark.probe("P-49")
def test_is_small_enough_for_client_side_apply(document: dict[str, Any]) -> None:
    assert len(json.dumps(document)) <= MAX_BYTES


def test_every_node_has_a_type_and_no_reference_is_left(schema: dict[str, Any]) -> None:
    for path, node in nodes(schema):
        assert not node.keys() & {"$ref", "title", "$defs", "allOf", "const"}, path
        free = node.get("x-kubernetes-preserve-unknown-fields") or node.get("x-kubernetes-int-or-string")
        assert "type" in node or free, path
        assert None not in node.get("enum", ()), path


def test_unknown_fields_are_kept_only_in_pod_templates_and_free_arguments(schema: dict[str, Any]) -> None:
    keeping = {path for path, node in nodes(schema) if node.get("x-kubernetes-preserve-unknown-fields")}
    template = "spec.workerGroups[].template."
    assert {path for path in keeping if not path.startswith(template)} == {
        "spec.env.kwargs[]",
        "spec.env.tasks[].kwargs[]",
        "spec.policy.kwargs[]",
    }
    assert {f"{template}spec", f"{template}metadata"} <= keeping


def test_lists_of_spec_and_status_are_bounded(schema: dict[str, Any]) -> None:
    free = {"command", "args"}
    for path, node in nodes(schema):
        if node.get("type") == "array" and path.rpartition(".")[2] not in free:
            assert "maxItems" in node, path
            assert "x-kubernetes-list-type" in node, path


def test_every_field_of_the_models_is_in_the_schema(schema: dict[str, Any]) -> None:
    job = parse_manifest(SMALLEST)
    for name in job.to_document()["spec"]:
        assert name in schema["properties"]["spec"]["properties"]
    fields = {field.alias for field in RolloutJob.model_fields["spec"].annotation.model_fields.values()}  # type: ignore[union-attr]
    assert set(schema["properties"]["spec"]["properties"]) == fields


def defaulted(node: dict[str, Any], value: Any) -> Any:
    """Fills in defaults as the server does."""
    if isinstance(value, dict):
        for name, child in node.get("properties", {}).items():
            if name not in value and "default" in child:
                value[name] = deepcopy(child["default"])
            if name in value:
                value[name] = defaulted(child, value[name])
    elif isinstance(value, list):
        value = [defaulted(node["items"], item) for item in value]
    return value


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param({}, id="smallest"),
        pytest.param({"stream": {"shards": 2}, "redis": {"host": "r"}, "weights": {}}, id="parts"),
        pytest.param({"failurePolicy": {}, "updateStrategy": {}, "podRetention": {}}, id="empty-parts"),
        pytest.param({"workerGroups": [{"name": "a", "elastic": True}]}, id="elastic-group"),
        pytest.param({"workerGroups": [{"name": "a", "replicas": 3}]}, id="fixed-group"),
    ],
)
def test_defaults_of_the_schema_are_those_of_the_models(schema: dict[str, Any], spec: dict[str, Any]) -> None:
    manifest = deepcopy(SMALLEST)
    manifest["spec"] |= spec  # type: ignore[operator]
    by_models = parse_manifest(deepcopy(manifest)).to_document()["spec"]
    by_schema = defaulted(schema["properties"]["spec"], deepcopy(manifest["spec"]))
    assert by_schema == by_models


def test_defaults_are_whole_at_every_level(schema: dict[str, Any]) -> None:
    """CEL sees a default as it is written, without the defaults below it."""
    for path, node in nodes(schema):
        if "default" in node:
            assert node["default"] == defaulted(node, deepcopy(node["default"])), path


def test_rules_have_a_message_a_reason_and_point_at_declared_fields(schema: dict[str, Any]) -> None:
    for path, node in nodes(schema):
        for rule in node.get("x-kubernetes-validations", ()):
            assert rule["message"], path
            assert "\n" not in rule["rule"], path
            assert rule["reason"].startswith("FieldValue"), path
            place = node
            for name in rule.get("fieldPath", "").split(".")[1:]:
                place = place["properties"][name]


def test_every_row_of_the_mutability_table_has_its_rule(schema: dict[str, Any]) -> None:
    spec = schema["properties"]["spec"]
    transitions = [rule for rule in spec["x-kubernetes-validations"] if "oldSelf" in rule["rule"]]
    for path, change in SPEC.items():
        found = [rule for rule in transitions if rule["fieldPath"] == f".{path}"]
        if path not in ("replicas", "weights.maxStaleness"):  # with determinism Strict
            assert bool(found) is (change is not Change.ALWAYS), path
    for name, change in GROUP.items():
        found = [rule for rule in transitions if f"{name} of a worker group" in rule["message"]]
        assert bool(found) is (change is Change.SUSPENDED), name


def test_columns_subresources_and_names(document: dict[str, Any]) -> None:
    version, names = document["spec"]["versions"][0], document["spec"]["names"]
    columns = version["additionalPrinterColumns"]
    assert [c["name"] for c in columns if "priority" not in c] == [
        "State",
        "Ready",
        "Frames",
        "Weights",
        "Age",
    ]
    assert version["subresources"]["status"] == {}
    assert version["subresources"]["scale"]["specReplicasPath"] == ".spec.replicas"
    assert names["shortNames"] == ["roj"]
    assert names["categories"] == ["all", "rl"]


def test_hash_is_in_the_annotation_and_in_the_published_schema(
    document: dict[str, Any], schema: dict[str, Any]
) -> None:
    mark = document["metadata"]["annotations"][SCHEMA_HASH]
    assert mark == schema_hash()
    assert schema["description"].endswith(f"Schema {mark}")


@pytest.mark.probe("P-46")
class TestSkew:
    def test_own_definition_fits(self, document: dict[str, Any]) -> None:
        installed = schema_in(document)
        assert installed is not None
        assert skew_of(installed) is None

    def test_published_form_fits(self, schema: dict[str, Any]) -> None:
        published = {"components": {"schemas": {"dev.rolloutjob.v1alpha1.RolloutJob": schema}}}
        installed = schema_in(published)
        assert installed is not None
        assert skew_of(installed) is None

    def test_older_one_is_named_with_what_it_lacks(self, schema: dict[str, Any]) -> None:
        old = deepcopy(schema)
        old["description"] = "The custom resource. Schema 0123456789abcdef"
        del old["properties"]["spec"]["properties"]["stream"]["properties"]["claimIdleSeconds"]
        del old["properties"]["spec"]["properties"]["workerGroups"]["items"]["properties"]["device"]
        old["properties"]["spec"]["properties"]["collector"]["properties"]["mode"]["enum"].remove("Async")
        skew = skew_of(old)
        assert skew is not None
        assert set(skew.missing) == {
            "spec.stream.claimIdleSeconds",
            "spec.workerGroups.device",
            "spec.collector.mode=Async",
        }
        text = str(skew)
        assert "0123456789abcdef" in text
        assert schema_hash() in text
        assert "kubectl apply" in text

    def test_newer_one_is_welcome(self, schema: dict[str, Any]) -> None:
        new = deepcopy(schema)
        new["description"] = "The custom resource. Schema fedcba9876543210"
        new["properties"]["spec"]["properties"]["later"] = {"type": "string"}
        assert skew_of(new) is None

    def test_status_is_compared_as_well(self, schema: dict[str, Any]) -> None:
        old = deepcopy(schema)
        old["description"] = "no hash"
        del old["properties"]["status"]["properties"]["lastFailure"]
        skew = skew_of(old)
        assert skew is not None
        assert skew.found is None
        assert skew.missing == ("status.lastFailure",)

    def test_document_without_a_schema(self) -> None:
        assert schema_in({}) is None
        assert schema_in({"components": {"schemas": {}}}) is None
