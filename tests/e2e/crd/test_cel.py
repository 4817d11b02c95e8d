"""Each rule of the definition, with a manifest that it takes and one that it refuses: the server and the contract agree.

The whole table runs against a real API server; what the contract says of the same manifests is checked with it.
"""

from __future__ import annotations

import re
from copy import deepcopy
from typing import Any

import pytest

from rollout_contract.crd import crd_document
from rollout_contract.errors import SpecError
from rollout_contract.spec import parse_manifest

BASE: dict[str, Any] = {
    "apiVersion": "rolloutjob.dev/v1alpha1",
    "kind": "RolloutJob",
    "metadata": {"name": "job"},
    "spec": {
        "managedBy": "example.org/nobody",
        "env": {"entrypoint": "m:env", "envsPerWorker": 8},
        "policy": {"entrypoint": "m:policy"},
        "collector": {"framesPerBatch": 64},
    },
}
Patch = dict[str, Any]


def merged(base: Any, patch: Any) -> Any:
    """The base with a patch: mappings are merged, None removes, everything else replaces."""
    if not isinstance(base, dict) or not isinstance(patch, dict):
        return deepcopy(patch)
    result = dict(base)
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


def job(spec: Patch, **metadata: Any) -> dict[str, Any]:
    return merged(BASE, {"spec": spec, "metadata": metadata})


def worker(**container: Any) -> dict[str, Any]:
    return {"template": {"spec": {"containers": [{"name": "worker", "image": "x", **container}]}}}


def limits(**resources: Any) -> dict[str, Any]:
    return {"resources": {"limits": resources}}


def groups(*found: dict[str, Any]) -> Patch:
    return {"workerGroups": [{"name": "a", "elastic": True} | found[0], *found[1:]]}


STRICT = {"determinism": "Strict"}
SIDE = {"name": "side"}
ON_GPU = {"name": "worker", "resources": {"limits": {"nvidia.com/gpu": 1}}}
RATE = {"type": "SampleToInsert", "samplesPerInsert": "1.1", "errorBufferFrames": 11}

NAMES = [
    pytest.param("a", True, id="one-letter"),
    pytest.param("a" * 40, True, id="40"),
    pytest.param("a" * 41, False, id="41"),
    pytest.param("a.b", False, id="dot"),
    pytest.param("a_b", False, id="underscore"),
    pytest.param("A-b", False, id="upper-case"),
    pytest.param("-a", False, id="dash-first"),
    pytest.param("a-", False, id="dash-last"),
    pytest.param("9a", False, id="digit-first"),
    pytest.param("../a", False, id="path"),
]

# place of the fault, what is taken, what is refused
RULES: list[tuple[str, Patch, Patch]] = [
    ("spec.env", {"env": {"kwargsFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}}},
     {"env": {"kwargs": {"a": 1}, "kwargsFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}}}),
    ("spec.env.envsPerWorker", {"collector": {"mode": "MultiSync", "collectorsPerWorker": 4}},
     {"collector": {"mode": "MultiSync", "collectorsPerWorker": 3}}),
    ("spec.env.processes", {"env": {"processes": 8}}, {"env": {"processes": 9}}),
    ("spec.env.tasks", {"env": {"tasks": [{"name": "a", "count": 3}, {"name": "b", "count": 5}]}},
     {"env": {"tasks": [{"name": "a", "count": 3}, {"name": "b", "count": 4}]}}),
    ("spec.env.tasks", {"env": {"tasks": [{"name": "a", "count": 4}, {"name": "b", "count": 4}]}},
     {"env": {"tasks": [{"name": "a", "count": 4}, {"name": "a", "count": 4}]}}),
    ("spec.collector.framesPerBatch", {"collector": {"framesPerBatch": 16}}, {"collector": {"framesPerBatch": 12}}),
    ("spec.collector.framesPerBatch",
     {"collector": {"framesPerBatch": 12, "mode": "MultiAsync", "collectorsPerWorker": 2}},
     {"collector": {"framesPerBatch": 10, "mode": "MultiAsync", "collectorsPerWorker": 2}}),
    ("spec.collector.framesPerBatch",
     {"collector": {"framesPerBatch": 16, "mode": "MultiSync", "collectorsPerWorker": 2}},
     {"collector": {"framesPerBatch": 12, "mode": "MultiSync", "collectorsPerWorker": 2}}),
    ("spec.collector.collectorsPerWorker", {"collector": {"mode": "MultiAsync", "collectorsPerWorker": 2}},
     {"collector": {"mode": "Sync", "collectorsPerWorker": 2}}),
    ("spec.collector.collectorsPerWorker", {"collector": {"mode": "Async"}},
     {"collector": {"mode": "Async", "collectorsPerWorker": 2}}),
    ("spec.collector.preemptionThresholdPercent",
     {"collector": {"mode": "MultiSync", "preemptionThresholdPercent": 80}},
     {"collector": {"preemptionThresholdPercent": 80}}),
    ("spec.collector.preemptionThresholdPercent",
     {"collector": {"coordination": "Barrier", "preemptionThresholdPercent": 80}},
     {"collector": {"mode": "MultiAsync", "preemptionThresholdPercent": 80}}),
    ("spec.collector.initRandomFrames", {"collector": {"totalFrames": 64, "initRandomFrames": 64}},
     {"collector": {"totalFrames": 64, "initRandomFrames": 65}}),
    ("spec.determinism", {**STRICT, "collector": {"mode": "MultiSync"}}, {**STRICT, "collector": {"mode": "Async"}}),
    ("spec.collector.preemptionThresholdPercent", {**STRICT, "collector": {"mode": "MultiSync"}},
     {**STRICT, "collector": {"mode": "MultiSync", "preemptionThresholdPercent": 80}}),
    ("spec.weights.startPolicy", {**STRICT, "weights": {"startPolicy": "WaitForWeights", "maxStaleness": 0}},
     {**STRICT, "weights": {"startPolicy": "WaitForWeights"}}),
    ("spec.workerGroups", groups({}, {"name": "b"}), groups({}, {"name": "b", "elastic": True})),
    ("spec.workerGroups[1]", groups({}, {"name": "b"}), groups({}, {"name": "a", "replicas": 2})),
    ("spec.replicas", {"replicas": 3, **groups({})}, {"replicas": 3, **groups({"elastic": False})}),
    ("spec.replicas", {"replicas": 1, **groups({"elastic": False})}, {"replicas": 0, **groups({"elastic": False})}),
    ("spec.workerGroups[0].replicas", groups({"elastic": False, "replicas": 2}), groups({"replicas": 2})),
    ("spec.workerGroups[0].minReplicas", groups({"minReplicas": 3, "maxReplicas": 3}),
     groups({"minReplicas": 4, "maxReplicas": 3})),
    ("spec.workerGroups[0].minAvailable", groups({"minAvailable": 3, "maxReplicas": 3}),
     groups({"minAvailable": 4, "maxReplicas": 3})),
    ("spec.workerGroups[0].device", groups({"device": "Cuda", **worker(**limits(**{"nvidia.com/gpu": 1}))}),
     groups({"device": "Cuda"})),
    ("spec.workerGroups[0].device", groups({"device": "Cuda", **worker(**limits(**{"nvidia.com/mig-1g.5gb": "1"}))}),
     groups({"device": "Cuda", **worker(**limits(**{"nvidia.com/gpu": "0"}))})),
    ("spec.workerGroups[0].device", groups({"device": "Cuda", "template": {"spec": {"containers": [SIDE, ON_GPU]}}}),
     groups({"device": "Cuda", "template": {"spec": {"containers": [{"name": "worker"}, {**ON_GPU, "name": "s"}]}}})),
    ("spec.workerGroups[0].device", groups({"device": "Cpu"}),
     groups({"device": "Cuda", **worker(**limits(memory="1Gi", cpu=2))})),
    ("spec.workerGroups[0].template.spec.restartPolicy",
     groups({"template": {"spec": {"restartPolicy": "Never"}}}),
     groups({"template": {"spec": {"restartPolicy": "Always"}}})),
    ("spec.workerGroups[0].template.spec.containers[0].env[0].name",
     groups(worker(env=[{"name": "MY_ROLLOUT_X", "value": "1"}])),
     groups(worker(env=[{"name": "ROLLOUT_X", "value": "1"}]))),
    ("spec.workerGroups[0].template.spec.containers[1]",
     groups({"template": {"spec": {"containers": [{"name": "worker"}, {"name": "side"}]}}}),
     groups({"template": {"spec": {"containers": [{"name": "worker"}, {"name": "worker"}]}}})),
    ("spec.workerGroups[0].template.spec.containers[0].resources.limits",
     groups(worker(**limits(memory=0))), groups(worker(**limits(memory="-1Gi")))),
    ("spec.workerGroups[0].template.spec.containers[0].resources.requests",
     groups(worker(resources={"requests": {"cpu": "500m"}})), groups(worker(resources={"requests": {"cpu": -1}}))),
    ("spec.workerGroups[0].sharedMemory", groups({"sharedMemory": "1Gi", **worker(**limits(memory="1Gi"))}),
     groups({"sharedMemory": "2Gi", **worker(**limits(memory="1Gi"))})),
    ("spec.workerGroups[0].sharedMemory", groups({"sharedMemory": "1Gi"}),
     groups({"sharedMemory": 1073741825, **worker(**limits(memory="1Gi"))})),
    ("spec.workerGroups[0].sharedMemory",
     groups({"sharedMemory": "1Gi", "template": {"spec": {"containers": [
         {"name": "side", **limits(memory="1Mi")}, {"name": "worker", **limits(memory="2Gi")}]}}}),
     groups({"sharedMemory": "1Gi", "template": {"spec": {"containers": [
         {"name": "first", **limits(memory="1Mi")}, {"name": "side", **limits(memory="2Gi")}]}}})),
    ("spec.workerGroups[0].sharedMemory", groups({"sharedMemory": "1Mi"}), groups({"sharedMemory": "1Ki"})),
    ("spec.redis.host", {"redis": {"host": "redis.example", "port": 6380}}, {"redis": {"port": 6380}}),
    ("spec.redis.host", {"redis": {"cleanupPolicy": "Delete"}},
     {"redis": {"authSecretRef": {"name": "s", "key": "k"}}}),
    ("spec.redis.host", {"redis": {"host": "r", "tls": {"enabled": True}}}, {"redis": {"tls": {"enabled": True}}}),
    ("spec.stream.groups", {"stream": {"groups": ["a", "b"]}}, {"stream": {"groups": ["a", "b", "a"]}}),
    ("spec.stream.maxUnackedFrames", {"stream": {"maxUnackedFrames": 64}}, {"stream": {"maxUnackedFrames": 63}}),
    ("spec.stream.maxBytes", {"stream": {"maxBytes": "4Ki"}}, {"stream": {"maxBytes": "4095"}}),
    ("spec.stream.maxBytes", {"stream": {"maxBytes": 1099511627776}}, {"stream": {"maxBytes": "1Ei"}}),
    ("spec.stream.maxFrameBytes", {"stream": {"maxFrameBytes": "512Mi"}}, {"stream": {"maxFrameBytes": "513Mi"}}),
    ("spec.weights.maxBytes", {"weights": {"maxBytes": "1e9"}}, {"weights": {"maxBytes": "-1Gi"}}),
    ("spec.weights.maxStaleness", {"weights": {"maxStaleness": 0}},
     {"weights": {"maxStaleness": 0}, "collector": {"mode": "MultiAsync"}}),
    ("spec.weights.onStale", {"weights": {"onStale": "Drop", "maxStaleness": 3}}, {"weights": {"onStale": "Drop"}}),
    ("spec.stream.rateLimit.minFrames", {"stream": {"rateLimit": {"type": "MinSize", "minFrames": 1}}},
     {"stream": {"rateLimit": {"type": "MinSize"}}}),
    ("spec.stream.rateLimit.minFrames", {"stream": {"rateLimit": {"type": "Queue"}}},
     {"stream": {"rateLimit": {"type": "Queue", "minFrames": 1}}}),
    ("spec.stream.rateLimit.samplesPerInsert", {"stream": {"rateLimit": RATE}, "env": {"envsPerWorker": 1},
                                                "collector": {"framesPerBatch": 10}},
     {"stream": {"rateLimit": {**RATE, "samplesPerInsert": None}}}),
    ("spec.stream.rateLimit.samplesPerInsert",
     {"stream": {"rateLimit": {**RATE, "samplesPerInsert": 1, "errorBufferFrames": 64}}},
     {"stream": {"rateLimit": {**RATE, "samplesPerInsert": "0"}}}),
    ("spec.stream.rateLimit.samplesPerInsert", {"stream": {"rateLimit": {"type": "MinSize", "minFrames": 5}}},
     {"stream": {"rateLimit": {"type": "MinSize", "minFrames": 5, "samplesPerInsert": 2}}}),
    ("spec.stream.rateLimit.errorBufferFrames", {"stream": {"rateLimit": {**RATE, "errorBufferFrames": 71}}},
     {"stream": {"rateLimit": {**RATE, "errorBufferFrames": 70}}}),
    ("spec.stream.rateLimit.errorBufferFrames",
     {"stream": {"rateLimit": {**RATE, "samplesPerInsert": "100m", "errorBufferFrames": 64}}},
     {"stream": {"rateLimit": {**RATE, "samplesPerInsert": "100m", "errorBufferFrames": 63}}}),
    ("spec.stream.rateLimit.errorBufferFrames", {"stream": {"rateLimit": {"type": "MinSize", "minFrames": 9}}},
     {"stream": {"rateLimit": {"type": "SampleToInsert", "samplesPerInsert": 2}}}),
    ("spec.stream.rateLimit.errorBufferFrames", {"stream": {"rateLimit": {"type": "Queue"}}},
     {"stream": {"rateLimit": {"type": "Queue", "errorBufferFrames": 70}}}),
    ("spec.stream.rateLimit.minFrames",
     {"stream": {"maxUnackedFrames": 64, "rateLimit": {"type": "MinSize", "minFrames": 64}}},
     {"stream": {"maxUnackedFrames": 64, "rateLimit": {"type": "MinSize", "minFrames": 65}}}),
    ("spec.failurePolicy.rules", {"failurePolicy": {"rules": [{"name": "a", "action": "Ignore"}]}},
     {"failurePolicy": {"rules": [{"name": "a", "action": "Ignore"}, {"name": "a", "action": "FailJob"}]}}),
    ("spec.failurePolicy.rules",
     {"failurePolicy": {"rules": [{"name": "a", "action": "Ignore", "workerGroups": ["default"]}]}},
     {"failurePolicy": {"rules": [{"name": "a", "action": "Ignore", "workerGroups": ["gpu"]}]}}),
    ("spec.failurePolicy.rules[0].onExitCodes.values[1]",
     {"failurePolicy": {"rules": [{"name": "a", "action": "Ignore",
                                   "onExitCodes": {"operator": "In", "values": [1, 255]}}]}},
     {"failurePolicy": {"rules": [{"name": "a", "action": "Ignore",
                                   "onExitCodes": {"operator": "In", "values": [3, 3]}}]}}),
]  # fmt: skip

# Types, bounds, closed sets, unknown fields: what the schema says without rules. Place, what is refused.
BOUNDS: list[tuple[str, Patch]] = [
    ("spec.env.entrypoint", {"env": {"entrypoint": "no colon"}}),
    ("spec.env.entrypoint", {"env": {"entrypoint": None}}),
    ("spec.env.envsPerWorker", {"env": {"envsPerWorker": 0}}),
    ("spec.env.envsPerWorker", {"env": {"envsPerWorker": "8"}}),
    ("spec.env.kwargs", {"env": {"kwargs": [1]}}),
    ("spec.env.backend", {"env": {"backend": "process"}}),
    ("spec.collector.framesPerBatch", {"collector": {"framesPerBatch": None}}),
    ("spec.collector.framesPerBatch", {"collector": {"framesPerBatch": 2**31}}),
    ("spec.collector.totalFrames", {"collector": {"totalFrames": 2**53}}),
    ("spec.collector.totalFrames", {"collector": {"totalFrames": -1}}),
    ("spec.collector.preemptionThresholdPercent",
     {"collector": {"mode": "MultiSync", "preemptionThresholdPercent": 101}}),
    ("spec.seed", {"seed": -1}),
    ("spec.seed", {"seed": 2**63}),
    ("spec.replicas", {"replicas": 10_000}),
    ("spec.managedBy", {"managedBy": "nobody"}),
    ("spec.code", {"code": {}}),
    ("spec.code.configMapRef.name", {"code": {"configMapRef": {"name": "../other"}}}),
    ("spec.workerGroups", {"workerGroups": []}),
    ("spec.workerGroups", {"workerGroups": [{"name": f"g{i}"} for i in range(9)]}),
    ("spec.workerGroups[0].name", groups({"name": "a" * 13})),
    ("spec.workerGroups[0].name", groups({"name": "a-b"})),
    ("spec.workerGroups[0].sharedMemory", groups({"sharedMemory": "lots"})),
    ("spec.workerGroups[0].template.spec.containers[0].name", groups({"template": {"spec": {"containers": [{}]}}})),
    ("spec.workerGroups[0].template.sepc", groups({"template": {"sepc": {}}})),
    ("spec.redis.port", {"redis": {"host": "r", "port": 65536}}),
    ("spec.redis.host", {"redis": {"host": "redis://r"}}),
    ("spec.stream.claimIdleSeconds", {"stream": {"claimIdleSeconds": 0}}),
    ("spec.stream.maxBytes", {"stream": {"maxBytes": 1.5}}),
    ("spec.stream.groups", {"stream": {"groups": []}}),
    ("spec.weights.keepVersions", {"weights": {"keepVersions": 1}}),
    ("spec.failurePolicy.backoffSeconds", {"failurePolicy": {"backoffSeconds": 301}}),
    ("spec.failurePolicy.rules[0].onExitCodes.values[0]",
     {"failurePolicy": {"rules": [{"name": "a", "action": "Ignore",
                                   "onExitCodes": {"operator": "In", "values": [256]}}]}}),
    ("spec.failurePolicy.rules[0].onExitCodes.values[0]",
     {"failurePolicy": {"rules": [{"name": "a", "action": "Ignore",
                                   "onExitCodes": {"operator": "In", "values": [0]}}]}}),
    ("spec.activeDeadlineSeconds", {"activeDeadlineSeconds": 0}),
    ("spec.colector", {"colector": {"framesPerBatch": 64}}),
    ("spec.collector.frames", {"collector": {"frames": 64}}),
]  # fmt: skip

# What no rule may refuse: free-form parts, and the ends of bounds.
TAKEN = [
    pytest.param({"env": {"kwargs": {"a": {"b": [1, 2.5, None, {"c": "d"}]}, "on": True}}}, id="kwargs"),
    pytest.param({"env": {"kwargs": {}}, "policy": {"kwargs": {"hidden": 256}}}, id="empty-kwargs"),
    pytest.param({"seed": 2**63 - 1}, id="largest-seed"),
    pytest.param({"collector": {"totalFrames": 2**53 - 1}}, id="largest-total"),
    pytest.param({"replicas": 0}, id="no-workers"),
    pytest.param(groups({"minReplicas": 5, "maxReplicas": 9}), id="replicas-outside-are-clamped"),
    pytest.param(
        groups(
            {
                "template": {
                    "metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}},
                    "spec": {
                        "containers": [
                            {
                                "name": "worker",
                                "env": [
                                    {"name": "X", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}
                                ],
                                "volumeMounts": [{"name": "v", "mountPath": "/v"}],
                            }
                        ],
                        "tolerations": [{"key": "k", "operator": "Exists", "tolerationSeconds": 3}],
                        "schedulingGates": [{"name": "example.org/gate"}],
                        "affinity": {"nodeAffinity": {}},
                        "volumes": [{"name": "v", "emptyDir": {}}],
                    },
                }
            }
        ),
        id="whole-template",
    ),
]


def place(path: str) -> str:
    return re.sub(r"\[\w*\]", "", path)


def id_of(rows: list[tuple[Any, ...]]) -> list[str]:
    return [f"{place(row[0]).removeprefix('spec.')}-{number}" for number, row in enumerate(rows)]


def is_valid(document: dict[str, Any]) -> bool:
    try:
        parse_manifest(document)
    except SpecError:
        return False
    return True


@pytest.mark.probe("P-40")
@pytest.mark.parametrize(("name", "accepted"), NAMES)
def test_names(jobs: Any, name: str, accepted: bool) -> None:
    document = job({}, name=name)
    answer = jobs.create(document)
    assert isinstance(answer, dict) is accepted, answer
    assert is_valid(document) is accepted
    if not accepted:
        assert answer.code == 422
        assert "metadata.name" in answer.fields


@pytest.mark.parametrize(("path", "good", "bad"), RULES, ids=id_of(RULES))
def test_rule(jobs: Any, path: str, good: Patch, bad: Patch) -> None:
    taken, refused = job(good), job(bad)
    answer = jobs.create(taken)
    assert isinstance(answer, dict), answer
    assert is_valid(taken)
    answer = jobs.create(refused)
    assert not isinstance(answer, dict), "the server took it"
    assert answer.code == 422
    # What stands outside of CEL ("not") has its place in the text alone.
    assert path in answer.fields or f'"{path}"' in answer.text, answer
    assert not is_valid(refused)


@pytest.mark.parametrize(("path", "bad"), BOUNDS, ids=id_of(BOUNDS))
def test_bound(jobs: Any, path: str, bad: Patch) -> None:
    refused = job(bad)
    answer = jobs.create(refused)
    assert not isinstance(answer, dict), "the server took it"
    assert answer.code in {400, 422}
    assert any(field.startswith(path) for field in answer.fields) or path in answer.text, answer
    with pytest.raises(SpecError):
        parse_manifest(refused)


@pytest.mark.parametrize("spec", TAKEN)
def test_taken(jobs: Any, spec: Patch) -> None:
    document = job(spec)
    answer = jobs.create(document)
    assert isinstance(answer, dict), answer
    for key, value in spec.items():
        kept = answer["spec"][key]
        assert kept == merged(kept, value) or key == "workerGroups", "something was pruned"
    parse_manifest(document)
    parse_manifest(answer)


def test_template_is_kept_as_it_is(jobs: Any) -> None:
    document = job(TAKEN[-1].values[0])  # type: ignore[arg-type]
    answer = jobs.create(document)
    assert answer["spec"]["workerGroups"][0]["template"] == document["spec"]["workerGroups"][0]["template"]


@pytest.mark.probe("P-48")
def test_shared_memory_over_the_limit_is_refused_with_both_numbers(jobs: Any) -> None:
    answer = jobs.create(job(groups({"sharedMemory": "2Gi", **worker(**limits(memory="1Gi"))})))
    assert "2Gi" in answer.text
    assert "1Gi" in answer.text


def test_defaults_are_visible(jobs: Any) -> None:
    answer = jobs.create(job({}))
    ours = parse_manifest(job({})).to_document()["spec"]
    assert answer["spec"] == ours


def test_every_rule_of_the_definition_is_in_the_table() -> None:
    schema = crd_document()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    tried = {place(path) for path, _, _ in RULES} | {"metadata.name"}

    def places(node: dict[str, Any], path: str) -> set[str]:
        found = {
            f"{path}{rule.get('fieldPath', '')}".lstrip(".")
            for rule in node.get("x-kubernetes-validations", ())
            if "oldSelf" not in rule["rule"]
        }
        for name, child in node.get("properties", {}).items():
            found |= places(child, f"{path}.{name}" if path else name)
        return found | (places(node["items"], path) if "items" in node else set())

    assert places(schema, "") - tried == set()
