"""The pod of a worker: what it is told, what protects it, what stays the user's."""

from __future__ import annotations

from dataclasses import replace

import pytest
from operator_builders import SETTINGS, UID, elastic, fixed, make_job

from rollout_contract import podenv
from rollout_contract.errors import SpecError
from rollout_contract.names import WorkerId
from rollout_contract.podenv import HealthAddress, StreamAddress
from rollout_contract.spec import KeyRef
from rollout_operator import shares
from rollout_operator.decisions import Create
from rollout_operator.look import template_hash_of
from rollout_operator.manifests import worker_pod
from rollout_operator.pods import PodView


def pod_of(job, worker=None, *, settings=SETTINGS, **create):
    worker = worker or WorkerId("default", 0, 0)
    return worker_pod(job, Create(worker, **create), settings, template_hash="h")


def container_of(pod):
    return next(c for c in pod["spec"]["containers"] if c["name"] != "sidecar")


def variables_of(pod):
    return {v["name"]: v.get("value", v.get("valueFrom")) for v in container_of(pod)["env"]}


def document_of(pod):
    return podenv.from_env({podenv.WORKER: variables_of(pod)[podenv.WORKER]})


def with_template(template, **spec):
    return make_job(workerGroups=[elastic("default", template=template, **spec)])


def test_names_labels_and_owner():
    pod = pod_of(make_job(), WorkerId("default", 3, 2), streak=2, slot_failures=5)
    metadata = pod["metadata"]
    assert (metadata["name"], metadata["namespace"]) == ("a-default-3-2", "rl")
    owner = metadata["ownerReferences"][0]
    assert (owner["uid"], owner["kind"], owner["controller"]) == (UID, "RolloutJob", True)
    assert metadata["labels"]["rolloutjob.dev/job-uid"] == UID
    assert metadata["annotations"]["rolloutjob.dev/streak"] == "2"
    assert metadata["annotations"]["rolloutjob.dev/slot-failures"] == "5"
    pod["metadata"]["uid"] = "u"
    view = PodView.of(pod)
    assert (view.worker, view.template_hash) == (WorkerId("default", 3, 2), "h")


def test_the_longest_names_fit():
    job = make_job(metadata={"name": "j" * 40}, workerGroups=[elastic("g" * 12)])
    pod = pod_of(job, WorkerId("g" * 12, 9999, 9999))
    assert len(pod["metadata"]["name"]) == 63
    assert all(len(value) <= 63 for value in pod["metadata"]["labels"].values())


def test_what_the_worker_is_told():
    job = make_job(
        workerGroups=[fixed("gpu", 2), elastic("cpu")],
        env={"envsPerWorker": 4, "kwargs": {"x": 1.5}},
        seed=11,
    )
    document = document_of(pod_of(job, WorkerId("gpu", 1, 3)))
    assert document.worker == WorkerId("gpu", 1, 3)
    assert (document.job.uid, document.group_number, document.first_env_index, document.seed) == (
        UID,
        1,
        4,
        11,
    )
    assert (document.env, document.collector, document.policy) == (
        job.spec.env,
        job.spec.collector,
        job.spec.policy,
    )
    assert document.redis == StreamAddress(host="redis", port=6379)
    assert (document.strict_share, document.grace_seconds) == (None, 60)


def test_what_does_not_fit_into_a_variable_is_refused_with_its_size():
    job = make_job(env={"kwargs": {"x": "y" * 50_000}}, policy={"kwargs": {"x": "y" * 20_000}})
    assert document_of(pod_of(job)).env.kwargs
    big = job.spec.env.model_copy(update={"kwargs": {"x": "y" * 100_000}})
    job = job.model_copy(update={"spec": job.spec.model_copy(update={"env": big})})
    with pytest.raises(SpecError, match="bytes of at most 98304"):
        pod_of(job)


@pytest.mark.parametrize(
    ("env", "resources", "processes", "threads"),
    [
        pytest.param({"envsPerWorker": 10}, {"limits": {"cpu": "4"}}, 4, "4", id="the limit"),
        pytest.param({"envsPerWorker": 2}, {"limits": {"cpu": "4"}}, 2, "4", id="no more than environments"),
        pytest.param({"envsPerWorker": 10}, {"limits": {"cpu": "1500m"}}, 1, "1", id="whole processors"),
        pytest.param({"envsPerWorker": 10, "processes": 3}, {"limits": {"cpu": "4"}}, 3, "4", id="written"),
        pytest.param(
            {"envsPerWorker": 10},
            {"requests": {"cpu": "2"}, "limits": {"cpu": "4"}},
            4,
            "2",
            id="threads by request",
        ),
        pytest.param({"envsPerWorker": 10}, {}, 6, "6", id="nothing said"),
    ],
)
def test_processors(env, resources, processes, threads):
    template = {"spec": {"containers": [{"name": "worker", "resources": resources}]}}
    job = make_job(env=env, workerGroups=[elastic("default", template=template)])
    pod = pod_of(job, settings=replace(SETTINGS, default_cpus=6))
    assert document_of(pod).processes == processes
    assert variables_of(pod)["OMP_NUM_THREADS"] == threads


def test_what_the_operator_says_of_logs_is_handed_on():
    assert not [name for name in variables_of(pod_of(make_job())) if name.startswith("ROLLOUT_LOG")]
    settings = replace(SETTINGS, worker_log_format="json", worker_log_level="DEBUG")
    variables = variables_of(pod_of(make_job(), settings=settings))
    assert (variables["ROLLOUT_LOG_FORMAT"], variables["ROLLOUT_LOG_LEVEL"]) == ("json", "DEBUG")


def test_the_users_template_stands_and_ours_is_added():
    template = {
        "metadata": {
            "labels": {"team": "rl", "rolloutjob.dev/job-uid": "forged"},
            "annotations": {"note": "x", "rolloutjob.dev/counted": "failure:9"},
        },
        "spec": {
            "containers": [
                {
                    "name": "worker",
                    "image": "mine:1",
                    "command": ["run"],
                    "env": [
                        {"name": "OMP_NUM_THREADS", "value": "9"},
                        {"name": "MINE", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}},
                    ],
                    "volumeMounts": [{"name": "own", "mountPath": "/dev/shm"}],
                },
                {"name": "sidecar", "image": "side:1"},
            ],
            "affinity": {"nodeAffinity": {}},
            "terminationGracePeriodSeconds": 7,
            "runtimeClassName": "gvisor",
            "volumes": [{"name": "own", "emptyDir": {}}],
        },
    }
    pod = pod_of(
        with_template(template), settings=replace(SETTINGS, worker_image="ours:1", worker_command=("ours",))
    )
    spec, variables = pod["spec"], variables_of(pod)
    assert (container_of(pod)["image"], container_of(pod)["command"]) == ("mine:1", ["run"])
    assert (variables["OMP_NUM_THREADS"], variables["MKL_NUM_THREADS"]) == ("9", "1")
    assert variables["MINE"] == {"configMapKeyRef": {"name": "c", "key": "k"}}
    assert document_of(pod).grace_seconds == 7
    assert (spec["affinity"], spec["runtimeClassName"]) == ({"nodeAffinity": {}}, "gvisor")
    assert "topologySpreadConstraints" not in spec
    assert spec["containers"][1] == {"name": "sidecar", "image": "side:1"}
    assert [mount["name"] for mount in container_of(pod)["volumeMounts"]] == ["own", "rollout-tmp"]
    assert pod["metadata"]["labels"]["team"] == "rl"
    assert pod["metadata"]["labels"]["rolloutjob.dev/job-uid"] == UID
    assert pod["metadata"]["annotations"]["note"] == "x"
    assert "rolloutjob.dev/counted" not in pod["metadata"]["annotations"]


def test_what_is_left_open_is_safe():
    pod = pod_of(
        make_job(), settings=replace(SETTINGS, worker_image="ours:1", worker_command=("python", "-m", "w"))
    )
    spec, container = pod["spec"], container_of(pod)
    assert (container["image"], container["command"]) == ("ours:1", ["python", "-m", "w"])
    assert (spec["restartPolicy"], spec["automountServiceAccountToken"]) == ("Never", False)
    assert spec["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": 8081}
    assert {"name": "rollout-shm", "emptyDir": {"medium": "Memory"}} in spec["volumes"]
    spread = spec["topologySpreadConstraints"][0]
    assert (spread["topologyKey"], spread["whenUnsatisfiable"]) == (
        "kubernetes.io/hostname",
        "ScheduleAnyway",
    )


def test_shared_memory_has_its_size():
    pod = pod_of(make_job(workerGroups=[elastic("default", sharedMemory="2Gi")]))
    assert {"name": "rollout-shm", "emptyDir": {"medium": "Memory", "sizeLimit": "2Gi"}} in pod["spec"][
        "volumes"
    ]
    assert document_of(pod).shared_memory_bytes == 2 << 30
    assert document_of(pod_of(make_job())).shared_memory_bytes is None


def test_secrets_go_by_reference_only():
    redis = {"host": "mine", "port": 7000, "authSecretRef": {"name": "auth", "key": "pw"},
             "tls": {"enabled": True, "caSecretRef": {"name": "ca", "key": "ca.crt"}}}  # fmt: skip
    pod = pod_of(
        make_job(redis=redis), settings=replace(SETTINGS, redis_secret=KeyRef(name="default", key="pw"))
    )
    assert variables_of(pod)[podenv.REDIS_PASSWORD] == {"secretKeyRef": {"name": "auth", "key": "pw"}}
    address = document_of(pod).redis
    assert (address.host, address.port, address.tls, address.ca_file) == (
        "mine", 7000, True, "/etc/rollout/redis-ca/ca.crt",
    )  # fmt: skip
    assert {"name": "rollout-redis-ca", "secret": {"secretName": "ca"}} in pod["spec"]["volumes"]
    pod = pod_of(make_job(), settings=replace(SETTINGS, redis_secret=KeyRef(name="default", key="pw")))
    assert variables_of(pod)[podenv.REDIS_PASSWORD] == {"secretKeyRef": {"name": "default", "key": "pw"}}
    assert podenv.REDIS_PASSWORD not in variables_of(pod_of(make_job()))


ODD = (None, True, 7, "text", [], {}, [None], ["text"], [{}], {"a": {}}, [{"name": 1, "mountPath": 2}])
"""What may stand where the schema declares nothing."""
POD_FIELDS = ("volumes", "initContainers", "affinity", "securityContext", "terminationGracePeriodSeconds",
              "topologySpreadConstraints", "automountServiceAccountToken", "hostAliases", "madeUp")  # fmt: skip
CONTAINER_FIELDS = ("volumeMounts", "securityContext", "readinessProbe", "livenessProbe", "envFrom", "ports",
                    "terminationMessagePolicy", "lifecycle", "madeUp")  # fmt: skip


@pytest.mark.probe("P-41")
@pytest.mark.parametrize("field", POD_FIELDS)
@pytest.mark.parametrize("value", ODD, ids=str)
def test_whatever_stands_in_a_pod_s_spec_goes_to_the_api_server_which_knows_the_rules(field, value):
    job = with_template({"spec": {field: value, "containers": [{"name": "worker"}]}})
    spec = pod_of(job)["spec"]
    if value is not None and not isinstance(value, list):
        assert spec[field] == value
    assert document_of(pod_of(job)).grace_seconds == (
        value if value in (7, True) and "grace" in field.lower() else 60
    )


@pytest.mark.probe("P-41")
@pytest.mark.parametrize("field", CONTAINER_FIELDS)
@pytest.mark.parametrize("value", ODD, ids=str)
def test_whatever_stands_in_a_container_goes_to_the_api_server_which_knows_the_rules(field, value):
    job = with_template({"spec": {"containers": [{"name": "worker", field: value}]}})
    found = container_of(pod_of(job))
    if value is not None and not isinstance(value, list):
        assert found[field] == value


@pytest.mark.parametrize("path", ["/dev/shm", "/dev/shm/", "//dev/./shm"])
def test_where_the_user_mounts_something_nothing_is_mounted_over_it(path):
    mount = {"name": "mine", "mountPath": path}
    template = {"spec": {"volumes": [{"name": "mine", "emptyDir": {}}],
                         "containers": [{"name": "worker", "volumeMounts": [mount]}]}}  # fmt: skip
    pod = pod_of(with_template(template))
    assert [volume["name"] for volume in pod["spec"]["volumes"]] == ["mine", "rollout-tmp"]
    assert container_of(pod)["volumeMounts"][0] == mount


def test_code_of_a_config_map_and_of_a_local_run():
    job = make_job(code={"configMapRef": {"name": "files"}})
    pod = pod_of(job)
    assert document_of(pod).code_dirs == ("/etc/rollout/code",)
    assert {"name": "rollout-code", "configMap": {"name": "files"}} in pod["spec"]["volumes"]
    local = replace(SETTINGS, code_dirs=("/here",), health=HealthAddress(host="127.0.0.1", port=0))
    document = document_of(pod_of(job, settings=local))
    assert (document.code_dirs, document.health.port) == (("/here",), 0)


@pytest.mark.parametrize(
    ("device", "limits", "expected"),
    [("Auto", {}, "Cpu"), ("Auto", {"nvidia.com/gpu": 1}, "Cuda"), ("Cpu", {"nvidia.com/gpu": 1}, "Cpu")],
)
def test_the_device_follows_the_template(device, limits, expected):
    template = {"spec": {"containers": [{"name": "worker", "resources": {"limits": limits}}]}}
    assert document_of(pod_of(with_template(template, device=device))).device == expected


def test_the_template_hash_does_not_depend_on_order_or_on_what_reaches_running_workers():
    one = with_template({"metadata": {"labels": {"a": "1", "b": "2"}}}).spec.worker_groups[0]
    two = with_template({"metadata": {"labels": {"b": "2", "a": "1"}}}, minAvailable=3).spec.worker_groups[0]
    three = with_template({"metadata": {"labels": {"a": "1", "b": "3"}}}).spec.worker_groups[0]
    assert template_hash_of(one) == template_hash_of(two) != template_hash_of(three)
    assert len(template_hash_of(one)) == 10


# --- derived numbers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("total", "random", "expected"),
    [
        pytest.param(1000, 0, [(500, 0), (500, 0)], id="even"),
        pytest.param(1100, 0, [(600, 0), (500, 0)], id="one batch more"),
        pytest.param(1050, 0, [(550, 0), (500, 0)], id="a partial batch goes on in turn"),
        pytest.param(1150, 0, [(600, 0), (550, 0)], id="a partial batch for the second"),
        pytest.param(50, 0, [(50, 0), (0, 0)], id="less than a batch"),
        pytest.param(1000, 250, [(500, 150), (500, 100)], id="random frames are the job's first"),
        pytest.param(None, 100, [(None, 100), (None, 0)], id="endless"),
    ],
)
def test_strict_shares_add_up_and_are_dealt_in_turn(total, random, expected):
    collector = {"framesPerBatch": 100, "totalFrames": total, "initRandomFrames": random}
    job = make_job(determinism="Strict", collector=collector, workerGroups=[fixed("b", 1), fixed("a", 1)])
    order = [WorkerId("a", 0, 0), WorkerId("b", 0, 1)]
    found = [shares.strict_share(job.spec, worker) for worker in order]
    assert [(share.total_frames, share.init_random_frames) for share in found] == expected


def test_without_strict_nothing_is_shared_out():
    assert shares.strict_share(make_job().spec, WorkerId("default", 0, 0)) is None


def test_the_high_watermark_is_eight_batches_of_every_worker_unless_written():
    assert shares.stream_limits(make_job(replicas=3).spec).max_unacked_frames == 2400
    assert shares.stream_limits(make_job(replicas=0).spec).max_unacked_frames == 800
    assert shares.stream_limits(make_job(stream={"maxUnackedFrames": 500}).spec).max_unacked_frames == 500
    settings = shares.stream_settings(make_job(stream={"groups": ["x"]}, seed=3))
    assert (settings.seed, settings.groups, settings.total_frames, settings.ttl_s) == (
        3,
        ("x",),
        10_000,
        86_400,
    )
