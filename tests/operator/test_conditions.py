"""The status: every condition, the counters, what stays, what is worth a write, which events go with it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from operator_builders import (
    NOON,
    SETTINGS,
    UID,
    beats,
    conditions_of,
    counted,
    elastic,
    fixed,
    make_beat,
    make_facts,
    make_job,
    make_pod,
    message_of,
    observe,
    seen_before,
    status_after,
)

from rollout_contract.names import Slot
from rollout_contract.spec import parse_manifest
from rollout_contract.status import ConditionType, Reason, RolloutJobStatus
from rollout_operator.conditions import Seen
from rollout_operator.decisions import Outcome, Refusal
from rollout_operator.observed import StreamTrouble
from rollout_operator.plan import make_plan
from rollout_operator.pod_parts import OtherContainer
from rollout_operator.pods import PodCondition
from rollout_operator.status import rejected_status, status_of
from rollout_operator.status_writes import events_of, is_worth_writing

ALL_WELL = {
    "Accepted": ("True", "SpecValid"),
    "RedisReady": ("True", "Connected"),
    "WorkersReady": ("True", "AllReady"),
    "Backpressured": ("False", "BelowWatermark"),
    "WeightsStale": ("False", "WithinBound"),
    "Stalled": ("False", "FramesAdvancing"),
    "Ready": ("True", "WorkersReady"),
    "Suspended": ("False", "NotSuspended"),
    "Complete": ("False", "InProgress"),
    "Failed": ("False", "InProgress"),
}


def test_a_job_that_runs_well_says_so_in_every_condition():
    status = status_after(make_job(), observe([make_pod(0)]))
    assert conditions_of(status) == ALL_WELL
    assert status.state == "Running"


def test_every_condition_is_there_from_the_first_visit_on():
    status = status_after(make_job(determinism="Strict", workerGroups=[fixed("w", 1)]), observe())
    assert set(conditions_of(status)) == set(ConditionType)
    assert status.selector is None


def cut_off(pod):
    """The pod as the cluster shows it once its node is silent: only its readiness was taken back."""
    conditions = (PodCondition("Ready", "False"), PodCondition("ContainersReady", "True"))
    return replace(pod, ready=False, node="node-7", conditions=conditions)


def test_a_node_that_does_not_answer_is_named():
    status = status_after(make_job(), observe([cut_off(make_pod(0))]))
    assert "its node node-7 does not answer" in message_of(status, "WorkersReady")
    status = status_after(make_job(), observe([cut_off(make_pod(0, deleted_ago=5))]))
    assert "replaced 120 s after it was asked to end" in message_of(status, "WorkersReady")
    by_kubelet = PodCondition("Ready", "False", "ReadinessGatesNotReady")
    gated = replace(cut_off(make_pod(0)), conditions=(by_kubelet, PodCondition("ContainersReady", "True")))
    assert conditions_of(status_after(make_job(), observe([gated])))["WorkersReady"] == ("False", "Starting")


def test_what_a_pod_waits_for_is_named():
    pod = replace(
        make_pod(0, state="pending"), reason="ContainerCreating", node="n", mounts=("ConfigMap code",)
    )
    status = status_after(make_job(), observe([pod]))
    assert conditions_of(status)["WorkersReady"] == ("False", "Starting")
    assert "it needs ConfigMap code" in message_of(status, "WorkersReady")
    status = status_after(make_job(), observe([replace(make_pod(0, state="pending"), node="n")]))
    assert "node n has not taken it yet" in message_of(status, "WorkersReady")


OTHER = OtherContainer("data", is_init=True, image="fetch:1", reason="", message="", exit_code=None)


@pytest.mark.probe("P-42")
@pytest.mark.parametrize(
    ("pod", "other", "reason", "said"),
    [
        pytest.param({"state": "pending"}, {}, "Starting", "init container 'data' runs", id="runs"),
        pytest.param({"state": "pending"}, {"reason": "ErrImagePull", "message": "denied"}, "ErrImagePull", "fetch:1 denied",
                     id="image"),
        pytest.param({"state": "starting"}, {"is_init": False, "exit_code": 5}, "WorkersNotReady",
                     "container 'data' ended with exit code 5; a pod is ready only while", id="sidecar"),
    ],
)  # fmt: skip
def test_another_container_of_the_pod_is_named(pod, other, reason, said):
    hindered = replace(make_pod(0, **pod), reason="", hindrance=replace(OTHER, **other))
    status = status_after(make_job(), observe([hindered]))
    assert conditions_of(status)["WorkersReady"] == ("False", reason)
    assert said in message_of(status, "WorkersReady")


def test_the_last_failure_is_that_of_the_container_that_failed():
    pod = replace(
        make_pod(0, code=1), exit_code=None, hindrance=replace(OTHER, exit_code=3), message="no data"
    )
    last = status_after(make_job(), observe([pod])).last_failure
    assert (last.container, last.exit_code, last.message) == ("data", 3, "no data")


@pytest.mark.parametrize(
    ("job", "pods", "facts", "expected", "state"),
    [
        pytest.param({}, [], {}, {"WorkersReady": ("False", "WorkersNotReady"), "Stalled": ("Unknown", "Starting"),
                                  "Ready": ("False", "WorkersNotReady")}, "Pending", id="nothing yet"),
        pytest.param({"replicas": 0}, [], {}, {"WorkersReady": ("True", "ScaledToZero"),
                     "Stalled": ("Unknown", "Starting"), "Ready": ("True", "ScaledToZero")}, "Running", id="zero"),
        pytest.param({}, [make_pod(0)], {"is_backpressured": True},
                     {"Backpressured": ("True", "AboveWatermark"), "Stalled": ("Unknown", "HeldBack")},
                     "Backpressured", id="back-pressure"),
        pytest.param({"replicas": 2}, [make_pod(0), make_pod(1, state="starting")], {},
                     {"WorkersReady": ("False", "Starting"), "Ready": ("False", "WorkersNotReady")},
                     "Degraded", id="one is missing"),
        pytest.param({"suspend": True}, [make_pod(0, deleted_ago=1)], {},
                     {"WorkersReady": ("False", "JobSuspended"), "Ready": ("False", "JobSuspended"),
                      "Suspended": ("False", "Draining"), "Stalled": ("Unknown", "JobSuspended")},
                     "Draining", id="draining"),
        pytest.param({"replicas": 9, "workerGroups": [elastic("default", maxReplicas=1)]}, [make_pod(0)], {},
                     {"Accepted": ("True", "ReplicasClamped")}, "Running", id="clamped"),
        pytest.param({}, [make_pod(0)], {"heartbeats": beats(make_beat(0, seen=NOON - 16))},
                     {"WorkersReady": ("False", "WorkerLost"), "Ready": ("False", "WorkersNotReady")},
                     "Degraded", id="silent"),
        pytest.param({}, [cut_off(make_pod(0))], {},
                     {"WorkersReady": ("False", "WorkerLost"), "Ready": ("False", "WorkersNotReady"),
                      "Stalled": ("Unknown", "Starting")}, "Pending", id="its node is cut off"),
        pytest.param({}, [cut_off(make_pod(0, deleted_ago=30))], {},
                     {"WorkersReady": ("False", "WorkerLost"), "Ready": ("False", "WorkersNotReady"),
                      "Stalled": ("Unknown", "Starting")}, "Pending", id="ends on a node that is cut off"),
    ],
)  # fmt: skip
def test_what_differs_is_said_in_its_condition(job, pods, facts, expected, state):
    status = status_after(make_job(**job), observe(pods, make_facts(**facts)))
    assert conditions_of(status) == ALL_WELL | expected
    assert status.state == state


@pytest.mark.parametrize(
    ("outcome", "condition", "expected"),
    [
        pytest.param(
            Outcome(
                refusals=(Refusal(Slot("default", 2), Reason.POD_NAME_TAKEN, "pod a-default-2-0 exists"),)
            ),
            "WorkersReady",
            ("False", "PodNameTaken"),
            id="probe-P-45-foreign-pod",
        ),
        pytest.param(
            Outcome(refusals=(Refusal(Slot("default", 0), Reason.POD_REJECTED, "no field x"),)),
            "Accepted",
            ("False", "PodRejected"),
            id="admission",
        ),
        pytest.param(
            Outcome(stream=StreamTrouble(Reason.OUT_OF_MEMORY, "full")),
            "RedisReady",
            ("False", "OutOfMemory"),
            id="stream refused to open",
        ),
    ],
)
def test_what_was_refused_is_said(outcome, condition, expected):
    status = status_after(make_job(replicas=3), observe([make_pod(0)]), outcome=outcome)
    assert conditions_of(status)[condition] == expected
    assert conditions_of(status)["Ready"][0] == "False"


@pytest.mark.parametrize(
    ("weights", "beat", "expected"),
    [
        pytest.param({"maxStaleness": 1}, {"policy_version": 4}, ("False", "WithinBound"), id="row-101-within"),
        pytest.param({"maxStaleness": 1}, {"policy_version": 2}, ("True", "BeyondBound"), id="row-101-beyond"),
        pytest.param({"maxStaleness": 1}, {"policy_version": 3}, ("False", "WithinBound"), id="row-101-just-published"),
        pytest.param(
            {"maxStaleness": 1}, {"policy_version": 1}, ("True", "BeyondBound"), id="row-101-no-longer-kept"
        ),
        pytest.param(
            {"maxStaleness": 1}, {"policy_version": 2, "state": "Paused"}, ("False", "WithinBound"), id="row-102-paced"
        ),
        pytest.param({}, {"policy_version": 0}, ("False", "WithinBound"), id="row-101-no-bound"),
        pytest.param(
            {}, {"policy_version": 4, "rejected_version": 5, "last_error": "shape"}, ("True", "VersionRejected"),
            id="row-107-rejected",
        ),
        pytest.param({}, {"policy_version": 5, "rejected_version": 4}, ("False", "WithinBound"), id="row-107-over"),
    ],
)  # fmt: skip
def test_weights(weights, beat, expected):
    times = {4: NOON - 61, 5: NOON - 59}
    facts = make_facts(newest_version=5, version_times=times, heartbeats=beats(make_beat(0, **beat)))
    status = status_after(make_job(weights=weights), observe([make_pod(0)], facts))
    assert conditions_of(status)["WeightsStale"] == expected
    assert status.weights.latest_version == 5
    assert status.weights.min_loaded_version == beat["policy_version"]


def test_reproducible_turns_false_with_the_first_replacement_and_stays_so():
    job = make_job(determinism="Strict", workerGroups=[fixed("w", 1)])
    first = [make_pod(0, group="w", job=job)]
    assert conditions_of(status_after(job, observe(first)))["Reproducible"] == ("True", "NoWorkerReplaced")
    replaced = seen_before(job, observe([make_pod(0, group="w", job=job, attempt=1)]))
    assert conditions_of(replaced.status)["Reproducible"] == ("False", "WorkerReplaced")
    assert "w-0" in message_of(replaced.status, "Reproducible")
    assert conditions_of(status_after(replaced, observe(first)))["Reproducible"] == (
        "False",
        "WorkerReplaced",
    )


def test_counters_are_those_of_the_pods():
    job = make_job(
        replicas=3, workerGroups=[elastic("default"), fixed("gpu", 1)], failurePolicy={"backoffLimit": 99}
    )
    pods = [
        make_pod(0, job=job),
        make_pod(1, job=make_job(workerGroups=[elastic("default", sharedMemory="1Gi")])),
        make_pod(2, job=job, deleted_ago=1),
        counted(make_pod(3, job=job, code=1), "failure", 2),
        make_pod(0, job=job, group="gpu", state="pending"),
    ]
    status = status_after(job, observe(pods))
    default, gpu = status.worker_groups
    assert (default.desired, default.current, default.ready, default.updated, default.draining) == (
        3,
        2,
        2,
        1,
        1,
    )
    assert (default.failures, default.disruptions, gpu.current, gpu.ready) == (2, 0, 1, 0)
    assert (status.ready_workers, status.replicas, status.ready_replicas) == ("2/4", 2, 2)
    assert status.selector == f"rolloutjob.dev/job-uid={UID},rolloutjob.dev/worker-group=default"


def test_numbers_come_from_the_stream_and_stay_when_it_is_away():
    beat = make_beat(0, frames_per_second=123.4, policy_version=3)
    facts = make_facts(
        frames=4_200, episodes=40, last_frame_time=NOON - 2, unacked_frames=512, unacked_bytes=3 << 20,
        max_unacked_frames=800, newest_version=3, heartbeats=beats(beat, make_beat(9, frames_per_second=1e6)),
    )  # fmt: skip
    before = seen_before(make_job(), observe([make_pod(0)], facts))
    progress, stream = before.status.progress, before.status.stream
    assert (progress.frames, progress.percent, progress.frames_per_second, progress.episodes) == (
        4_200,
        42,
        123,
        40,
    )
    assert (progress.last_frame_time, progress.update_time) == (
        "2026-01-01T11:59:58Z",
        "2026-01-01T12:00:00Z",
    )
    assert (stream.unacked_frames, stream.bytes, stream.max_unacked_frames) == (512, "3Mi", 800)
    assert before.status.seed == 7
    away = status_after(before, observe([make_pod(0)], StreamTrouble(Reason.UNREACHABLE, "gone")), NOON + 5)
    assert (away.progress, away.stream, away.weights) == (progress, stream, before.status.weights)


def test_the_last_failure_is_kept_with_the_head_of_its_message():
    job = make_job(failurePolicy={"backoffLimit": 99})
    message = "EnvError: " + "x" * 2000
    before = seen_before(job, observe([make_pod(0, attempt=2, code=1, message=message)]))
    failure = before.status.last_failure
    assert (failure.group, failure.worker, failure.attempt, failure.exit_code) == ("default", 0, 2, 1)
    assert failure.message.startswith("EnvError: xxx")
    assert len(failure.message.encode()) <= 512
    assert status_after(before, observe([make_pod(0, attempt=3)])).last_failure == failure


def test_a_status_is_its_own_document_again():
    job = make_job(determinism="Strict", workerGroups=[fixed("w", 1)])
    pods = [make_pod(0, group="w", job=job, attempt=1, code=64, message="EntrypointError")]
    status = status_after(job, observe(pods))
    document = {"apiVersion": "rolloutjob.dev/v1alpha1", "kind": "RolloutJob", "metadata": {"name": "a"},
                "spec": job.spec.to_document(), "status": status.to_document()}  # fmt: skip
    assert parse_manifest(document).status == status


def test_a_drawn_seed_is_the_same_however_often_the_first_visit_is_repeated():
    seeds = {status_after(make_job(), observe(facts=make_facts(seed=None))).seed for _ in range(3)}
    assert len(seeds) == 1
    assert 0 <= seeds.pop() < 2**63
    assert status_after(make_job(seed=5), observe(facts=make_facts(seed=None))).seed == 5


def test_a_spec_that_cannot_be_read_is_said_and_the_rest_stays():
    before = status_after(make_job(), observe([make_pod(0)]))
    after = rejected_status(
        before, generation=3, reason=Reason.SPEC_INVALID, message="spec.x: what", now=NOON + 1
    )
    assert conditions_of(after) == ALL_WELL | {"Accepted": ("False", "SpecInvalid")}
    assert (after.observed_generation, after.worker_groups) == (3, before.worker_groups)
    empty = rejected_status(
        RolloutJobStatus(), generation=1, reason=Reason.SPEC_INVALID, message="", now=NOON
    )
    assert empty.state == "Pending"


def test_a_condition_keeps_its_time_while_its_status_stays():
    before = seen_before(make_job(), observe([make_pod(0)]))
    later = status_after(before, observe([make_pod(0)]), NOON + 100)
    assert {c.last_transition_time for c in later.conditions} == {"2026-01-01T12:00:00Z"}
    changed = status_after(before, observe([make_pod(0, state="starting")]), NOON + 100)
    times = {c.type: c.last_transition_time for c in changed.conditions}
    assert times["WorkersReady"] == "2026-01-01T12:01:40Z"
    assert times["Failed"] == "2026-01-01T12:00:00Z"


# --- write discipline and events --------------------------------------------------------------------------------------


def written(job, observed, now):
    new = status_after(job, observed, now)
    return is_worth_writing(job.status, new, now=now, settings=SETTINGS)


@pytest.mark.parametrize(
    ("look", "after_s", "worth"),
    [
        pytest.param(observe([make_pod(0)], make_facts(frames=1000)), 1, False, id="row-36-nothing-new"),
        pytest.param(observe([make_pod(0)], make_facts(frames=1000)), 100, False, id="row-36-still-nothing"),
        pytest.param(observe([make_pod(0)], make_facts(frames=2000)), 1, False, id="row-36-numbers-too-soon"),
        pytest.param(observe([make_pod(0)], make_facts(frames=2000)), 10, True, id="row-36-numbers-in-time"),
        pytest.param(
            observe([make_pod(0)], make_facts(frames=1009)), 10, False, id="row-36-less-than-one-percent"
        ),
        pytest.param(observe([make_pod(0)], make_facts(frames=1010)), 10, True, id="row-36-one-percent"),
        pytest.param(
            observe([make_pod(0, state="starting")], make_facts(frames=1000)), 1, True, id="row-36-condition"
        ),
        pytest.param(
            observe([make_pod(0), make_pod(1, deleted_ago=1)], make_facts(frames=1000)),
            1,
            True,
            id="row-36-counter",
        ),
        pytest.param(
            observe([make_pod(0)], make_facts(frames=1000, seed_epoch=1)), 1, True, id="row-36-epoch"
        ),
    ],
)
def test_what_is_worth_a_write(look, after_s, worth):
    job = seen_before(make_job(), observe([make_pod(0)], make_facts(frames=1000)))
    assert written(job, look, NOON + after_s) is worth


def test_a_message_alone_waits_for_its_turn():
    full = {"is_backpressured": True, "frames": 1000}
    job = seen_before(make_job(), observe([make_pod(0)], make_facts(unacked_frames=900, **full)))
    look = observe([make_pod(0)], make_facts(unacked_frames=901, **full))
    assert not written(job, look, NOON + 1)
    assert written(job, look, NOON + 10)


def test_the_first_opening_is_written_at_once():
    job = seen_before(make_job(), observe([make_pod(0)], make_facts(is_open=False)))
    assert job.status.stream is None
    assert written(job, observe([make_pod(0)]), NOON)


def test_events_tell_failures_and_changes_once():
    job = seen_before(make_job(failurePolicy={"backoffLimit": 9}), observe([make_pod(0)]))
    look = observe([make_pod(0, code=1, message="boom")])
    plan = make_plan(job, look, NOON)
    status = status_of(Seen(job, look, plan, Outcome(), NOON))
    events = [(e.kind.value, e.reason) for e in events_of(job.status, status, plan)]
    assert events == [
        ("Warning", "WorkerFailed"),
        ("Warning", "WorkerBackingOff"),
        ("Normal", "WorkersNotReady"),
    ]
    after = job.model_copy(update={"status": status})
    again = observe([counted(look.pods[0], "failure", 1)])
    plan = make_plan(after, again, NOON)
    assert events_of(status, status_of(Seen(after, again, plan, Outcome(), NOON)), plan) == ()


@pytest.mark.parametrize(
    ("pods", "outcome", "events"),
    [
        pytest.param([make_pod(0)], Outcome(), [("Normal", "WorkersReady")], id="up"),
        pytest.param([make_pod(0, ready=False)], Outcome(), [], id="coming up"),
        pytest.param(
            [],
            Outcome(refusals=(Refusal(Slot("default", 0), Reason.QUOTA_EXCEEDED, "exceeded quota"),)),
            [("Warning", "QuotaExceeded")],
            id="refused",
        ),
    ],
)
def test_events_of_a_job_s_first_status(pods, outcome, events):
    job, look = make_job(), observe(pods)
    plan = make_plan(job, look, NOON)
    status = status_of(Seen(job, look, plan, outcome, NOON))
    assert [(e.kind.value, e.reason) for e in events_of(job.status, status, plan)] == events


def test_the_job_has_a_url_where_there_is_a_gateway():
    settings = replace(SETTINGS, gateway_url="http://gateway/")
    job, look = make_job(), observe()
    seen = Seen(job, look, make_plan(job, look, NOON), Outcome(), NOON)
    url = settings.job_url("rl", "a")
    assert status_of(seen, gateway=url).endpoints.gateway == "http://gateway/v1/namespaces/rl/rolloutjobs/a"
    assert SETTINGS.job_url("rl", "a") is None
