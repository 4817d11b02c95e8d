"""The view of a pod's raw document, as a kubelet and a scheduler write it."""

from __future__ import annotations

import pytest
from operator_builders import NOON

from rollout_contract.names import WorkerId
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


def test_what_it_cannot_be_set_up_without():
    volumes = [
        {"name": "a", "configMap": {"name": "code"}},
        {"name": "b", "secret": {"secretName": "ca"}},
        {"name": "c", "secret": {"secretName": "perhaps", "optional": True}},
        {"name": "d", "emptyDir": {}},
    ]
    found = PodView.of(document(spec={"containers": [{"name": "worker"}], "volumes": volumes}))
    assert found.mounts == ("ConfigMap code", "Secret ca")
