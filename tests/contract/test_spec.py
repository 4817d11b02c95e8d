"""The spec's fields: defaults that can be seen, bounds, strict types, names, and what every program asks of a spec."""

from __future__ import annotations

import pytest

from rollout_contract import fields
from rollout_contract.names import JobRef
from rollout_contract.spec import (
    CollectorSpec,
    Device,
    RolloutJob,
    default_max_unacked_frames,
    desired_replicas,
    device_of,
    elastic_group,
    group_numbers,
    groups_of,
    is_clamped,
    max_unacked_frames,
    not_built,
    parse_manifest,
    worker_container,
)
from rollout_contract.unbuilt import TABLE

GPU_TEMPLATE = {"spec": {"containers": [{"name": "w", "resources": {"limits": {"amd.com/gpu": "1"}}}]}}
GPU_BESIDE = {"spec": {"containers": [{"name": "worker"}, *GPU_TEMPLATE["spec"]["containers"]]}}


def test_every_default_can_be_seen(job_with):
    assert job_with().to_document() == {
        "apiVersion": "rolloutjob.dev/v1alpha1",
        "kind": "RolloutJob",
        "metadata": {"name": "cartpole", "namespace": "default"},
        "spec": {
            "suspend": False,
            "env": {
                "entrypoint": "envs:make_env",
                "envsPerWorker": 1,
                "backend": "Process",
                "stepTimeoutSeconds": 60,
                "onError": "Fail",
            },
            "policy": {"entrypoint": "policy:make_policy", "exploration": "Random"},
            "collector": {
                "mode": "Sync",
                "collectorsPerWorker": 1,
                "coordination": "Independent",
                "framesPerBatch": 40,
                "initRandomFrames": 0,
                "resetAtEachBatch": False,
            },
            "determinism": "BestEffort",
            "replicas": 1,
            "workerGroups": [
                {"name": "default", "elastic": True, "minReplicas": 0, "minAvailable": 0, "device": "Auto"}
            ],
            "updateStrategy": {"type": "RollingReplace", "maxUnavailable": 1},
            "redis": {"port": 6379, "keyTTLSecondsAfterFinished": 86400, "cleanupPolicy": "Expire"},
            "stream": {
                "shards": 1,
                "maxBytes": "4Gi",
                "onFull": "Block",
                "compression": "None",
                "maxFrameBytes": "256Mi",
                "claimIdleSeconds": 30,
            },
            "weights": {
                "startPolicy": "Immediate",
                "onStale": "Pace",
                "applyAt": "Batch",
                "fetchTimeoutSeconds": 60,
                "keepVersions": 3,
                "maxBytes": "4Gi",
            },
            "failurePolicy": {"backoffLimit": 6, "backoffSeconds": 10},
            "startupDeadlineSeconds": 600,
            "stalledDeadlineSeconds": 900,
            "podRetention": {"failed": 1},
        },
    }


def test_a_fixed_group_has_one_worker_unless_written(job_with):
    groups = job_with(
        {"spec.workerGroups": [{"name": "a"}, {"name": "b", "elastic": False, "replicas": 0}]}
    ).spec.worker_groups

    assert [group.replicas for group in groups] == [1, 0]


@pytest.mark.parametrize(
    ("path", "low", "high"),
    [
        ("spec.env.envsPerWorker", 1, None),
        ("spec.env.processes", 1, None),
        ("spec.env.stepTimeoutSeconds", 1, fields.MAX_WAIT_SECONDS),
        ("spec.collector.collectorsPerWorker", 1, None),
        ("spec.collector.framesPerBatch", 1, fields.MAX_FRAMES_PER_BATCH),
        ("spec.collector.totalFrames", 1, 2**53 - 1),
        ("spec.collector.maxFramesPerTraj", 1, 2**53 - 1),
        ("spec.collector.initRandomFrames", 0, 2**53 - 1),
        ("spec.seed", 0, None),
        ("spec.replicas", 0, 9999),
        ("spec.updateStrategy.maxUnavailable", 1, 9999),
        ("spec.redis.keyTTLSecondsAfterFinished", 1, fields.MAX_SECONDS),
        ("spec.stream.shards", 1, fields.MAX_SHARDS),
        ("spec.stream.claimIdleSeconds", 1, fields.MAX_WAIT_SECONDS),
        ("spec.weights.maxStaleness", 0, fields.MAX_VERSIONS),
        ("spec.weights.fetchTimeoutSeconds", 1, fields.MAX_WAIT_SECONDS),
        ("spec.weights.keepVersions", 2, fields.MAX_KEPT_VERSIONS),
        ("spec.failurePolicy.backoffLimit", 0, fields.MAX_FAILURES),
        ("spec.failurePolicy.backoffLimitPerWorker", 0, 9999),
        ("spec.failurePolicy.backoffSeconds", 0, 300),
        ("spec.startupDeadlineSeconds", 1, fields.MAX_SECONDS),
        ("spec.stalledDeadlineSeconds", 1, fields.MAX_SECONDS),
        ("spec.activeDeadlineSeconds", 1, fields.MAX_SECONDS),
        ("spec.ttlSecondsAfterFinished", 0, fields.MAX_SECONDS),
        ("spec.podRetention.failed", 0, 100),
    ],
)
def test_numbers_have_bounds(path, low, high, faults_of):
    """At a bound accepted, beyond it refused; where the upper one is None, another rule is tighter."""
    assert faults_of({path: low}) == {}
    assert faults_of({path: low - 1})[path] == f"{low - 1} should be greater than or equal to {low}"
    if high is not None:
        assert faults_of({path: high}) == {}
        assert faults_of({path: high + 1})[path] == f"{high + 1} should be less than or equal to {high}"


@pytest.mark.parametrize(
    ("path", "limit"),
    [
        ("spec.env.envsPerWorker", fields.MAX_ENVS_PER_WORKER),
        ("spec.env.processes", fields.MAX_PROCESSES),
        ("spec.collector.collectorsPerWorker", fields.MAX_COLLECTORS),
        ("spec.collector.initRandomFrames", fields.MAX_FRAMES),
        ("spec.stream.maxUnackedFrames", fields.MAX_FRAMES),
        ("spec.collector.preemptionThresholdPercent", 100),
    ],
)
def test_absurd_numbers_are_refused(path, limit, faults_of):
    assert faults_of({path: limit + 1})[path] == f"{limit + 1} should be less than or equal to {limit}"


def test_seeds_have_63_bits(faults_of):
    assert faults_of({"spec.seed": 2**63 - 1}) == {}
    assert "does not fit into 64 bits" in faults_of({"spec.seed": 2**63})["spec.seed"]


@pytest.mark.parametrize(
    ("path", "good", "bad"),
    [
        pytest.param(
            "spec.stream.maxBytes",
            ["4Ki", 4096, "1Pi", "1.5Gi"],
            ["4095", "2Pi", 0, "x", "-1Gi"],
            id="maxBytes",
        ),
        pytest.param(
            "spec.stream.maxFrameBytes", ["512Mi", "4Ki"], ["513Mi", "1Gi", "1"], id="maxFrameBytes"
        ),
        pytest.param("spec.weights.maxBytes", ["1Pi"], ["1Ei", 1.5, True, [], "4 Gi"], id="weights"),
    ],
)
def test_sizes_have_bounds(path, good, bad, faults_of):
    for value in good:
        assert faults_of({path: value}) == {}, value
    for value in bad:
        assert list(faults_of({path: value})) == [path], value


@pytest.mark.parametrize(("amount", "is_good"), [(0, True), ("500m", True), (-1, False), ("-1Gi", False)])
def test_resources_are_not_negative(amount, is_good, faults_of):
    containers = [{"name": "worker", "resources": {"requests": {"cpu": amount}}}]
    faults = faults_of(
        {"spec.workerGroups": [{"name": "a", "template": {"spec": {"containers": containers}}}]}
    )

    assert faults.keys() == (
        set() if is_good else {"spec.workerGroups[0].template.spec.containers[0].resources.requests.cpu"}
    )


@pytest.mark.parametrize(
    ("ratio", "is_good"), [("8", True), (1, True), ("500m", True), (0, False), ("-1", False), ("1G", False)]
)
def test_ratios_are_over_zero(ratio, is_good, faults_of):
    limit = {"type": "SampleToInsert", "samplesPerInsert": ratio, "errorBufferFrames": 4000}

    assert faults_of({"spec.stream.rateLimit": limit}).keys() == (
        set() if is_good else {"spec.stream.rateLimit.samplesPerInsert"}
    )


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        pytest.param("spec.replicas", True, "must be a whole number, not true", id="bool as int"),
        pytest.param(
            "spec.replicas", "4", 'must be a whole number, not "4": write 4 without quotes', id="text as int"
        ),
        pytest.param("spec.replicas", 4.0, "must be a whole number, not 4.0: write 4", id="float as int"),
        pytest.param("spec.replicas", 4.5, "must be a whole number, not 4.5", id="broken number"),
        pytest.param("spec.replicas", 10**30, "does not fit into 64 bits", id="absurd"),
        pytest.param(
            "spec.replicas", 10**6000, "a number of 19932 bits does not fit", id="too long to print"
        ),
        pytest.param("spec.suspend", "true", 'must be true or false, not "true"', id="text as bool"),
        pytest.param("spec.suspend", 1, "must be true or false, not 1", id="int as bool"),
        pytest.param("spec.env.entrypoint", 5, "must be text, not 5: put it in quotes", id="int as text"),
        pytest.param("spec.env", "x", 'must be a mapping, not "x"', id="text as mapping"),
        pytest.param(
            "spec.workerGroups", {"name": "a"}, "must be a list, not a mapping", id="mapping as list"
        ),
        pytest.param("spec.workerGroups", [], "has 0 items, should have at least 1", id="no group"),
        pytest.param(
            "spec.workerGroups", [{"name": f"g{i}"} for i in range(9)], "at most 8", id="nine groups"
        ),
        pytest.param("spec.collector.mode", "MultiSink", "Did you mean MultiSync?", id="near a mode"),
        pytest.param(
            "spec.collector.mode", "x", "Supported values: Sync, MultiSync, MultiAsync, Async.", id="no mode"
        ),
        pytest.param("spec.stream.compression", 0, "0 is not supported", id="int as choice"),
        pytest.param("spec.env.kwargs", [1], "must be a mapping, not a list", id="kwargs are a mapping"),
        pytest.param("spec.env.kwargs", {str(i): i for i in range(257)}, "at most 256", id="kwargs count"),
        pytest.param(
            "spec.redis.host", "redis://user:pw@r:1", "without scheme, user and port", id="host is no URL"
        ),
        pytest.param("spec.stream.groups", ["a b"], None, id="blank in a consumer group"),
        pytest.param("spec.managedBy", "somebody", "a domain and a name", id="managedBy"),
        pytest.param("spec.code", {"configMapRef": {}}, None, id="a reference has a name"),
    ],
)
def test_types_are_strict(path, value, words, faults_of):
    faults = faults_of({path: value})

    assert len(faults) == 1
    (place, message), *_ = faults.items()
    assert place.startswith(path)
    assert words is None or words in message


@pytest.mark.parametrize(
    ("entrypoint", "is_good"),
    [
        ("a:b", True),
        ("my_envs.cheetah:make_env", True),
        ("rollout_worker.envs:Gym.make", True),
        ("a" * 254 + ":b", True),
        ("a" * 255 + ":b", False),
        ("a.b", False),
        ("a:b()", False),
        (":b", False),
        ("../a:b", False),
        ("a b:c", False),
        ("ä:b", False),
        ("a:b\n", False),
        ("", False),
    ],
)
def test_entrypoints(entrypoint, is_good, faults_of):
    assert (faults_of({"spec.env.entrypoint": entrypoint}) == {}) == is_good
    assert (faults_of({"spec.policy.entrypoint": entrypoint}) == {}) == is_good


@pytest.mark.probe("P-40")
@pytest.mark.parametrize(
    ("name", "words"),
    [
        pytest.param("a" * 40, None, id="40"),
        pytest.param("a" * 41, "has 41 characters, should be at most 40", id="41"),
        pytest.param("a" * 300, "has 300 characters, should be at most 40", id="300"),
        pytest.param("a.b", "at most 40 lower-case letters, digits and -", id="dot"),
        pytest.param("a_b", "RFC 1035", id="underscore"),
        pytest.param("A-b", "RFC 1035", id="capital"),
        pytest.param("-a", "RFC 1035", id="leading dash"),
        pytest.param("a-", "RFC 1035", id="trailing dash"),
        pytest.param("1a", "starts with a letter", id="leading digit"),
        pytest.param("../etc", "RFC 1035", id="path"),
        pytest.param("", "RFC 1035", id="empty"),
        pytest.param("a\n", "RFC 1035", id="line feed"),
        pytest.param(7, "must be text", id="number"),
    ],
)
def test_job_names(name, words, faults_of):
    faults = faults_of({"metadata.name": name})

    assert faults.keys() == (set() if words is None else {"metadata.name"})
    assert words is None or words in faults["metadata.name"]


@pytest.mark.probe("P-40")
@pytest.mark.parametrize(
    ("name", "is_good"),
    [("a" * 12, True), ("a" * 13, False), ("a-b", False), ("gpu0", True), ("0gpu", False), ("A", False)],
)
def test_group_names(name, is_good, faults_of):
    faults = faults_of({"spec.workerGroups": [{"name": name}]})

    assert faults.keys() == (set() if is_good else {"spec.workerGroups[0].name"})


def test_unknown_pod_fields_labels_and_metadata_are_kept(manifest_with):
    template = {
        "metadata": {"labels": {"team": "rl"}, "annotations": {"a/b": "c"}, "finalizers": ["x"]},
        "spec": {
            "containers": [
                {
                    "name": "worker",
                    "volumeMounts": [{"name": "v", "mountPath": "/v"}],
                    "env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
                    "resources": {"limits": {"cpu": 2}, "claims": [{"name": "x"}]},
                }
            ],
            "tolerations": [{"key": "spot", "operator": "Exists"}],
            "volumes": [{"name": "v", "emptyDir": {}}],
            "runtimeClassName": "gvisor",
        },
    }
    metadata = {
        "managedFields": [{"manager": "kubectl"}],
        "generation": 3,
        "uid": "u",
        "resourceVersion": "17",
    }
    document = manifest_with({"spec.workerGroups": [{"name": "a", "template": template}]})
    document["metadata"] |= metadata

    kept = parse_manifest(document).to_document()

    assert kept["spec"]["workerGroups"][0]["template"] == template
    assert metadata.items() <= kept["metadata"].items()


def test_null_counts_as_not_written(job_with):
    assert job_with({"spec.seed": None, "spec.stream": None, "spec.env.backend": None}) == job_with()


def test_null_inside_kwargs_is_a_value(job_with):
    assert job_with({"spec.env.kwargs": {"a": None, "b": [None]}}).to_document()["spec"]["env"]["kwargs"] == {
        "a": None,
        "b": [None],
    }


def test_models_can_be_made_in_python_by_their_own_names():
    assert CollectorSpec(frames_per_batch=8, total_frames=80).to_document()["totalFrames"] == 80


def test_python_names_are_unknown_in_a_manifest(faults_of):
    assert faults_of({"spec.env.envs_per_worker": 3}) == {
        "spec.env.envs_per_worker": "unknown field. Did you mean envsPerWorker?"
    }


def test_the_ref_of_a_stored_job(job_with):
    assert job_with({"metadata.uid": "3f2a9c1d-aa"}).ref == JobRef("default", "cartpole", "3f2a9c1d-aa")


def test_a_job_that_is_not_stored_has_no_ref(job_with):
    with pytest.raises(ValueError, match=r"default/cartpole has no metadata\.uid"):
        _ = job_with().ref


@pytest.mark.parametrize(
    ("changes", "workers", "clamped"),
    [
        pytest.param({}, {"default": 1}, [], id="default"),
        pytest.param({"spec.replicas": 5}, {"default": 5}, [], id="the implicit group is elastic"),
        pytest.param(
            {
                "spec.replicas": 9,
                "spec.workerGroups": [{"name": "a", "elastic": True, "maxReplicas": 4}, {"name": "b"}],
            },
            {"a": 4, "b": 1},
            ["a"],
            id="above the bounds",
        ),
        pytest.param(
            {
                "spec.workerGroups": [
                    {"name": "a", "elastic": True, "minReplicas": 2},
                    {"name": "b", "replicas": 7},
                ]
            },
            {"a": 2, "b": 7},
            ["a"],
            id="below the bounds",
        ),
        pytest.param(
            {"spec.workerGroups": [{"name": "a", "replicas": 7, "maxReplicas": 0}]},
            {"a": 0},
            ["a"],
            id="a fixed group",
        ),
        pytest.param({"spec.replicas": 0}, {"default": 0}, [], id="none wanted"),
        pytest.param(
            {"spec.replicas": 3, "spec.suspend": True},
            {"default": 3},
            [],
            id="suspended: what is wanted later",
        ),
    ],
)
def test_wanted_workers(changes, workers, clamped, job_with):
    spec = job_with(changes).spec

    assert {group.name: desired_replicas(spec, group) for group in groups_of(spec)} == workers
    assert [group.name for group in groups_of(spec) if is_clamped(spec, group)] == clamped


@pytest.mark.parametrize(
    ("changes", "frames"),
    [
        pytest.param({}, 8 * 40, id="one worker"),
        pytest.param({"spec.replicas": 3}, 8 * 40 * 3, id="three"),
        pytest.param(
            {"spec.workerGroups": [{"name": "a"}, {"name": "b", "replicas": 2}]}, 8 * 40 * 3, id="two groups"
        ),
        pytest.param({"spec.replicas": 0}, 8 * 40, id="no worker"),
        pytest.param({"spec.stream.maxUnackedFrames": 1000}, 1000, id="written"),
    ],
)
def test_high_watermark(changes, frames, job_with):
    spec = job_with(changes).spec

    assert max_unacked_frames(spec) == frames
    if spec.stream.max_unacked_frames is None:
        assert default_max_unacked_frames(spec) == frames


@pytest.mark.parametrize(
    ("group", "device"),
    [
        pytest.param({}, Device.CPU, id="no template"),
        pytest.param({"template": GPU_TEMPLATE}, Device.CUDA, id="a GPU limit"),
        pytest.param({"template": GPU_BESIDE}, Device.CPU, id="a GPU of another container"),
        pytest.param({"template": GPU_TEMPLATE, "device": "Cpu"}, Device.CPU, id="a GPU that is not wanted"),
        pytest.param({"template": GPU_TEMPLATE, "device": "Cuda"}, Device.CUDA, id="stated twice"),
    ],
)
def test_device_follows_the_template(group, device, job_with):
    assert (
        device_of(job_with({"spec.workerGroups": [{"name": "a", **group}]}).spec.worker_groups[0]) is device
    )


def test_group_numbers_follow_the_sorted_names(job_with):
    spec = job_with(
        {"spec.workerGroups": [{"name": "gpu"}, {"name": "cpu"}, {"name": "a", "elastic": True}]}
    ).spec

    assert group_numbers(spec) == {"a": 0, "cpu": 1, "gpu": 2}
    assert elastic_group(spec) == spec.worker_groups[2]


@pytest.mark.parametrize(
    ("containers", "name"),
    [
        pytest.param([], None, id="none"),
        pytest.param([{"name": "main"}, {"name": "side"}], "main", id="the first"),
        pytest.param([{"name": "side"}, {"name": "worker"}], "worker", id="by name"),
    ],
)
def test_the_worker_container(containers, name, job_with):
    job = job_with({"spec.workerGroups": [{"name": "a", "template": {"spec": {"containers": containers}}}]})

    found = worker_container(job.spec.worker_groups[0].template)
    assert (found.name if found else None) == name


UNBUILT = {
    "spec.collector.mode": {"spec.collector.mode": "MultiSync"},
    "spec.collector.coordination": {"spec.collector.coordination": "Barrier"},
    "spec.collector.preemptionThresholdPercent": {
        "spec.collector.mode": "MultiSync",
        "spec.collector.preemptionThresholdPercent": 50,
    },
    "spec.env.tasks": {"spec.env.tasks": [{"name": "a", "count": 1}]},
    "spec.env.onError": {"spec.env.onError": "Restart"},
    "spec.stream.shards": {"spec.stream.shards": 2},
    "spec.stream.rateLimit": {"spec.stream.rateLimit": {"type": "Queue"}},
    "spec.weights.onStale": {"spec.weights.onStale": "Drop", "spec.weights.maxStaleness": 1},
    "spec.weights.applyAt": {"spec.weights.applyAt": "Step"},
}


@pytest.mark.parametrize("row", TABLE, ids=[row.path for row in TABLE])
def test_what_is_not_built_is_said(row, job_with):
    faults = {fault.path: fault for fault in not_built(job_with(UNBUILT[row.path]).spec)}

    assert "is not built yet. " + row.instead in faults[row.path].message


def test_the_defaults_are_built(job_with):
    assert not_built(job_with().spec) == []


def test_jobs_are_immutable(job_with):
    job: RolloutJob = job_with()

    with pytest.raises(ValueError, match="frozen"):
        job.spec.replicas = 3
