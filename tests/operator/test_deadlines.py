"""The three deadlines, and what counts as standing still."""

from __future__ import annotations

from dataclasses import replace

import pytest
from operator_builders import (
    NOON,
    beats,
    conditions_of,
    counted,
    elastic,
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
from rollout_contract.names import Slot
from rollout_contract.status import Reason
from rollout_operator.decisions import Motion, Outcome, Refusal
from rollout_operator.observed import StreamTrouble
from rollout_operator.plan import make_plan


def started(job, pods=None, now=NOON):
    """The job after it was up once."""
    return seen_before(
        job, observe(pods or [make_pod(0, job=job, now=now)], make_facts(job=job, now=now)), now
    )


# --- startup


@pytest.mark.parametrize(
    ("pod", "reason", "words"),
    [
        pytest.param(
            {"state": "pending", "reason": "ImagePullBackOff", "message": "back-off", "image": "reg/none:1"},
            "ImagePullBackOff",
            "reg/none:1",
            id="probe-P-42-image",
        ),
        pytest.param(
            {"state": "unschedulable"}, "Unschedulable", "0/2 nodes are available", id="probe-P-42-no-node"
        ),
        pytest.param(
            {"state": "pending", "reason": "CreateContainerConfigError", "message": 'secret "x" not found'},
            "CreateContainerConfigError",
            'secret "x" not found',
            id="probe-P-42-secret",
        ),
        pytest.param({"state": "starting"}, "Starting", "default-0: starting", id="row-25-never-ready"),
        pytest.param(
            {"code": 1, "message": "EnvError: boom"},
            "WorkerBackingOff",
            "EnvError: boom",
            id="row-25-crash-loop",
        ),
    ],
)
def test_a_job_that_never_gets_up_fails_with_the_worst_reason(pod, reason, words):
    job = make_job(startupDeadlineSeconds=60, failurePolicy={"backoffSeconds": 300})
    look = observe([make_pod(0, **pod)])
    before = seen_before(job, look)
    assert conditions_of(before.status)["WorkersReady"] == ("False", reason)
    assert words in message_of(before.status, "WorkersReady")
    assert make_plan(before, look, NOON + 59).ending is None
    assert make_plan(before, look, NOON + 55).requeue_after_s <= 5
    ending = make_plan(before, look, NOON + 60).ending
    assert ending.reason is Reason.STARTUP_DEADLINE_EXCEEDED
    assert reason in ending.message
    assert words in ending.message
    status = status_after(before, look, NOON + 60)
    assert conditions_of(status)["Failed"] == ("True", "StartupDeadlineExceeded")
    assert conditions_of(status)["WorkersReady"] == ("False", reason)


def test_the_worst_reason_of_many_pods_is_told():
    job = make_job(replicas=3)
    pods = [make_pod(0, state="starting"), make_pod(1, state="unschedulable"), make_pod(2)]
    status = status_after(job, observe(pods))
    assert conditions_of(status)["WorkersReady"] == ("False", "Unschedulable")
    assert message_of(status, "WorkersReady").endswith("0/2 nodes are available (and 1 more not ready)")


def test_a_server_that_stays_away_is_told_at_the_deadline():
    job = make_job(startupDeadlineSeconds=60)
    away = observe((), StreamTrouble(Reason.UNREACHABLE, "redis:6379 cannot be reached"))
    before = seen_before(job, away)
    assert conditions_of(before.status)["RedisReady"] == ("False", "Unreachable")
    ending = make_plan(before, away, NOON + 60).ending
    assert ending.reason is Reason.STARTUP_DEADLINE_EXCEEDED
    assert ending.message.endswith("Unreachable: redis:6379 cannot be reached")


def test_what_refused_the_pods_is_told_at_the_deadline():
    job = make_job(startupDeadlineSeconds=60)
    refusal = Refusal(Slot("default", 0), Reason.QUOTA_EXCEEDED, "exceeded quota: compute")
    status = status_after(job, observe(), outcome=Outcome(refusals=(refusal,)))
    assert conditions_of(status)["WorkersReady"] == ("False", "QuotaExceeded")
    ending = make_plan(job.model_copy(update={"status": status}), observe(), NOON + 60).ending
    assert ending.message.endswith("QuotaExceeded: default-0: exceeded quota: compute")


@pytest.mark.parametrize(
    ("min_available", "ready", "is_up"),
    [
        pytest.param(0, 0, False, id="row-46-one-is-the-least"),
        pytest.param(0, 1, True, id="row-46-one-is-enough"),
        pytest.param(2, 1, False, id="row-46-below-min-available"),
        pytest.param(2, 2, True, id="row-46-min-available"),
        pytest.param(9, 3, True, id="row-46-never-more-than-wanted"),
    ],
)
def test_up_means_min_available_in_every_group(min_available, ready, is_up):
    job = make_job(replicas=3, workerGroups=[elastic("default", minAvailable=min_available)])
    pods = [make_pod(i, job=job, state="ready" if i < ready else "starting") for i in range(3)]
    look = observe(pods)
    assert (make_plan(job, look, NOON).motion is not Motion.STARTING) == is_up
    ending = make_plan(seen_before(job, look), look, NOON + 600).ending
    assert (ending is None) == is_up


def test_a_job_that_was_up_once_is_degraded_and_does_not_fail_at_the_startup_deadline():
    job = started(make_job(startupDeadlineSeconds=60, stalledDeadlineSeconds=5000))
    look = observe([make_pod(0, attempt=1, state="unschedulable")])
    later = seen_before(job, look, NOON + 1000)
    assert make_plan(later, look, NOON + 1000).ending is None
    assert later.status.state == "Degraded"


def test_frames_are_proof_that_a_job_was_up():
    job = seen_before(make_job(startupDeadlineSeconds=60), observe())
    facts = make_facts(now=NOON + 70, frames=10, last_frame_time=NOON + 50)
    assert make_plan(job, observe((), facts), NOON + 70).motion is not Motion.STARTING


def test_a_job_scaled_to_zero_waits_for_ever_and_then_starts_with_a_fresh_clock():
    none = seen_before(make_job(replicas=0, startupDeadlineSeconds=60), observe())
    assert conditions_of(none.status)["WorkersReady"] == ("True", "ScaledToZero")
    assert make_plan(none, observe(), NOON + 9999).ending is None
    woken = make_job(replicas=1, startupDeadlineSeconds=60, status=none.status)
    assert make_plan(woken, observe(), NOON + 9999).ending is None
    after = seen_before(woken, observe(), NOON + 9999)
    assert make_plan(after, observe(), NOON + 9999 + 59).ending is None
    assert make_plan(after, observe(), NOON + 9999 + 60).ending is not None


# --- stalled


def look_at(now, **facts):
    facts.setdefault("heartbeats", beats(make_beat(0, seen=now)))
    return observe([make_pod(0)], make_facts(now=now, **facts))


def test_probe_p_36_standing_still_ends_the_job_and_is_told():
    job = started(make_job(stalledDeadlineSeconds=30))
    frames = {"frames": 200, "last_frame_time": NOON + 100}
    job = seen_before(job, look_at(NOON + 100, **frames), NOON + 100)
    plan = make_plan(job, look_at(NOON + 129, **frames), NOON + 129)
    assert (plan.motion, plan.ending, plan.requeue_after_s) == (Motion.MOVING, None, 1.0)
    look = look_at(NOON + 130, **frames)
    ending = make_plan(job, look, NOON + 130).ending
    assert ending.reason is Reason.STALLED_DEADLINE_EXCEEDED
    assert "after 200 frames" in ending.message
    over = seen_before(job, look, NOON + 130)
    assert conditions_of(over.status)["Stalled"] == ("True", "NoProgress")
    assert make_plan(over, look, NOON + 130).marker == EndMarker(
        "failed", "StalledDeadlineExceeded", ending.message
    )


@pytest.mark.parametrize(
    "held",
    [
        pytest.param({"is_backpressured": True}, id="probe-P-33-back-pressure"),
        pytest.param(
            {"heartbeats": beats(make_beat(0, "WaitingForWeights", seen=NOON + 5000))}, id="row-29-no-weights"
        ),
        pytest.param({"heartbeats": beats(make_beat(0, "Paused", seen=NOON + 5000))}, id="row-102-paced"),
    ],
)
def test_what_is_held_back_is_not_stalled_and_gets_the_whole_time_afterwards(held):
    job = started(make_job(stalledDeadlineSeconds=30))
    look = look_at(NOON + 5000, last_frame_time=NOON + 1, **held)
    plan = make_plan(job, look, NOON + 5000)
    assert (plan.motion, plan.ending) == (Motion.HELD_BACK, None)
    job = seen_before(job, look, NOON + 5000)
    assert conditions_of(job.status)["Stalled"] == ("Unknown", "HeldBack")
    free = look_at(NOON + 5001, last_frame_time=NOON + 1)
    job = seen_before(job, free, NOON + 5001)
    assert conditions_of(job.status)["Stalled"] == ("False", "FramesAdvancing")
    assert make_plan(job, look_at(NOON + 5030, last_frame_time=NOON + 1), NOON + 5030).ending is None
    assert make_plan(job, look_at(NOON + 5031, last_frame_time=NOON + 1), NOON + 5031).ending is not None


def test_one_worker_that_should_deliver_and_does_not_is_enough_to_stall():
    job = started(make_job(replicas=2, stalledDeadlineSeconds=30), [make_pod(0), make_pod(1)])
    now = NOON + 31
    facts = make_facts(now=now, heartbeats=beats(make_beat(0, "Paused", seen=now), make_beat(1, seen=now)))
    assert make_plan(job, observe([make_pod(0), make_pod(1)], facts), now).ending is not None


def test_a_silent_worker_holds_nobody_back():
    job = started(make_job(stalledDeadlineSeconds=30))
    look = look_at(NOON + 31, heartbeats=beats(make_beat(0, "Paused", seen=NOON)))
    assert make_plan(job, look, NOON + 31).ending.reason is Reason.STALLED_DEADLINE_EXCEEDED


def test_nothing_is_judged_while_the_stream_cannot_be_seen():
    job = started(make_job(stalledDeadlineSeconds=30))
    away = observe([make_pod(0)], StreamTrouble(Reason.UNREACHABLE, "no route"))
    assert make_plan(job, away, NOON + 9999).ending is None
    after = seen_before(job, away, NOON + 9999)
    assert conditions_of(after.status)["Stalled"] == ("Unknown", "RedisNotReady")
    assert after.status.progress == job.status.progress


def test_the_servers_clock_may_differ_from_ours():
    job = started(make_job(stalledDeadlineSeconds=30))
    facts = make_facts(now=NOON - 3600 + 100, last_frame_time=NOON - 3600 + 95, heartbeats=beats())
    assert make_plan(job, observe([make_pod(0)], facts), NOON + 100).ending is None
    facts = replace(facts, last_frame_time=NOON - 3600 + 60)
    assert make_plan(job, observe([make_pod(0)], facts), NOON + 100).ending is not None


# --- active


def test_the_active_deadline_counts_from_the_start_whatever_goes_on():
    job = started(make_job(activeDeadlineSeconds=100))
    assert make_plan(job, look_at(NOON + 99, last_frame_time=NOON + 99), NOON + 99).ending is None
    look = look_at(NOON + 100, last_frame_time=NOON + 100, is_backpressured=True)
    assert make_plan(job, look, NOON + 100).ending.reason is Reason.DEADLINE_EXCEEDED


def test_no_deadline_counts_while_suspended():
    limits = {"activeDeadlineSeconds": 1, "startupDeadlineSeconds": 1, "stalledDeadlineSeconds": 1}
    job = seen_before(make_job(suspend=True, **limits), observe())
    assert make_plan(job, observe(), NOON + 9999).ending is None


def test_the_longest_wait_is_until_the_next_moment_that_matters():
    job = make_job(
        replicas=2, failurePolicy={"backoffSeconds": 10}, activeDeadlineSeconds=20, startupDeadlineSeconds=15
    )
    job = seen_before(job, observe())
    pods = [counted(make_pod(0, code=1, ended_ago=0), "failure", 1), make_pod(1, state="starting")]
    assert make_plan(job, observe(pods), NOON + 2).requeue_after_s == 8.0
    leaving = [make_pod(0, state="starting"), make_pod(1, deleted_ago=0)]
    assert make_plan(job, observe(leaving), NOON + 1).requeue_after_s == 14.0
