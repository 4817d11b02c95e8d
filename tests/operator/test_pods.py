"""The view of a pod's raw document, as a kubelet and a scheduler write it."""

from __future__ import annotations

import pytest
from operator_builders import NOON

from rollout_contract.names import WorkerId
from rollout_operator.failure import describe
from rollout_operator.pods import PodCondition, PodView
from rollout_operator.times import to_seconds, to_text

LABELS = {
    "rolloutjob.dev/worker-group": "cpu",
    "rolloutjob.dev/worker-index": "3",
    "rolloutjob.dev/attempt": "2",
    "rolloutjob.dev/template-hash": "abc",
}
T = "2026-01-01T12:00:00Z"


def document(status=None, *, metadata=None, spec=None):
    return {
        "metadata": {
            "namespace": "rl",
            "name": "a-cpu-3-2",
            "uid": "u",
            "labels": LABELS,
            "creationTimestamp": T,
        }
        | (metadata or {}),
        "spec": {"containers": [{"name": "worker", "image": "img"}], "nodeName": "n1"} | (spec or {}),
        "status": status or {},
    }


def container(state, name="worker"):
    return {"name": name, "state": state}


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        pytest.param({}, {"phase": "Pending", "started": None, "exit_code": None, "reason": ""}, id="just made"),
        pytest.param(
            {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
                                                 "message": "0/2 nodes"}]},
            {"reason": "Unschedulable", "message": "0/2 nodes", "ended": False},
            id="unschedulable",
        ),
        pytest.param(
            {"phase": "Pending", "containerStatuses": [container({"waiting": {"reason": "ImagePullBackOff",
                                                                              "message": "back-off"}})]},
            {"reason": "ImagePullBackOff", "message": "back-off", "started": None, "alive": True},
            id="image",
        ),
        pytest.param(
            {"phase": "Running", "containerStatuses": [container({"running": {"startedAt": T}})],
             "conditions": [{"type": "Ready", "status": "True"}]},
            {"ready": True, "started": NOON, "ended": False, "alive": True},
            id="running",
        ),
        pytest.param(
            {"phase": "Running", "containerStatuses": [
                container({"running": {"startedAt": T}}, "sidecar"),
                container({"terminated": {"exitCode": 1, "reason": "Error", "message": "boom", "startedAt": T,
                                          "finishedAt": "2026-01-01T12:00:09Z"}})]},
            {"exit_code": 1, "reason": "Error", "message": "boom", "finished": NOON + 9, "ended": True, "alive": False},
            id="the worker ended, a sidecar goes on",
        ),
        pytest.param(
            {"phase": "Failed", "reason": "Evicted", "message": "disk", "startTime": T},
            {"exit_code": None, "pod_reason": "Evicted", "reason": "Evicted", "finished": NOON, "ended": True},
            id="evicted before it ran",
        ),
    ],
)  # fmt: skip
def test_the_view_of_a_status(status, expected):
    view = PodView.of(document(status))
    assert {name: getattr(view, name) for name in expected} == expected


def test_everything_else_of_the_view():
    annotations = {"rolloutjob.dev/streak": "1", "other/x": "y"}
    metadata = {
        "annotations": annotations,
        "deletionTimestamp": "2026-01-01T12:01:00Z",
        "deletionGracePeriodSeconds": 45,
    }
    view = PodView.of(
        document({"conditions": [{"type": "X", "status": "True", "reason": "R"}]}, metadata=metadata)
    )
    assert view.worker == WorkerId("cpu", 3, 2)
    assert (view.template_hash, view.node, view.image, view.container) == ("abc", "n1", "img", "worker")
    assert (view.deletion_requested, view.grace_s, view.ending) == (NOON + 15, 45.0, True)
    assert view.annotations == {"rolloutjob.dev/streak": "1"}
    assert (view.condition("X"), view.condition("Y")) == (PodCondition("X", "True", "R"), None)


def test_a_single_container_is_the_worker_whatever_its_name():
    spec = {"containers": [{"name": "main", "image": "img"}]}
    ended = {"terminated": {"exitCode": 3, "finishedAt": T, "startedAt": T}}
    view = PodView.of(document({"containerStatuses": [container(ended, "main")]}, spec=spec))
    assert (view.exit_code, view.container) == (3, "main")


@pytest.mark.parametrize("labels", [{}, LABELS | {"rolloutjob.dev/attempt": "x"}], ids=["none", "no number"])
def test_a_pod_that_is_no_worker_is_refused_by_name(labels):
    with pytest.raises(ValueError, match="a-cpu-3-2"):
        PodView.of(document(metadata={"labels": labels}))


def test_times():
    assert to_text(NOON + 0.9) == T
    assert to_seconds("2026-01-01T13:00:00+01:00") == NOON
    assert (to_seconds(None), to_seconds("")) == (None, None)


def sources(*found):
    return {"projected": {"sources": list(found)}}


@pytest.mark.probe("P-42")
@pytest.mark.parametrize(
    ("volumes", "expected"),
    [
        pytest.param(
            [{"configMap": {"name": "code"}}, {"secret": {"secretName": "ca"}}], ("ConfigMap code", "Secret ca"), id="whole"
        ),
        pytest.param([{"secret": {"secretName": "perhaps", "optional": True}}, {"emptyDir": {}}], (), id="nothing"),
        pytest.param([{"configMap": {"name": "code"}}, {"configMap": {"name": "code"}}], ("ConfigMap code",), id="once"),
        pytest.param(
            [{"configMap": {"name": "code", "items": [{"key": "a.py", "path": "a"}, {"key": "b.py", "path": "b"}]}}],
            ("ConfigMap code with a.py, b.py",),
            id="keys",
        ),
        pytest.param(
            [sources({"configMap": {"name": "x"}}, {"secret": {"name": "y"}}, {"serviceAccountToken": {"path": "t"}})],
            ("ConfigMap x", "Secret y"),
            id="projected",
        ),
        pytest.param(
            [{"persistentVolumeClaim": {"claimName": "data"}}, {"nfs": {"server": "s"}}, {"downwardAPI": {}}],
            ("PersistentVolumeClaim data", "volume v1 (nfs)"),
            id="storage",
        ),
    ],
)  # fmt: skip
def test_what_it_cannot_be_set_up_without(volumes, expected):
    named = [{"name": f"v{number}", **volume} for number, volume in enumerate(volumes)]
    found = PodView.of(document(spec={"containers": [{"name": "worker"}], "volumes": named}))
    assert found.mounts == expected


TWO = {
    "initContainers": [{"name": "data", "image": "fetch:1"}, {"name": "proxy", "restartPolicy": "Always"}],
    "containers": [{"name": "worker", "resources": {"limits": {"memory": "20Mi"}}}, {"name": "side", "image": "s:2"}],
}  # fmt: skip
WAITS = container({"waiting": {"reason": "PodInitializing"}})
RUNS = container({"running": {"startedAt": T}})
DATA_DONE = container({"terminated": {"exitCode": 0, "reason": "Completed"}}, "data")
PROXY_RUNS = container({"running": {"startedAt": T}}, "proxy") | {"started": True}


@pytest.mark.probe("P-42")
@pytest.mark.parametrize(
    ("init", "main", "said"),
    [
        pytest.param([container({"running": {"startedAt": T}}, "data")], [WAITS], "init container 'data' runs", id="runs"),
        pytest.param(
            [container({"waiting": {"reason": "ErrImagePull", "message": "denied"}}, "data")], [WAITS],
            "init container 'data' waits: fetch:1 denied", id="no image",
        ),
        pytest.param(
            [container({"terminated": {"exitCode": 3, "reason": "Error", "message": "no data\n"}}, "data")], [WAITS],
            "init container 'data' ended with exit code 3: no data", id="fails",
        ),
        pytest.param(
            [DATA_DONE, container({"running": {"startedAt": T}}, "proxy")], [WAITS],
            "init container 'proxy' runs", id="a sidecar that has not started",
        ),
        pytest.param(
            [DATA_DONE, container({"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}}, "proxy")], [RUNS],
            "init container 'proxy' waits: back-off", id="a sidecar that fails",
        ),
        pytest.param(
            [DATA_DONE, PROXY_RUNS], [RUNS, container({"waiting": {"reason": "ImagePullBackOff"}}, "side")],
            "container 'side' waits: s:2 ImagePullBackOff", id="the image of another",
        ),
        pytest.param(
            [DATA_DONE, PROXY_RUNS], [RUNS, container({"terminated": {"exitCode": 137, "reason": "OOMKilled"}}, "side")],
            "container 'side' ended with exit code 137 (OOMKilled)", id="another has ended",
        ),
        pytest.param([DATA_DONE, PROXY_RUNS], [RUNS, container({"running": {}}, "side")], None, id="all run"),
        pytest.param([DATA_DONE, PROXY_RUNS], [container({"waiting": {"reason": "ContainerCreating"}}),
                     container({"waiting": {"reason": "ContainerCreating"}}, "side")], None, id="all are made"),
    ],
)  # fmt: skip
def test_other_containers_that_are_in_the_way(init, main, said):
    view = PodView.of(document({"initContainerStatuses": init, "containerStatuses": main}, spec=TWO))
    assert (view.hindrance.said if view.hindrance else None) == said
    assert view.memory_limit == "20Mi"


@pytest.mark.probe("P-42")
def test_a_worker_that_never_ran_has_the_last_words_of_what_ran_before_it():
    ended = container({"terminated": {"exitCode": 64, "reason": "Error", "message": "no data"}}, "data")
    status = {"phase": "Failed", "initContainerStatuses": [ended], "containerStatuses": [WAITS]}
    view = PodView.of(document(status, spec=TWO))
    assert (view.ended, view.exit_code, view.reason) == (True, None, "Error")
    assert (
        describe(view)
        == "worker cpu-3 attempt 2: never ran: init container 'data' ended with exit code 64: no data"
    )


@pytest.mark.parametrize(
    ("ended", "said"),
    [
        pytest.param({"exitCode": 137, "reason": "OOMKilled"},
                     "exit code 137 (OOMKilled, its memory limit is 20Mi)", id="memory"),
        pytest.param({"exitCode": 0, "reason": "Completed"},
                     "exit code 0: it ended by itself, though the job is not complete", id="by itself"),
    ],
)  # fmt: skip
def test_how_a_worker_ended_says_what_the_code_alone_does_not(ended, said):
    view = PodView.of(document({"containerStatuses": [container({"terminated": ended})]}, spec=TWO))
    assert describe(view) == f"worker cpu-3 attempt 2: {said}"
