"""Rules that tie fields together: for each, a manifest that is accepted beside one that is refused with path and advice."""

from __future__ import annotations

import pytest

from rollout_contract import fields, spec_rules
from rollout_contract.model_walk import build_what_is_valid
from rollout_contract.spec import RolloutJobSpec

GPU = {"spec": {"containers": [{"name": "worker", "resources": {"limits": {"nvidia.com/gpu": 1}}}]}}
SPI = {"type": "SampleToInsert", "samplesPerInsert": "8", "errorBufferFrames": 320}


def group(**fields_of_it):
    return [{"name": "cpu", **fields_of_it}]


def containers(*items):
    return {"spec": {"containers": list(items)}}


def failure_rule(**fields_of_it):
    return {"name": "a", "action": "Ignore", **fields_of_it}


ROWS = [
    pytest.param(
        {"spec.env.kwargs": {}},
        {"spec.env.kwargs": {}, "spec.env.kwargsFrom": {"configMapKeyRef": {"name": "a", "key": "b"}}},
        {"spec.env.kwargsFrom": "exclude each other"},
        id="kwargs or kwargsFrom",
    ),
    pytest.param(
        {"spec.env.kwargs": {"a": "x" * (fields.MAX_KWARGS_BYTES - len('{"a":""}'))}},
        {"spec.env.kwargs": {"a": "x" * (fields.MAX_KWARGS_BYTES - len('{"a":""}') + 1)}},
        {"spec.env.kwargs": "has 65537 bytes as JSON, should be at most 65536"},
        id="kwargs have at most 64 KiB",
    ),
    pytest.param(
        {"spec.policy.kwargs": {"a": "é" * 32_000}},
        {"spec.policy.kwargs": {"a": "é" * 33_000}},
        {"spec.policy.kwargs": "has 66008 bytes"},
        id="kwargs are measured in bytes",
    ),
    pytest.param(
        {"spec.env.kwargs": {"a": "x" * 40_000}, "spec.policy.kwargs": {"a": "x" * 40_000}},
        {"spec.env.kwargs": {"a": "x" * 41_000}, "spec.policy.kwargs": {"a": "x" * 41_000}},
        {"spec": "all kwargs together have 82016 bytes"},
        id="all kwargs fit one variable",
    ),
    pytest.param(
        {
            "spec.collector": {"framesPerBatch": 40, "mode": "MultiSync", "collectorsPerWorker": 2},
            "spec.env.envsPerWorker": 4,
        },
        {
            "spec.collector": {"framesPerBatch": 40, "mode": "MultiSync", "collectorsPerWorker": 3},
            "spec.env.envsPerWorker": 4,
        },
        {"spec.env.envsPerWorker": "4 is not a multiple of collectorsPerWorker (3). Use 6."},
        id="envs split evenly over collectors",
    ),
    pytest.param(
        {
            "spec.env.envsPerWorker": 4,
            "spec.env.tasks": [{"name": "a", "count": 3}, {"name": "b", "count": 1}],
        },
        {
            "spec.env.envsPerWorker": 4,
            "spec.env.tasks": [{"name": "a", "count": 3}, {"name": "b", "count": 2}],
        },
        {"spec.env.tasks": "sum to 5, not to envsPerWorker (4)"},
        id="task counts sum to envsPerWorker",
    ),
    pytest.param(
        {
            "spec.env.envsPerWorker": 2,
            "spec.env.tasks": [{"name": "a", "count": 1}, {"name": "b", "count": 1}],
        },
        {
            "spec.env.envsPerWorker": 2,
            "spec.env.tasks": [{"name": "a", "count": 1}, {"name": "a", "count": 1}],
        },
        {"spec.env.tasks": '"a" is there more than once'},
        id="task names are unique",
    ),
    pytest.param(
        {"spec.env.envsPerWorker": 4, "spec.env.processes": 4},
        {"spec.env.envsPerWorker": 4, "spec.env.processes": 5},
        {"spec.env.processes": "5 is more than envsPerWorker (4)"},
        id="no process without an environment",
    ),
    pytest.param(
        {"spec.collector.mode": "Sync", "spec.collector.collectorsPerWorker": 1},
        {"spec.collector.mode": "Sync", "spec.collector.collectorsPerWorker": 2, "spec.env.envsPerWorker": 2},
        {"spec.collector.collectorsPerWorker": "2 is not possible with mode Sync"},
        id="Sync has one collector",
    ),
    pytest.param(
        {"spec.collector.mode": "Async", "spec.collector.collectorsPerWorker": 1},
        {
            "spec.collector.mode": "Async",
            "spec.collector.collectorsPerWorker": 2,
            "spec.env.envsPerWorker": 2,
        },
        {"spec.collector.collectorsPerWorker": "2 is not possible with mode Async"},
        id="Async has one collector",
    ),
    pytest.param(
        {"spec.collector.framesPerBatch": 12, "spec.env.envsPerWorker": 4},
        {"spec.collector.framesPerBatch": 10, "spec.env.envsPerWorker": 4},
        {"spec.collector.framesPerBatch": "10 is not a multiple of envsPerWorker (4). Use 12."},
        id="frames of a batch fit the environments",
    ),
    pytest.param(
        {
            "spec.collector": {"framesPerBatch": 10, "mode": "MultiAsync", "collectorsPerWorker": 2},
            "spec.env.envsPerWorker": 4,
        },
        {
            "spec.collector": {"framesPerBatch": 11, "mode": "MultiAsync", "collectorsPerWorker": 2},
            "spec.env.envsPerWorker": 4,
        },
        {
            "spec.collector.framesPerBatch": "11 is not a multiple of envsPerWorker / collectorsPerWorker (2). Use 12."
        },
        id="frames of a MultiAsync batch fit one collector's environments",
    ),
    pytest.param(
        {"spec.collector": {"framesPerBatch": 40, "mode": "MultiSync", "preemptionThresholdPercent": 80}},
        {"spec.collector": {"framesPerBatch": 40, "mode": "Sync", "preemptionThresholdPercent": 80}},
        {
            "spec.collector.preemptionThresholdPercent": "has no effect with mode Sync and coordination Independent"
        },
        id="preemption with MultiSync",
    ),
    pytest.param(
        {
            "spec.collector": {
                "framesPerBatch": 40,
                "coordination": "Barrier",
                "preemptionThresholdPercent": 80,
            }
        },
        {"spec.collector": {"framesPerBatch": 40, "mode": "MultiAsync", "preemptionThresholdPercent": 80}},
        {"spec.collector.preemptionThresholdPercent": "has no effect with mode MultiAsync"},
        id="preemption with Barrier",
    ),
    pytest.param(
        {"spec.collector.totalFrames": 100, "spec.collector.initRandomFrames": 100},
        {"spec.collector.totalFrames": 100, "spec.collector.initRandomFrames": 101},
        {"spec.collector.initRandomFrames": "101 is more than totalFrames (100)"},
        id="random frames fit the total",
    ),
    pytest.param(
        {"spec.determinism": "Strict", "spec.collector.mode": "MultiSync"},
        {"spec.determinism": "Strict", "spec.collector.mode": "MultiAsync"},
        {"spec.determinism": "Strict is not possible with mode MultiAsync"},
        id="Strict with joint batches only",
    ),
    pytest.param(
        {"spec.collector.mode": "MultiSync", "spec.collector.preemptionThresholdPercent": 80},
        {
            "spec.determinism": "Strict",
            "spec.collector.mode": "MultiSync",
            "spec.collector.preemptionThresholdPercent": 80,
        },
        {"spec.collector.preemptionThresholdPercent": "is not possible with determinism Strict"},
        id="Strict without preemption",
    ),
    pytest.param(
        {"spec.determinism": "Strict", "spec.weights": {"startPolicy": "WaitForWeights", "maxStaleness": 1}},
        {"spec.determinism": "Strict", "spec.weights": {"startPolicy": "WaitForWeights"}},
        {"spec.weights.startPolicy": "would wait for ever"},
        id="Strict can start",
    ),
    pytest.param(
        {"spec.workerGroups": [{"name": "a"}, {"name": "b"}]},
        {"spec.workerGroups": [{"name": "a"}, {"name": "a"}]},
        {"spec.workerGroups": '"a" is there more than once'},
        id="group names are unique",
    ),
    pytest.param(
        {"spec.workerGroups": [{"name": "a", "elastic": True}, {"name": "b"}]},
        {"spec.workerGroups": [{"name": "a", "elastic": True}, {"name": "b", "elastic": True}]},
        {"spec.workerGroups": "2 groups are elastic (a, b)"},
        id="one elastic group",
    ),
    pytest.param(
        {"spec.workerGroups": group(elastic=True), "spec.replicas": 3},
        {"spec.workerGroups": group(replicas=3), "spec.replicas": 3},
        {"spec.replicas": "3 has no effect: no worker group is elastic"},
        id="replicas have an elastic group",
    ),
    pytest.param(
        {"spec.workerGroups": group(replicas=3)},
        {"spec.workerGroups": group(elastic=True, replicas=3)},
        {"spec.workerGroups[0].replicas": "3 has no effect: the group is elastic"},
        id="the elastic group has no replicas",
    ),
    pytest.param(
        {"spec.workerGroups": group(minReplicas=3, maxReplicas=3)},
        {"spec.workerGroups": group(minReplicas=4, maxReplicas=3)},
        {"spec.workerGroups[0].minReplicas": "4 is more than maxReplicas (3)"},
        id="minReplicas up to maxReplicas",
    ),
    pytest.param(
        {"spec.workerGroups": group(minAvailable=3, maxReplicas=3)},
        {"spec.workerGroups": group(minAvailable=4, maxReplicas=3)},
        {"spec.workerGroups[0].minAvailable": "4 is more than maxReplicas (3)"},
        id="minAvailable up to maxReplicas",
    ),
    pytest.param(
        {"spec.workerGroups": group(device="Cuda", template=GPU)},
        {"spec.workerGroups": group(device="Cuda")},
        {"spec.workerGroups[0].device": "Cuda needs a GPU limit"},
        id="Cuda has a GPU",
    ),
    pytest.param(
        {
            "spec.workerGroups": group(
                device="Cuda",
                template=containers({"name": "w", "resources": {"limits": {"nvidia.com/mig-1g.5gb": 1}}}),
            )
        },
        {
            "spec.workerGroups": group(
                device="Cuda",
                template=containers({"name": "w", "resources": {"limits": {"nvidia.com/gpu": 0}}}),
            )
        },
        {"spec.workerGroups[0].device": "Cuda needs a GPU limit"},
        id="a slice of a GPU is one, none is not",
    ),
    pytest.param(
        {
            "spec.workerGroups": group(
                device="Cuda",
                template=containers(
                    {"name": "side"}, {"name": "worker", "resources": {"limits": {"nvidia.com/gpu": 1}}}
                ),
            )
        },
        {
            "spec.workerGroups": group(
                device="Cuda",
                template=containers(
                    {"name": "worker"}, {"name": "side", "resources": {"limits": {"nvidia.com/gpu": 1}}}
                ),
            )
        },
        {"spec.workerGroups[0].device": "Cuda needs a GPU limit of the worker's container"},
        id="the GPU of another container is no use",
    ),
    pytest.param(
        {"spec.workerGroups": group(template={"spec": {"restartPolicy": "Never"}})},
        {"spec.workerGroups": group(template={"spec": {"restartPolicy": "OnFailure"}})},
        {"spec.workerGroups[0].template.spec.restartPolicy": '"OnFailure" is not possible'},
        id="restartPolicy Never",
    ),
    pytest.param(
        {"spec.workerGroups": group(template=containers({"name": "a"}, {"name": "b"}))},
        {"spec.workerGroups": group(template=containers({"name": "a"}, {"name": "a"}))},
        {"spec.workerGroups[0].template.spec.containers": '"a" is there more than once'},
        id="container names are unique",
    ),
    pytest.param(
        {
            "spec.workerGroups": group(
                template=containers({"name": "a", "env": [{"name": "MY_SEED", "value": "1"}]})
            )
        },
        {
            "spec.workerGroups": group(
                template=containers({"name": "a", "env": [{"name": "ROLLOUT_WORKER", "value": ""}]})
            )
        },
        {
            "spec.workerGroups[0].template.spec.containers[0].env[0].name": '"ROLLOUT_WORKER" is set by the platform'
        },
        id="the platform's variables are its own",
    ),
    pytest.param(
        {
            "spec.workerGroups": group(
                sharedMemory="1Gi",
                template=containers({"name": "a", "resources": {"limits": {"memory": "1024Mi"}}}),
            )
        },
        {
            "spec.workerGroups": group(
                sharedMemory="2Gi",
                template=containers({"name": "a", "resources": {"limits": {"memory": "1Gi"}}}),
            )
        },
        {"spec.workerGroups[0].sharedMemory": '"2Gi" is more than the worker\'s memory limit (1Gi)'},
        id="shared memory fits the memory limit",
    ),
    pytest.param(
        {"spec.redis": {"host": "r", "port": 6380}},
        {"spec.redis": {"port": 6380}},
        {"spec.redis.port": "has no effect without host"},
        id="a port has a host",
    ),
    pytest.param(
        {"spec.redis": {"host": "r", "authSecretRef": {"name": "a", "key": "b"}}},
        {"spec.redis": {"authSecretRef": {"name": "a", "key": "b"}}},
        {"spec.redis.authSecretRef": "has no effect without host"},
        id="a password has a host",
    ),
    pytest.param(
        {"spec.redis": {"host": "r", "tls": {"enabled": True}}},
        {"spec.redis": {"tls": {"enabled": True}}},
        {"spec.redis.tls": "has no effect without host"},
        id="TLS has a host",
    ),
    pytest.param(
        {"spec.stream.groups": ["a", "b"]},
        {"spec.stream.groups": ["a", "b", "a"]},
        {"spec.stream.groups": '"a" is there more than once'},
        id="consumer groups are unique",
    ),
    pytest.param(
        {"spec.stream.maxUnackedFrames": 40},
        {"spec.stream.maxUnackedFrames": 39},
        {"spec.stream.maxUnackedFrames": "39 is less than framesPerBatch (40)"},
        id="the watermark holds a batch",
    ),
    pytest.param(
        {"spec.stream.rateLimit": SPI},
        {"spec.stream.rateLimit": {"type": "SampleToInsert", "samplesPerInsert": 8}},
        {"spec.stream.rateLimit.errorBufferFrames": "type SampleToInsert needs it"},
        id="SampleToInsert is complete",
    ),
    pytest.param(
        {"spec.stream.rateLimit": {"type": "MinSize", "minFrames": 100}},
        {"spec.stream.rateLimit": {"type": "MinSize"}},
        {"spec.stream.rateLimit.minFrames": "type MinSize needs it"},
        id="MinSize is complete",
    ),
    pytest.param(
        {"spec.stream.rateLimit": {"type": "Queue"}},
        {"spec.stream.rateLimit": {"type": "Queue", "minFrames": 1}},
        {"spec.stream.rateLimit.minFrames": "has no effect with type Queue"},
        id="Queue takes nothing",
    ),
    pytest.param(
        {"spec.stream.rateLimit": SPI},
        {"spec.stream.rateLimit": {**SPI, "errorBufferFrames": 319}},
        {"spec.stream.rateLimit.errorBufferFrames": "319 blocks both sides"},
        id="the error buffer is wide enough",
    ),
    pytest.param(
        {"spec.stream.rateLimit": {**SPI, "samplesPerInsert": "500m", "errorBufferFrames": 40}},
        {"spec.stream.rateLimit": {**SPI, "samplesPerInsert": "500m", "errorBufferFrames": 39}},
        {"spec.stream.rateLimit.errorBufferFrames": "Use at least 40"},
        id="the error buffer holds a batch at least",
    ),
    pytest.param(
        {"spec.stream.rateLimit": {"type": "MinSize", "minFrames": 80}, "spec.stream.maxUnackedFrames": 80},
        {"spec.stream.rateLimit": {"type": "MinSize", "minFrames": 81}, "spec.stream.maxUnackedFrames": 80},
        {"spec.stream.rateLimit.minFrames": "81 is more than maxUnackedFrames (80)"},
        id="readers can get what they wait for",
    ),
    pytest.param(
        {"spec.weights.maxStaleness": 0, "spec.collector.mode": "Sync"},
        {"spec.weights.maxStaleness": 0, "spec.collector.mode": "Async"},
        {"spec.weights.maxStaleness": "0 is not possible with mode Async"},
        id="the newest weights only with joint batches",
    ),
    pytest.param(
        {"spec.weights": {"onStale": "Drop", "maxStaleness": 1}},
        {"spec.weights": {"onStale": "Drop"}},
        {"spec.weights.onStale": "Drop has no effect without maxStaleness"},
        id="Drop has a bound",
    ),
    pytest.param(
        {"spec.failurePolicy.rules": [failure_rule(), failure_rule(name="b")]},
        {"spec.failurePolicy.rules": [failure_rule(), failure_rule()]},
        {"spec.failurePolicy.rules": '"a" is there more than once'},
        id="rule names are unique",
    ),
    pytest.param(
        {"spec.failurePolicy.rules": [failure_rule(onExitCodes={"operator": "In", "values": [1, 2]})]},
        {"spec.failurePolicy.rules": [failure_rule(onExitCodes={"operator": "In", "values": [1, 1]})]},
        {"spec.failurePolicy.rules[0].onExitCodes.values": "1 is there more than once"},
        id="exit codes are unique",
    ),
    pytest.param(
        {"spec.failurePolicy.rules": [failure_rule(workerGroups=["default"])]},
        {"spec.failurePolicy.rules": [failure_rule(workerGroups=["defautl"])]},
        {"spec.failurePolicy.rules[0].workerGroups[0]": "Did you mean default?"},
        id="rules name groups that exist",
    ),
]


@pytest.mark.parametrize(("accepted", "refused", "faults"), ROWS)
def test_a_rule_has_two_sides(accepted, refused, faults, faults_of):
    assert faults_of(accepted) == {}

    found = faults_of(refused)
    assert found.keys() == faults.keys()
    for path, words in faults.items():
        assert words in found[path]


def test_every_rule_is_broken_by_some_row(job_with, manifest_with):
    """Each rule function yields a fault for at least one of the refused manifests above."""
    silent = {rule.__name__ for rule in (*spec_rules.RULES, *spec_rules.GROUP_RULES)}
    for row in ROWS:
        spec = build_what_is_valid(RolloutJobSpec, manifest_with(row.values[1])["spec"], frozenset())
        silent -= {rule.__name__ for rule in spec_rules.RULES if list(rule(spec))}
        silent -= {r.__name__ for r in spec_rules.GROUP_RULES for g in spec.worker_groups if list(r(g, ""))}
    assert silent == set()


@pytest.mark.probe("P-14")
def test_exactly_the_frames_asked_for(faults_of):
    """A batch that does not fit the environments is refused with both numbers; a total that is no multiple is met."""
    collector = {"mode": "Sync"}
    for batch, total, message in [
        (12, 60, None),
        (10, 60, "10 is not a multiple of envsPerWorker (4)"),
        (12, 64, None),
    ]:
        faults = faults_of(
            {
                "spec.env.envsPerWorker": 4,
                "spec.collector": {**collector, "framesPerBatch": batch, "totalFrames": total},
            }
        )
        assert [f.split(". ")[0] for f in faults.values()] == ([message] if message else [])


def test_several_rules_are_reported_at_once(faults_of):
    found = faults_of(
        {
            "spec.env.envsPerWorker": 4,
            "spec.env.processes": 9,
            "spec.collector.framesPerBatch": 10,
            "spec.weights.onStale": "Drop",
            "spec.workerGroups": group(
                minReplicas=2, maxReplicas=1, template={"spec": {"restartPolicy": "Always"}}
            ),
        }
    )

    assert sorted(found) == [
        "spec.collector.framesPerBatch",
        "spec.env.processes",
        "spec.weights.onStale",
        "spec.workerGroups[0].minReplicas",
        "spec.workerGroups[0].template.spec.restartPolicy",
    ]


@pytest.mark.parametrize(
    ("faulty", "still_judged"),
    [
        pytest.param({"spec.seed": "7"}, True, id="another field is faulty"),
        pytest.param({"spec.env.nonsense": 1}, True, id="an unknown field beside it"),
        pytest.param({"spec.env.entrypoint": "<remove>"}, True, id="a required field beside it is missing"),
        pytest.param({"spec.workerGroups": group(name="A")}, True, id="a group is faulty"),
        pytest.param({"spec.env.kwargs": {"a": float("inf")}}, True, id="kwargs are no JSON"),
        pytest.param({"spec.env.envsPerWorker": "4"}, False, id="a field that the rule needs is faulty"),
        pytest.param(
            {"spec.collector.mode": "Nonsense"}, False, id="another field that the rule needs is faulty"
        ),
        pytest.param({"spec.env": []}, False, id="the object that the rule needs is faulty"),
    ],
)
def test_rules_are_judged_beside_other_faults(faulty, still_judged, faults_of):
    faults = faults_of({"spec.env.envsPerWorker": 4, "spec.collector.framesPerBatch": 10, **faulty})

    assert len(faults) == (2 if still_judged else 1)
    assert ("spec.collector.framesPerBatch" in faults) == still_judged


def test_a_faulty_group_hides_no_rule_of_another(faults_of):
    groups = [{"name": "a", "replicas": "2"}, {"name": "b", "minReplicas": 2, "maxReplicas": 1}]

    assert faults_of({"spec.workerGroups": groups}).keys() == {
        "spec.workerGroups[0].replicas",
        "spec.workerGroups[1].minReplicas",
    }


def test_a_rule_that_reads_what_is_not_there_is_a_fault_of_ours(manifest_with):
    """Skipping is for specs with faulty fields; in a whole one, the same error must not hide a rule."""
    document = manifest_with()["spec"]
    spec = build_what_is_valid(RolloutJobSpec, document, frozenset({("collector", "framesPerBatch")}))

    assert list(spec_rules.faults_of_rules(spec, partial=True)) == []
    with pytest.raises(AttributeError, match="frames_per_batch"):
        list(spec_rules.faults_of_rules(spec, partial=False))
