"""`parse_manifest` against everything that is no manifest: SpecError with paths and advice, and never another exception."""

from __future__ import annotations

import copy
import datetime

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from rollout_contract.errors import SpecError
from rollout_contract.faults import path_of
from rollout_contract.json_check import MAX_DEPTH, MAX_VALUES
from rollout_contract.model_walk import all_fields, field_at, fields_at
from rollout_contract.mutability import faults_of_update
from rollout_contract.spec import RolloutJob, parse_manifest

EVERYTHING = """
apiVersion: rolloutjob.dev/v1alpha1
kind: RolloutJob
metadata:
  name: halfcheetah-a
spec:
  suspend: false
  managedBy: rolloutjob.dev/rollout-operator
  env:
    entrypoint: my_envs.cheetah:make_env
    kwargs: {task: run}
    tasks:
      - {name: run, count: 16, kwargs: {task: run}}
      - {name: walk, count: 16}
    envsPerWorker: 32
    backend: Process
    processes: 4
    stepTimeoutSeconds: 60
    onError: Fail
  policy:
    entrypoint: my_agents.sac:make_policy
    kwargs: {hidden: 256}
    exploration: Random
  code: {configMapRef: {name: cheetah-code}}
  collector:
    mode: MultiAsync
    collectorsPerWorker: 2
    coordination: Independent
    framesPerBatch: 4096
    totalFrames: 10000000
    maxFramesPerTraj: 1000
    initRandomFrames: 20000
    resetAtEachBatch: false
  seed: 7
  determinism: BestEffort
  replicas: 8
  workerGroups:
    - name: cpu
      elastic: true
      minReplicas: 0
      maxReplicas: 64
      minAvailable: 1
      device: Auto
      sharedMemory: 2Gi
      template:
        metadata: {labels: {}, annotations: {}}
        spec:
          containers:
            - name: worker
              image: example.registry/rollout-worker@sha256:00
              resources: {requests: {cpu: "4", memory: 8Gi}, limits: {memory: 8Gi}}
              command: [python]
              args: ["-m", "rollout_worker"]
          restartPolicy: Never
          serviceAccountName: worker
          nodeSelector: {disk: ssd}
          tolerations: [{key: spot, operator: Exists}]
          schedulingGates: [{name: example.com/gang}]
          priorityClassName: low
    - name: gpu
      replicas: 2
      minReplicas: 0
      minAvailable: 0
      elastic: false
      device: Cuda
      template:
        spec:
          containers:
            - name: worker
              image: example.registry/rollout-worker-gpu@sha256:00
              resources: {limits: {nvidia.com/gpu: 1, memory: 32Gi}}
  updateStrategy: {type: RollingReplace, maxUnavailable: 1}
  redis:
    host: redis.rl.svc
    port: 6379
    tls: {enabled: true, caSecretRef: {name: redis-ca, key: ca.crt}}
    authSecretRef: {name: redis-auth, key: password}
    keyTTLSecondsAfterFinished: 86400
    cleanupPolicy: Expire
  stream:
    shards: 1
    maxUnackedFrames: 200000
    maxBytes: 4Gi
    onFull: Block
    compression: None
    maxFrameBytes: 256Mi
    groups: [learner]
    claimIdleSeconds: 30
    rateLimit:
      type: SampleToInsert
      samplesPerInsert: "8"
      minFrames: 10000
      errorBufferFrames: 40000
  weights:
    startPolicy: Immediate
    maxStaleness: 2
    onStale: Pace
    applyAt: Batch
    fetchTimeoutSeconds: 60
    keepVersions: 3
    maxBytes: 4Gi
  failurePolicy:
    backoffLimit: 20
    backoffLimitPerWorker: 5
    backoffSeconds: 10
    rules:
      - name: bad-config
        action: FailJob
        onExitCodes: {operator: In, values: [64]}
      - name: spot
        action: Ignore
        onPodConditions: [{type: DisruptionTarget, status: "True"}]
        workerGroups: [cpu]
      - name: memory
        action: ReplaceWorker
        onReasons: [OOMKilled]
  startupDeadlineSeconds: 600
  stalledDeadlineSeconds: 900
  activeDeadlineSeconds: 86400
  ttlSecondsAfterFinished: 3600
  podRetention: {failed: 1}
"""


def everything():
    return yaml.safe_load(EVERYTHING)


def faults(document):
    with pytest.raises(SpecError) as error:
        parse_manifest(document)
    return {fault.path: fault for fault in error.value.faults}


def messages(document):
    return {path: fault.message for path, fault in faults(document).items()}


def test_the_whole_manifest_comes_back_as_it_was():
    document = everything()

    job = parse_manifest(document)

    document["metadata"]["namespace"] = "default"
    assert job.to_document() == document
    assert parse_manifest(job.to_document()) == job


def test_the_whole_manifest_has_every_field():
    """So that the tests that walk over it miss none."""
    seen = set()

    def walk(value, location):
        field = field_at(RolloutJob, location)
        if field is not None:
            seen.add((str(field.alias), path_of(tuple(p for p in location[:-1] if isinstance(p, str)))))
        items = (
            value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        )
        for key, item in items:
            walk(item, (*location, key))

    walk(everything(), ())
    spec_fields = {(name, home) for name, home in all_fields(RolloutJob) if home.startswith("spec")}
    not_together = {("preemptionThresholdPercent", "spec.collector"), ("kwargsFrom", "spec.env")}
    free = {f for f in spec_fields if f[1].startswith("spec.env.kwargsFrom")}
    containers = "spec.workerGroups.template.spec.containers"
    plain = {("env", containers), ("name", f"{containers}.env"), ("value", f"{containers}.env")}
    assert spec_fields - seen == not_together | free | plain


@pytest.mark.parametrize(
    "document",
    [None, 3, "x", "", [], [{}], True, 1.5, float("nan"), b"x", {1, 2}, datetime.date(2026, 1, 1)],
    ids=repr,
)
def test_what_is_no_mapping_is_refused_in_words(document):
    assert "a manifest is a mapping with apiVersion: rolloutjob.dev/v1alpha1" in messages(document)[""]


def test_an_empty_mapping_lacks_four_things():
    assert messages({}) == {
        "apiVersion": "required value: write rolloutjob.dev/v1alpha1",
        "kind": "required value: write RolloutJob",
        "metadata": "required value is missing",
        "spec": "required value is missing",
    }


def test_another_kind_is_refused(manifest_with):
    assert messages(manifest_with({"apiVersion": "batch/v1", "kind": "Job"})) == {
        "apiVersion": '"batch/v1" is not supported: write rolloutjob.dev/v1alpha1',
        "kind": '"Job" is not supported: write RolloutJob',
    }


def test_a_missing_name_is_one_fault(manifest_with):
    fault = faults(manifest_with({"metadata.name": "<remove>"}))["metadata.name"]

    assert (fault.value, fault.message.split(":")[0]) == (None, "required value is missing")


@pytest.mark.parametrize(
    "path", ["spec.env.entrypoint", "spec.policy.entrypoint", "spec.collector.framesPerBatch"]
)
def test_a_required_value_says_what_it_is(path, manifest_with):
    found = messages(manifest_with({path: "<remove>"}))

    assert list(found) == [path]
    assert found[path] != "required value is missing"


@pytest.mark.parametrize(
    ("path", "advice"),
    [
        ("spec.colector", "Did you mean collector?"),
        ("spec.env.onErorr", "Did you mean onError?"),
        ("spec.env.envs_per_worker", "Did you mean envsPerWorker?"),
        ("spec.workergroups", "Did you mean workerGroups?"),
        ("spec.stream.maxunackedframe", "Did you mean maxUnackedFrames?"),
        ("specs", "Did you mean spec?"),
        ("spec.framesPerBatch", "It belongs under spec.collector."),
        ("spec.nonsense", "Allowed here: suspend, managedBy, env"),
        ("spec.code.git", "Allowed here: configMapRef"),
    ],
)
def test_a_misspelt_field_is_corrected(path, advice, manifest_with):
    changes = {"spec.code": {"configMapRef": {"name": "a"}}, path: 1}

    assert advice in messages(manifest_with(changes))[path]


def test_a_misspelt_field_in_a_list_is_corrected(manifest_with):
    groups = [{"name": "a"}, {"name": "b", "replica": 3}]

    assert messages(manifest_with({"spec.workerGroups": groups})) == {
        "spec.workerGroups[1].replica": "unknown field. Did you mean replicas?"
    }


def test_everything_is_reported_at_once(manifest_with):
    found = messages(
        manifest_with(
            {
                "apiVersion": "v1",
                "metadata.name": "A",
                "spec.seed": -1,
                "spec.replicas": "two",
                "spec.colector": {},
                "spec.env.envsPerWorker": 3,
                "spec.env.kwargs": {"a": float("nan")},
                "spec.workerGroups": [
                    {"name": "a", "device": "Gpu"},
                    {"name": "b", "template": {"spec": {"restartPolicy": "Always"}}},
                ],
            }
        )
    )

    assert sorted(found) == [
        "apiVersion",
        "metadata.name",
        "spec.colector",
        "spec.collector.framesPerBatch",
        "spec.env.kwargs.a",
        "spec.replicas",
        "spec.seed",
        "spec.workerGroups[0].device",
        "spec.workerGroups[1].template.spec.restartPolicy",
    ]


def test_the_error_has_one_line_per_fault(manifest_with):
    with pytest.raises(ValueError, match="spec") as error:
        parse_manifest(manifest_with({"spec.seed": -1, "spec.replicas": "two"}))

    assert str(error.value).splitlines() == [
        "spec.seed: -1 should be greater than or equal to 0",
        'spec.replicas: must be a whole number, not "two"',
    ]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        pytest.param(float("nan"), "NaN cannot be said in JSON", id="NaN"),
        pytest.param(float("-inf"), "-Infinity cannot be said in JSON", id="infinity"),
        pytest.param(datetime.date(2026, 1, 1), "put it in quotes", id="date"),
        pytest.param(datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC), "put it in quotes", id="time"),
        pytest.param(b"x", "type bytes", id="bytes"),
        pytest.param({1, 2}, "type set", id="set"),
        pytest.param(2**63, "does not fit into 64 bits", id="64 bits"),
        pytest.param("\ud800", "not valid Unicode", id="half a character"),
    ],
)
@pytest.mark.parametrize("place", ["spec.env.kwargs", "spec.policy.kwargs", "metadata.annotations"])
def test_what_json_cannot_say_is_refused(value, words, place, manifest_with):
    found = messages(manifest_with({place: {"a": {"b": [1, value]}} if "kwargs" in place else {"a": value}}))

    assert [words in message for message in found.values()] == [True]


def test_what_json_can_say_is_kept(manifest_with):
    kwargs = {"f": 1.0, "i": 2**63 - 1, "n": None, "b": True, "t": "é\n", "deep": [[{"x": []}]], "": 0}

    kept = parse_manifest(manifest_with({"spec.env.kwargs": kwargs})).spec.env.kwargs

    assert kept == kwargs
    assert isinstance(kept["f"], float)


@pytest.mark.parametrize("key", [1, None, True, 1.5, ("a",), "\ud800"])
def test_keys_are_text(key, manifest_with):
    for place in ("spec.env.kwargs", "spec.stream"):
        (message,) = messages(manifest_with({place: {key: 1}})).values()
        assert "must be text: put it in quotes" in message


def test_a_document_that_contains_itself_is_refused(manifest_with):
    circle: list[object] = []
    circle.append(circle)

    (message,) = messages(manifest_with({"spec.env.kwargs": {"a": circle}})).values()
    assert f"more than {MAX_DEPTH} levels deep" in message


def test_a_document_that_unfolds_to_gigabytes_is_refused(manifest_with):
    bomb: list[object] = ["x"]
    for _ in range(30):
        bomb = [bomb, bomb]

    (message,) = messages(manifest_with({"spec.env.kwargs": {"a": bomb}})).values()
    assert f"more than {MAX_VALUES} values" in message


@pytest.mark.parametrize(
    ("changes", "secret"),
    [
        pytest.param({"spec.redis.host": "redis://user:s3cr3t@r"}, "s3cr3t", id="in a URL"),
        pytest.param({"spec.redis.password": "s3cr3t"}, "s3cr3t", id="in a field that does not exist"),
        pytest.param({"spec.redis.authSecretRef": "s3cr3t"}, None, id="instead of a reference"),
    ],
)
def test_secrets_are_not_repeated(changes, secret, manifest_with):
    with pytest.raises(SpecError) as error:
        parse_manifest(manifest_with(changes))

    assert secret is None or secret not in str(error.value)
    assert all("s3cr3t" not in str(fault.value) for fault in error.value.faults)


def test_a_status_that_a_newer_version_wrote_can_be_read(manifest_with):
    document = manifest_with({"status": {"observedGeneration": 3, "somethingNew": {"a": 1}}})

    assert parse_manifest(document).status.observed_generation == 3


@pytest.mark.probe("P-60")
def test_faulty_manifests_of_the_laptop(manifest_with):
    assert messages(manifest_with({"spec.collector.framesPerBatch": 0})) == {
        "spec.collector.framesPerBatch": "0 should be greater than or equal to 1"
    }
    assert list(messages(manifest_with({"metadata.name": "a" * 41}))) == ["metadata.name"]


# Properties

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["4Gi", "Sync", "a:b", "2026-01-01T00:00:00Z"])
)
json_like = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=12,
)


def judged(document):
    """The job, or the faults."""
    try:
        return parse_manifest(document), ()
    except SpecError as error:
        return None, error.faults


def places(value, location=()):
    yield location
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from places(item, (*location, key))


ALL_PLACES = [place for place in places(yaml.safe_load(EVERYTHING)) if place]


def put(document, place, value):
    *parents, last = place
    for key in parents:
        document = document[key]
    document[last] = value


def sayable(document):
    """Every path at which a fault can be: what is there, and what is missing in something that is there."""
    found = set()
    for place in places(document):
        found.add(path_of(place))
        found |= {path_of((*place, name)) for name in fields_at(RolloutJob, place)}
    return found


@given(json_like)
def test_any_document_is_a_job_or_has_faults(document):
    with pytest.raises(SpecError) as error:
        parse_manifest(document)

    assert error.value.faults
    assert all(fault.message for fault in error.value.faults)


@given(st.lists(st.tuples(st.sampled_from(ALL_PLACES), json_like), min_size=1, max_size=4))
def test_a_damaged_manifest_is_a_job_or_has_faults_where_they_are(changes):
    document = everything()
    for place, value in changes:
        try:
            put(document, place, copy.deepcopy(value))
        except (KeyError, TypeError, IndexError):  # an earlier change took the place away
            continue
    job, found = judged(document)
    if job is None:
        assert found
        assert len({(fault.path, fault.message) for fault in found}) == len(found)
        assert all(fault.message for fault in found)
        assert {fault.path for fault in found} <= sayable(document)
    else:
        assert parse_manifest(job.to_document()) == job
        assert parse_manifest(job.to_document()).to_document() == job.to_document()
        assert faults_of_update(job, job) == []


@given(st.sampled_from(ALL_PLACES))
def test_a_manifest_without_one_of_its_values(place):
    document = everything()
    *parents, last = place
    parent = document
    for key in parents:
        parent = parent[key]
    del parent[last]

    job, found = judged(document)
    assert {fault.path for fault in found} <= sayable(document)
    assert bool(found) != (job is not None and parse_manifest(job.to_document()) == job)
