"""The planner as tables: one row per rule, each a look at a job and the whole answer."""

from __future__ import annotations

from dataclasses import replace

import pytest
from operator_builders import (
    NOON,
    beats,
    conditions_of,
    counted,
    disrupted,
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

from rollout_contract.messages import EndMarker
from rollout_contract.names import Slot, WorkerId
from rollout_contract.status import Reason
from rollout_operator.decisions import Create, EndingKind, Plan, Why
from rollout_operator.observed import StreamTrouble
from rollout_operator.plan import MAX_CREATES, make_plan


def created(plan: Plan):
    return [str(create.worker) for create in plan.create]


def deleted(plan: Plan):
    return {(str(delete.pod.worker), delete.why) for delete in plan.delete}


def counts(plan: Plan):
    return [(str(count.pod.worker), f"{count.kind.value}:{count.number}") for count in plan.count]


# --- workers: which slots, which attempts -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "pods", "create", "delete"),
    [
        pytest.param(
            {"replicas": 3}, [], ["default-0-0", "default-1-0", "default-2-0"], set(), id="row-18-nothing-yet"
        ),
        pytest.param({"replicas": 3}, [(0,), (1,), (2,)], [], set(), id="row-18-all-there"),
        pytest.param(
            {"replicas": 3}, [(0,), (2,)], ["default-1-0"], set(), id="row-20-the-middle-one-vanished"
        ),
        pytest.param(
            {"replicas": 1}, [(0,), (1,)], [], {("default-1-0", Why.SCALED_DOWN)}, id="row-58-scale-down"
        ),
        pytest.param(
            {"replicas": 0}, [(0,)], [], {("default-0-0", Why.SCALED_DOWN)}, id="row-62-scale-to-zero"
        ),
        pytest.param(
            {"workerGroups": [fixed("cpu", 1), fixed("gpu", 2)]},
            [],
            ["cpu-0-0", "gpu-0-0", "gpu-1-0"],
            set(),
            id="row-1-two-fixed-groups",
        ),
        pytest.param(
            {"replicas": 9, "workerGroups": [elastic("w", maxReplicas=2)]},
            [],
            ["w-0-0", "w-1-0"],
            set(),
            id="row-58-clamped-to-max",
        ),
        pytest.param(
            {"replicas": 0, "workerGroups": [elastic("w", minReplicas=1)]},
            [],
            ["w-0-0"],
            set(),
            id="row-58-clamped-to-min",
        ),
        pytest.param(
            {"replicas": 2},
            [(0,), (1, {"deleted_ago": 5})],
            [],
            set(),
            id="row-30-the-slot-of-a-draining-worker-waits",
        ),
        pytest.param(
            {"replicas": 2},
            [(0,), (1, {"deleted_ago": 119})],
            [],
            set(),
            id="row-52-a-node-may-answer-again",
        ),
        pytest.param(
            {"replicas": 2},
            [(0,), (1, {"deleted_ago": 121})],
            ["default-1-1"],
            set(),
            id="row-52-a-lost-pod-is-replaced-at-once",
        ),
        pytest.param(
            {"replicas": 2},
            [(0,), (1,), (1, {"attempt": 1})],
            [],
            {("default-1-0", Why.SUPERSEDED)},
            id="row-28-never-two-in-a-slot",
        ),
        pytest.param(
            {"managedBy": "kueue.x-k8s.io/multikueue"}, [], [], set(), id="row-13-managed-by-somebody-else"
        ),
        pytest.param(
            {"managedBy": "rolloutjob.dev/rollout-operator"}, [], ["default-0-0"], set(), id="row-13-ours"
        ),
    ],
)
def test_the_wanted_workers_are_restored(spec, pods, create, delete):
    job = make_job(**spec)
    found = [make_pod(pod[0], job=job, **(pod[1] if len(pod) > 1 else {})) for pod in pods]
    plan = make_plan(job, observe(found, make_facts(job=job)), NOON)
    assert (created(plan), deleted(plan)) == (create, delete)


def test_a_job_that_is_being_deleted_is_left_alone():
    job = make_job(metadata={"deletionTimestamp": "2026-01-01T12:00:00Z"})
    assert make_plan(job, observe([make_pod(5)]), NOON) == Plan(hands_off=True)


def test_one_reconcile_creates_a_bounded_number_and_comes_back_at_once():
    job = make_job(replicas=MAX_CREATES + 20)
    plan = make_plan(job, observe(), NOON)
    assert (len(plan.create), plan.requeue_after_s) == (MAX_CREATES, 0.0)


@pytest.mark.parametrize(
    ("facts", "create"),
    [
        pytest.param({"attempts": {Slot("default", 0): 4}}, ["default-0-5"], id="of what has written"),
        pytest.param(
            {"heartbeats": beats(make_beat(0, attempt=7))}, ["default-0-8"], id="of what has reported"
        ),
        pytest.param({"attempts": {Slot("default", 1): 4}}, ["default-0-0"], id="of this slot only"),
    ],
)
def test_an_attempt_is_one_more_than_any_that_is_known(facts, create):
    assert created(make_plan(make_job(), observe(facts=make_facts(**facts)), NOON)) == create


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        pytest.param(StreamTrouble(Reason.UNREACHABLE, "no route"), Plan(), id="unreachable"),
        pytest.param(StreamTrouble(Reason.EVICTION_POLICY, "allkeys-lru"), Plan(), id="probe-P-35-may-evict"),
        pytest.param(make_facts(is_open=False), Plan(open_stream=True), id="not open yet"),
        pytest.param(
            make_facts(end=EndMarker("suspended")),
            Plan(reopen_stream=True),
            id="not reopened after a suspend",
        ),
    ],
)
def test_no_worker_starts_before_the_stream_is_ready(stream, expected):
    plan = make_plan(make_job(), observe(facts=stream), NOON)
    assert (plan.create, plan.open_stream, plan.reopen_stream) == (
        (),
        expected.open_stream,
        expected.reopen_stream,
    )


def test_what_is_not_built_starts_nothing_and_says_so():
    job = make_job(stream={"shards": 2})
    assert make_plan(job, observe(), NOON).create == ()
    status = status_after(job, observe())
    assert conditions_of(status)["Accepted"] == ("False", "NotImplemented")
    assert conditions_of(status)["Ready"] == ("False", "NotAccepted")
    assert "spec.stream.shards" in message_of(status, "Accepted")


def test_limits_that_were_edited_reach_the_stream():
    assert make_plan(make_job(), observe([make_pod(0)], make_facts(in_tune=False)), NOON).tune_stream
    assert not make_plan(make_job(), observe([make_pod(0)]), NOON).tune_stream


# --- victims ----------------------------------------------------------------------------------------------------------

VICTIMS = {
    "ending": lambda i: make_pod(i, deleted_ago=1),
    "failed": lambda i: counted(make_pod(i, code=1), "failure", 1),
    "pending": lambda i: make_pod(i, state="pending"),
    "not ready": lambda i: make_pod(i, state="starting"),
    "paused": lambda i: make_pod(i),
    "few frames": lambda i: make_pod(i),
    "young": lambda i: make_pod(i, age=10),
    "old": lambda i: make_pod(i, age=1000),
}
ORDER = list(VICTIMS)


@pytest.mark.parametrize("keep", range(len(ORDER) + 1), ids=lambda keep: f"row-61-victims-keep-{keep}")
def test_victims_are_chosen_by_what_their_end_costs(keep):
    """The slots are given in an order of their own, so that indices decide nothing."""
    place = {name: (3 * i) % len(ORDER) for i, name in enumerate(ORDER)}
    job = make_job(replicas=keep)
    pods = [VICTIMS[name](place[name]) for name in ORDER]
    facts = make_facts(
        heartbeats=beats(make_beat(place["paused"], "Paused")),
        reservations={Slot("default", place[name]): frames for name, frames in
                      {"paused": 900, "few frames": 5, "young": 100, "old": 100}.items()},
    )  # fmt: skip
    groups = make_plan(job, observe(pods, facts), NOON).groups["default"]
    assert groups.wanted == {Slot("default", place[name]) for name in ORDER[len(ORDER) - keep :]}


def test_probe_p_44_one_fewer_means_one_fewer_and_the_right_one():
    pods = [make_pod(0), make_pod(1), make_pod(2, state="unschedulable"), make_pod(3)]
    facts = make_facts(heartbeats=beats(make_beat(0), make_beat(1, "Backpressured"), make_beat(3)))
    plan = make_plan(make_job(replicas=3), observe(pods, facts), NOON)
    assert (created(plan), deleted(plan)) == ([], {("default-2-0", Why.SCALED_DOWN)})
    leaving = [pods[0], pods[1], replace(pods[2], deletion_requested=NOON), pods[3]]
    again = make_plan(make_job(replicas=3), observe(leaving, facts), NOON + 1)
    assert (created(again), deleted(again)) == ([], set())
    left = [pods[0], pods[1], pods[3]]
    assert make_plan(make_job(replicas=3), observe(left, facts), NOON + 2).is_empty
    further = make_plan(make_job(replicas=2), observe(left, facts), NOON + 3)
    assert (created(further), deleted(further)) == ([], {("default-1-0", Why.SCALED_DOWN)})


@pytest.mark.parametrize(
    ("replicas", "pods", "release"),
    [
        pytest.param(1, [make_pod(0)], ["default-1-3"], id="its worker is gone"),
        pytest.param(
            1, [make_pod(0), make_pod(1, deleted_ago=1, attempt=3)], [], id="its worker still flushes"
        ),
        pytest.param(2, [make_pod(0)], [], id="a replacement takes it over"),
    ],
)
def test_a_removed_worker_gives_its_reservation_back(replicas, pods, release):
    reserved = {Slot("default", 0): 10, Slot("default", 1): 100}
    facts = make_facts(reservations=reserved, attempts={Slot("default", 1): 3})
    plan = make_plan(make_job(replicas=replicas), observe(pods, facts), NOON)
    assert [str(worker) for worker in plan.release] == release


# --- failures ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pod", "count"),
    [
        pytest.param({"code": 1}, "failure:1", id="row-37-an-error"),
        pytest.param({"code": 137, "reason": "OOMKilled"}, "failure:1", id="row-37-out-of-memory"),
        pytest.param({"code": 2}, "failure:1", id="row-37-a-fault-of-ours"),
        pytest.param({"code": 75}, "failure:1", id="row-37-the-stream-stayed-away"),
        pytest.param({"code": 0}, "failure:1", id="row-45-ended-although-frames-are-left"),
        pytest.param({"state": "ended", "phase": "Failed"}, "failure:1", id="row-37-never-ran"),
        pytest.param({"code": 143}, "disruption:1", id="row-40-asked-to-end-by-somebody"),
        pytest.param(
            {"state": "ended", "phase": "Failed", "pod_reason": "Evicted"},
            "disruption:1",
            id="row-40-evicted",
        ),
        pytest.param({"code": 137, "pod_reason": "NodeShutdown"}, "disruption:1", id="row-40-node-shutdown"),
        pytest.param({"code": 76}, None, id="exits-fenced"),
        pytest.param({"code": 1, "deleted_ago": 1}, None, id="row-30-failed-while-draining"),
        pytest.param({"state": "ready"}, None, id="row-37-runs"),
    ],
)
def test_what_the_end_of_a_worker_counts(pod, count):
    plan = make_plan(make_job(), observe([make_pod(0, **pod)]), NOON)
    assert counts(plan) == ([("default-0-0", count)] if count else [])
    assert plan.ending is None


def test_a_disruption_counts_as_one_while_the_pod_is_still_there():
    pod = disrupted(make_pod(0, deleted_ago=1))
    assert counts(make_plan(make_job(), observe([pod]), NOON)) == [("default-0-0", "disruption:1")]


def test_nothing_counts_twice():
    job = make_job(replicas=2)
    pods = [counted(make_pod(0, code=1), "failure", 1), make_pod(1, code=1, ended_ago=5)]
    plan = make_plan(job, observe(pods), NOON)
    assert counts(plan) == [("default-1-0", "failure:2")]
    status = status_after(job, observe(pods))
    assert [(g.failures, g.disruptions) for g in status.worker_groups] == [(2, 0)]


@pytest.mark.parametrize(
    ("rule", "pod", "kind"),
    [
        pytest.param(
            {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [3]}},
            {"code": 3},
            "fatal",
            id="row-39-in",
        ),
        pytest.param(
            {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [3]}},
            {"code": 4},
            "failure",
            id="row-39-not-in-the-list",
        ),
        pytest.param(
            {"action": "Ignore", "onExitCodes": {"operator": "NotIn", "values": [3]}},
            {"code": 4},
            "disruption",
            id="row-39-not-in",
        ),
        pytest.param(
            {"action": "FailJob", "onExitCodes": {"operator": "NotIn", "values": [3]}},
            {"code": 0},
            "failure",
            id="row-39-zero-is-no-exit-code-of-a-failure",
        ),
        pytest.param(
            {"action": "Ignore", "onReasons": ["OOMKilled"]},
            {"code": 137, "reason": "OOMKilled"},
            "disruption",
            id="row-39-reason",
        ),
        pytest.param(
            {"action": "Ignore", "onReasons": ["OOMKilled"], "workerGroups": ["other"]},
            {"code": 137, "reason": "OOMKilled"},
            "failure",
            id="row-39-another-group",
        ),
        pytest.param(
            {
                "action": "FailJob",
                "onExitCodes": {"operator": "In", "values": [64]},
                "workerGroups": ["other"],
            },
            {"code": 64},
            "fatal",
            id="row-40-64-is-built-in",
        ),
        pytest.param(
            {"action": "Ignore", "onExitCodes": {"operator": "In", "values": [64]}},
            {"code": 64},
            "fatal",
            id="row-40-64-cannot-be-ruled-away",
        ),
        pytest.param(
            {"action": "FailJob", "onReasons": ["Evicted"]},
            {"code": 137, "pod_reason": "Evicted"},
            "disruption",
            id="row-40-disruptions-come-first",
        ),
        pytest.param(
            {"action": "ReplaceWorker", "onExitCodes": {"operator": "In", "values": [143]}},
            {"code": 143},
            "failure",
            id="row-39-a-rule-may-count-143",
        ),
    ],
)
def test_the_first_rule_that_matches_decides(rule, pod, kind):
    groups = [elastic("default"), fixed("other", 0)]
    rules = [
        {"name": "first", **rule},
        {"name": "last", "action": "ReplaceWorker", "onReasons": ["Error", "OOMKilled"]},
    ]
    job = make_job(workerGroups=groups, failurePolicy={"rules": rules})
    plan = make_plan(job, observe([make_pod(0, job=job, **pod)], make_facts(job=job)), NOON)
    assert counts(plan) == [("default-0-0", f"{kind}:1")]
    assert (plan.ending is not None) == (kind == "fatal")


def test_a_rule_on_a_condition_of_the_pod():
    rules = [{"name": "r", "action": "Ignore", "onPodConditions": [{"type": "Flaky", "status": "True"}]}]
    job = make_job(failurePolicy={"rules": rules})
    from rollout_operator.pods import PodCondition

    pod = make_pod(0, code=1, conditions=(PodCondition("Flaky", "True"),))
    assert counts(make_plan(job, observe([pod]), NOON)) == [("default-0-0", "disruption:1")]
    pod = make_pod(0, code=1, conditions=(PodCondition("Flaky", "False"),))
    assert counts(make_plan(job, observe([pod]), NOON)) == [("default-0-0", "failure:1")]


@pytest.mark.parametrize(
    ("pod", "reason", "words"),
    [
        pytest.param(
            {"code": 64, "message": "EntrypointError: no module nowhere"},
            Reason.CONFIGURATION_ERROR,
            "worker default-0 attempt 0: exit code 64: EntrypointError: no module nowhere",
            id="row-40-exit-64",
        ),
        pytest.param(
            {"code": 70}, Reason.STATE_LOST, "worker default-0 attempt 0: exit code 70", id="exits-70"
        ),
    ],
)
def test_what_no_replacement_can_help_fails_the_job_at_once(pod, reason, words):
    plan = make_plan(make_job(replicas=2), observe([make_pod(0, **pod), make_pod(1)]), NOON)
    assert (plan.ending.kind, plan.ending.reason, plan.ending.message) == (EndingKind.FAILED, reason, words)
    assert (plan.create, plan.delete) == ((), ())


def test_a_fatal_end_stands_even_if_the_operator_dies_before_it_says_so():
    pod = counted(make_pod(0, code=9), "fatal", 1)
    plan = make_plan(make_job(), observe([pod]), NOON)
    assert plan.ending.reason is Reason.FAIL_JOB_RULE


@pytest.mark.parametrize(
    ("limit", "failed", "is_over"),
    [
        pytest.param(0, 0, False, id="row-37-none-allowed-none-there"),
        pytest.param(0, 1, True, id="row-37-none-allowed"),
        pytest.param(2, 2, False, id="row-37-at-the-limit"),
        pytest.param(2, 3, True, id="row-37-over-the-limit"),
    ],
)
def test_more_failures_than_the_limit_end_the_job(limit, failed, is_over):
    job = make_job(replicas=5, failurePolicy={"backoffLimit": limit})
    pods = [make_pod(i, code=1 if i < failed else None, message=f"boom {i}") for i in range(5)]
    plan = make_plan(job, observe(pods), NOON)
    assert (plan.ending is not None) == is_over
    if is_over:
        assert plan.ending.reason is Reason.BACKOFF_LIMIT_EXCEEDED
        assert plan.ending.message.startswith(
            f"{failed} worker failures, backoffLimit is {limit}; the last: worker"
        )
        assert "boom" in plan.ending.message


def test_failures_of_the_past_and_of_other_groups_count_towards_the_limit():
    job = make_job(workerGroups=[fixed("x", 1), fixed("y", 1)], failurePolicy={"backoffLimit": 3})
    before = seen_before(job, observe([counted(make_pod(0, job=job, group="x", code=1), "failure", 3)]))
    look = observe([make_pod(0, job=job, group="x"), make_pod(0, job=job, group="y", code=1)])
    assert make_plan(before, look, NOON).ending.reason is Reason.BACKOFF_LIMIT_EXCEEDED


@pytest.mark.parametrize(
    ("pod", "backoff", "wait"),
    [
        pytest.param({"code": 1}, 10, 10, id="row-42-the-first"),
        pytest.param({"code": 1, "streak": 1}, 10, 20, id="row-42-the-second"),
        pytest.param({"code": 1, "streak": 4}, 10, 160, id="row-42-the-fifth"),
        pytest.param({"code": 1, "streak": 5}, 10, 300, id="row-42-capped"),
        pytest.param({"code": 1, "streak": 5000}, 10, 300, id="row-42-capped-for-ever"),
        pytest.param({"code": 1, "streak": 4, "ran": 600}, 10, 10, id="row-42-healthy-before"),
        pytest.param({"code": 1, "streak": 4}, 0, 0, id="row-42-no-wait-wanted"),
        pytest.param({"code": 143}, 10, 0, id="row-40-a-disruption-is-replaced-at-once"),
        pytest.param({"code": 143, "streak": 1}, 10, 10, id="row-40-two-in-a-row-wait"),
        pytest.param({"code": 76}, 10, 0, id="exits-fenced-is-replaced-at-once"),
        pytest.param({"code": 1, "deleted_ago": 1, "streak": 3}, 10, 0, id="row-30-drained"),
    ],
)
def test_a_replacement_waits_for_its_slots_back_off(pod, backoff, wait):
    streak = pod.pop("streak", 0)
    annotations = {"rolloutjob.dev/streak": str(streak)} if streak else {}
    job = make_job(failurePolicy={"backoffSeconds": backoff})
    found = [make_pod(0, ended_ago=0, annotations=annotations, **pod)]
    facts = make_facts()
    if wait:
        early = make_plan(job, observe(found, facts), NOON + wait - 0.5)
        assert (created(early), early.requeue_after_s) == ([], 0.5)
    plan = make_plan(job, observe(found, facts), NOON + wait)
    assert created(plan) == ["default-0-1"]


def test_what_a_slot_went_through_stands_on_its_next_pod():
    job = make_job()
    annotations = {"rolloutjob.dev/streak": "2", "rolloutjob.dev/slot-failures": "5"}
    pod = make_pod(0, code=1, attempt=6, annotations=annotations)
    plan = make_plan(job, observe([pod]), NOON + 40)
    assert plan.create == (Create(WorkerId("default", 0, 7), streak=3, slot_failures=6),)


@pytest.mark.parametrize(
    ("min_available", "given_up", "ending"),
    [
        pytest.param(2, 1, None, id="row-38-the-others-are-enough"),
        pytest.param(3, 1, Reason.WORKER_LIMIT_EXCEEDED, id="row-38-below-min-available"),
        pytest.param(0, 2, None, id="row-38-one-is-left"),
        pytest.param(0, 3, Reason.WORKER_LIMIT_EXCEEDED, id="row-38-none-is-left"),
    ],
)
def test_a_worker_over_its_own_limit_stays_down(min_available, given_up, ending):
    job = make_job(
        replicas=3,
        workerGroups=[elastic("default", minAvailable=min_available)],
        failurePolicy={"backoffLimitPerWorker": 1, "backoffLimit": 100},
    )
    over = {"rolloutjob.dev/slot-failures": "1"}
    pods = [
        make_pod(
            i,
            job=job,
            code=1 if i < given_up else None,
            ended_ago=9999 if i < given_up else 0,
            annotations=over,
        )
        for i in range(3)
    ]
    reserved = {Slot("default", 0): 100}
    plan = make_plan(job, observe(pods, make_facts(reservations=reserved)), NOON)
    assert (plan.ending.reason if plan.ending else None) == ending
    if ending is None:
        assert plan.create == ()
        assert [str(worker) for worker in plan.release] == ["default-0-0"]
        assert conditions_of(status_after(job, observe(pods)))["WorkersReady"] == (
            "False",
            "WorkerLimitExceeded",
        )


def test_an_edited_template_gives_a_worker_that_was_given_up_another_chance():
    spec = {"replicas": 2, "failurePolicy": {"backoffLimitPerWorker": 0, "backoffLimit": 100}}
    old, new = make_job(**spec), make_job(**spec, workerGroups=[elastic("default", sharedMemory="1Gi")])
    pods = [make_pod(0, job=old, code=1), make_pod(1, job=old)]
    assert created(make_plan(old, observe(pods), NOON + 999)) == []
    assert make_plan(new, observe(pods), NOON).create == (Create(WorkerId("default", 0, 1)),)


def test_attempts_are_used_up_one_day():
    facts = make_facts(attempts={Slot("default", 0): 9999})
    plan = make_plan(make_job(), observe(facts=facts), NOON)
    assert (plan.create, plan.ending.reason) == ((), Reason.WORKER_LIMIT_EXCEEDED)


# --- what is kept -----------------------------------------------------------------------------------------------------


def test_pods_that_ended_are_cleared_but_for_those_that_are_needed():
    job = make_job(replicas=2, podRetention={"failed": 1}, failurePolicy={"backoffLimit": 100})
    pods = [
        counted(
            make_pod(0, attempt=0, code=1, ended_ago=50), "failure", 1
        ),  # replaced, counted, not the newest
        counted(make_pod(0, attempt=1, code=1, ended_ago=40), "failure", 2),  # the newest failed: evidence
        make_pod(0, attempt=2),
        counted(make_pod(1, attempt=0, code=143, ended_ago=60), "disruption", 1),  # what attempt 1 follows on
    ]
    before = seen_before(job, observe(pods))
    assert deleted(make_plan(before, observe(pods), NOON)) == {("default-0-0", Why.CLEARED)}


def test_a_pod_stays_until_its_count_is_in_the_status():
    job = make_job(podRetention={"failed": 0}, failurePolicy={"backoffLimit": 100})
    pods = [counted(make_pod(0, code=1, ended_ago=50), "failure", 1), make_pod(0, attempt=1)]
    assert deleted(make_plan(job, observe(pods), NOON)) == set()
    before = seen_before(job, observe(pods))
    assert deleted(make_plan(before, observe(pods), NOON)) == {("default-0-0", Why.CLEARED)}


@pytest.mark.parametrize("keep", [0, 1, 2], ids=lambda keep: f"row-44-keep-{keep}")
def test_a_finished_job_keeps_the_newest_failed_pods(keep):
    job = make_job(podRetention={"failed": keep}, failurePolicy={"backoffLimit": 0}, replicas=4)
    pods = [
        make_pod(0, code=1, ended_ago=30),
        make_pod(1, code=1, ended_ago=20),
        make_pod(2, code=143, ended_ago=1),
        make_pod(3),
    ]
    over = seen_before(job, observe(pods))
    expected = {("default-3-0", Why.FINISHED), ("default-2-0", Why.CLEARED)}
    expected |= {(name, Why.CLEARED) for name in ["default-0-0", "default-1-0"][: 2 - keep]}
    assert deleted(make_plan(over, observe(pods), NOON)) == expected


# --- rollout ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("strategy", "states", "replaced"),
    [
        pytest.param({}, ["old", "old", "old"], [0], id="row-31-one-at-a-time"),
        pytest.param({"maxUnavailable": 2}, ["old", "old", "old"], [0, 1], id="row-31-two-at-a-time"),
        pytest.param({}, ["ending", "old", "old"], [], id="row-31-wait-for-the-drain"),
        pytest.param({}, ["starting", "old", "old"], [], id="row-31-wait-for-readiness"),
        pytest.param({}, ["new", "old", "old"], [1], id="row-31-next"),
        pytest.param({}, ["new", "new", "new"], [], id="row-31-all-new"),
        pytest.param({}, ["old not ready", "old", "old"], [0], id="row-31-nobody-misses-it"),
        pytest.param({"type": "OnSuspend"}, ["old", "old", "old"], [], id="row-31-on-suspend"),
    ],
)
def test_an_edited_template_rolls(strategy, states, replaced):
    old = make_job(replicas=3)
    job = make_job(replicas=3, updateStrategy=strategy, workerGroups=[elastic("default", sharedMemory="1Gi")])
    make = {
        "old": lambda i: make_pod(i, job=old),
        "old not ready": lambda i: make_pod(i, job=old, state="pending"),
        "new": lambda i: make_pod(i, job=job),
        "starting": lambda i: make_pod(i, job=job, state="starting"),
        "ending": lambda i: make_pod(i, job=old, deleted_ago=1),
    }
    plan = make_plan(job, observe([make[state](i) for i, state in enumerate(states)]), NOON)
    assert deleted(plan) == {(f"default-{i}-0", Why.OUTDATED) for i in replaced}


@pytest.mark.parametrize(
    ("edit", "rolls"),
    [
        pytest.param({"workerGroups": [elastic("default", sharedMemory="2Gi")]}, True, id="shared memory"),
        pytest.param(
            {
                "workerGroups": [
                    elastic("default", template={"spec": {"containers": [{"name": "w", "image": "b"}]}})
                ]
            },
            True,
            id="image",
        ),
        pytest.param({"workerGroups": [elastic("default", minAvailable=1)]}, False, id="minAvailable"),
        pytest.param({"replicas": 2}, False, id="replicas"),
        pytest.param({"stream": {"maxUnackedFrames": 500}}, False, id="limits"),
        pytest.param({"failurePolicy": {"backoffLimit": 1}}, False, id="policy"),
    ],
)
def test_only_edits_of_the_template_roll(edit, rolls):
    pod = make_pod(0, job=make_job())
    plan = make_plan(make_job(**edit), observe([pod]), NOON)
    assert bool(deleted(plan)) == rolls


# --- suspend, end ----------------------------------------------------------------------------------------------------


def test_suspending_ends_every_pod_and_tells_readers_once_all_are_gone():
    job = make_job(suspend=True, replicas=2)
    pods = [make_pod(0), counted(make_pod(1, code=1), "failure", 1), make_pod(2, deleted_ago=1)]
    plan = make_plan(job, observe(pods), NOON)
    assert deleted(plan) == {("default-0-0", Why.SUSPENDED)}
    before = seen_before(job, observe(pods))
    plan = make_plan(before, observe(pods), NOON)
    assert deleted(plan) == {("default-0-0", Why.SUSPENDED), ("default-1-0", Why.SUSPENDED)}
    assert (plan.create, plan.marker) == ((), None)
    assert conditions_of(before.status)["Suspended"] == ("False", "Draining")
    empty = observe()
    assert make_plan(before, empty, NOON).marker.kind == "suspended"
    after = seen_before(before, empty)
    assert conditions_of(after.status)["Suspended"] == ("True", "Suspended")
    assert make_plan(after, observe(facts=make_facts(end=EndMarker("suspended"))), NOON).is_empty


def test_resuming_starts_the_clock_anew():
    suspended = seen_before(make_job(suspend=True), observe())
    assert suspended.status.start_time is None
    resumed = make_job(status=suspended.status, activeDeadlineSeconds=10)
    later = seen_before(resumed, observe(), NOON + 5000)
    assert later.status.start_time == "2026-01-01T13:23:20Z"
    assert conditions_of(later.status)["Suspended"] == ("False", "NotSuspended")
    assert make_plan(later, observe(), NOON + 5009).ending is None
    assert make_plan(later, observe(), NOON + 5010).ending.reason is Reason.DEADLINE_EXCEEDED


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        pytest.param({"frames": 10_000}, Reason.TOTAL_FRAMES_REACHED, id="row-45-all-frames"),
        pytest.param(
            {"frames": 10_000, "end": EndMarker("finished")}, Reason.TOTAL_FRAMES_REACHED, id="row-97-marked"
        ),
        pytest.param(
            {"frames": 500, "end": EndMarker("finished")}, Reason.COMPLETED_BY_REQUEST, id="row-118-asked"
        ),
        pytest.param({"frames": 9_999}, None, id="row-45-one-is-missing"),
        pytest.param({"frames": 500, "total_frames": None}, None, id="row-45-endless"),
    ],
)
@pytest.mark.parametrize("suspend", [False, True], ids=["running", "suspended"])
def test_a_job_is_complete_when_the_stream_says_so(facts, reason, suspend):
    plan = make_plan(make_job(suspend=suspend), observe([make_pod(0, code=0)], make_facts(**facts)), NOON)
    if reason is None:
        assert plan.ending is None
    else:
        assert (plan.ending.kind, plan.ending.reason) == (EndingKind.COMPLETE, reason)
        assert plan.count == ()


def test_whoever_ends_a_job_is_quoted():
    facts = make_facts(frames=500, end=EndMarker("finished", "Solved"))
    ending = make_plan(make_job(), observe([make_pod(0)], facts), NOON).ending
    assert ending.message == "completed by request with 500 frames: Solved"


def test_completion_wins_over_failures():
    job = make_job(failurePolicy={"backoffLimit": 0})
    plan = make_plan(job, observe([make_pod(0, code=64)], make_facts(frames=10_000)), NOON)
    assert plan.ending.kind is EndingKind.COMPLETE


def test_a_stream_that_was_ended_as_failed_fails_the_job():
    facts = make_facts(end=EndMarker("failed", "StalledDeadlineExceeded", "no frames"))
    ending = make_plan(make_job(), observe([make_pod(0)], facts), NOON).ending
    assert (ending.kind, ending.reason, ending.message) == (
        EndingKind.FAILED, Reason.STALLED_DEADLINE_EXCEEDED, "no frames",
    )  # fmt: skip


def test_lost_state_fails_the_job_and_is_never_a_start_from_zero():
    job = seen_before(make_job(), observe([make_pod(0)]))
    look = observe([make_pod(0)], make_facts(is_open=False))
    plan = make_plan(job, look, NOON)
    assert (plan.ending.reason, plan.open_stream) == (Reason.STATE_LOST, False)
    assert conditions_of(status_after(job, look))["RedisReady"] == ("False", "StateLost")


@pytest.mark.parametrize("kind", ["complete", "failed"])
def test_a_finished_job_is_wound_up_and_stays_finished(kind):
    job = make_job(failurePolicy={"backoffLimit": 0}, ttlSecondsAfterFinished=60)
    facts = make_facts(frames=10_000) if kind == "complete" else make_facts()
    pods = [make_pod(0, code=0 if kind == "complete" else 1), make_pod(1)]
    over = seen_before(job, observe(pods, facts))
    assert over.status.completion_time == "2026-01-01T12:00:00Z"
    plan = make_plan(over, observe(pods, facts), NOON)
    assert plan.marker.kind == ("finished" if kind == "complete" else "failed")
    assert (plan.create, plan.requeue_after_s) == ((), 60.0)
    told = make_facts(frames=10_000, end=plan.marker)
    # Whatever happens afterwards: pods vanish, the spec is edited, the stream is emptied.
    for later in (
        observe((), told),
        observe(pods, make_facts(is_open=False)),
        observe((), make_facts(frames=0)),
    ):
        edited = make_job(status=over.status, replicas=5, ttlSecondsAfterFinished=60, generation=2)
        again = make_plan(edited, later, NOON + 30)
        assert (again.create, again.ending) == ((), None)
        after = seen_before(edited, later, NOON + 30)
        assert conditions_of(after.status) == conditions_of(over.status)
        assert after.status.completion_time == over.status.completion_time
        assert after.status.observed_generation == 2
    assert make_plan(over, observe((), told), NOON + 59).delete_job is False
    assert make_plan(over, observe((), told), NOON + 60) == Plan(delete_job=True)


def test_the_end_marker_is_tried_again_while_the_stream_is_away():
    over = seen_before(make_job(failurePolicy={"backoffLimit": 0}), observe([make_pod(0, code=1)]))
    away = observe((), StreamTrouble(Reason.UNREACHABLE, "no route"))
    assert make_plan(over, away, NOON + 10).requeue_after_s == 15.0
    assert make_plan(over, away, NOON + 4000).requeue_after_s is None


def test_a_worker_of_a_strict_job_that_has_done_its_share_is_not_replaced():
    groups = [fixed("w", 2)]
    job = make_job(determinism="Strict", workerGroups=groups)
    pods = [make_pod(0, job=job, group="w", code=0), make_pod(1, job=job, group="w")]
    plan = make_plan(job, observe(pods, make_facts(frames=5_000)), NOON)
    assert (plan.create, plan.count, plan.delete, plan.ending) == ((), (), (), None)
    assert conditions_of(status_after(job, observe(pods)))["WorkersReady"] == ("True", "AllReady")
