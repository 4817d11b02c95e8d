"""Conditions: their times, messages and lifecycle; the status as it is written and read."""

from __future__ import annotations

import ast
import inspect
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from rollout_contract import reasons
from rollout_contract.status import (
    Condition,
    ConditionStatus,
    ConditionType,
    Reason,
    RolloutJobStatus,
    State,
    clip,
    condition,
    format_time,
    initial_conditions,
    is_finished,
    is_true,
    parse_time,
    set_condition,
)

TRUE, FALSE, UNKNOWN = ConditionStatus.TRUE, ConditionStatus.FALSE, ConditionStatus.UNKNOWN
NOON = datetime(2026, 1, 1, 12, 0, 0, 999_999, tzinfo=UTC)
LATER = NOON + timedelta(minutes=5)

EXAMPLE = {
    "observedGeneration": 4,
    "state": "Running",
    "startTime": "2026-01-01T10:00:00Z",
    "readyWorkers": "9/10",
    "replicas": 8,
    "readyReplicas": 7,
    "selector": "rolloutjob.dev/job-uid=x,rolloutjob.dev/worker-group=cpu",
    "seed": 7,
    "seedEpoch": 0,
    "conditions": [
        {
            "type": "WorkersReady",
            "status": "False",
            "reason": "ImagePullBackOff",
            "message": "cpu-3: example.registry/rollout-worker not found",
            "lastTransitionTime": "2026-01-01T10:00:00Z",
            "observedGeneration": 4,
        }
    ],
    "workerGroups": [
        {
            "name": "cpu",
            "desired": 8,
            "current": 8,
            "ready": 7,
            "updated": 8,
            "draining": 0,
            "failures": 3,
            "disruptions": 5,
            "templateHash": "6f1c",
        }
    ],
    "progress": {
        "frames": 4210688,
        "percent": 42,
        "framesPerSecond": 18500,
        "episodes": 4190,
        "lastFrameTime": "2026-01-01T10:00:00Z",
        "updateTime": "2026-01-01T10:00:00Z",
    },
    "weights": {"latestVersion": 118, "minLoadedVersion": 117, "maxLoadedVersion": 118},
    "stream": {
        "key": "rollout:{rl/halfcheetah-a/3f2a9c1d}:batches",
        "unackedFrames": 51200,
        "bytes": "310Mi",
    },
    "endpoints": {"gateway": "https://rollout-gateway.rl.svc/v1/namespaces/rl/rolloutjobs/halfcheetah-a"},
    "lastFailure": {
        "group": "cpu",
        "worker": 3,
        "attempt": 2,
        "container": "worker",
        "exitCode": 1,
        "reason": "Error",
        "message": "ValueError: …",
        "time": "2026-01-01T10:00:00Z",
    },
}


def make_condition(**changes):
    fields = {
        "type": "Ready",
        "status": TRUE,
        "reason": "WorkersReady",
        "message": "",
        "last_transition_time": "2026-01-01T12:00:00Z",
        "observed_generation": 1,
    }
    return Condition(**{**fields, **changes})


def put(conditions, type_=ConditionType.READY, **changes):
    arguments = {"status": TRUE, "reason": Reason.WORKERS_READY, "now": NOON, "generation": 1}
    return set_condition(conditions, type_, **{**arguments, **changes})


def test_the_example_comes_back_as_it_was():
    status = RolloutJobStatus.model_validate(EXAMPLE, by_name=False)

    assert status.to_document() == EXAMPLE
    assert status.state is State.RUNNING


def test_an_empty_status_says_nothing():
    assert RolloutJobStatus().to_document() == {"conditions": [], "workerGroups": []}


def test_what_a_newer_version_added_is_ignored():
    assert (
        RolloutJobStatus.model_validate({"news": 1, "progress": {"frames": 3, "news": 1}}).progress.frames
        == 3
    )


@pytest.mark.parametrize(
    "document",
    [
        pytest.param({"replicas": "8"}, id="text as number"),
        pytest.param({"state": "Walking"}, id="no state"),
        pytest.param({"startTime": "yesterday"}, id="no time"),
        pytest.param({"conditions": [{"type": "Ready"}]}, id="half a condition"),
    ],
)
def test_a_wrong_status_is_refused(document):
    with pytest.raises(ValidationError):
        RolloutJobStatus.model_validate(document)


def test_a_condition_that_is_new_is_added_at_the_end():
    before = (make_condition(type="Accepted"),)

    assert put(before) == (*before, make_condition())


@pytest.mark.parametrize(
    ("status", "time"),
    [
        pytest.param(TRUE, "2026-01-01T12:00:00Z", id="same status, same time"),
        pytest.param(FALSE, "2026-01-01T12:05:00Z", id="another status, another time"),
        pytest.param(UNKNOWN, "2026-01-01T12:05:00Z", id="unknown is another status"),
    ],
)
def test_the_time_moves_only_with_the_status(status, time):
    before = (make_condition(type="Accepted"), make_condition(), make_condition(type="Failed"))

    after = put(
        before, status=status, reason=Reason.STARTING, message="two of three", now=LATER, generation=2
    )

    assert after == (
        before[0],
        make_condition(
            status=status,
            reason="Starting",
            message="two of three",
            last_transition_time=time,
            observed_generation=2,
        ),
        before[2],
    )


def test_setting_the_same_twice_changes_nothing():
    once = put(())

    assert put(once, now=LATER) == once


@pytest.mark.parametrize(
    ("text", "limit", "clipped"),
    [
        pytest.param("abc", 3, "abc", id="fits"),
        pytest.param("abcdefgh", 6, "abc…", id="the head is kept"),
        pytest.param("äöüäöü", 8, "äö…", id="no half characters"),
        pytest.param("", 3, "", id="empty"),
    ],
)
def test_long_messages_keep_their_head(text, limit, clipped):
    assert clip(text, limit) == clipped
    assert len(clipped.encode()) <= limit


@given(st.text(alphabet="aä€😀", max_size=600))
def test_messages_of_conditions_have_at_most_a_kibibyte(text):
    (made,) = put((), message=text)

    assert len(made.message.encode()) <= 1024
    assert made.message == text or text.startswith(made.message[:-1])


def test_lookups():
    status = RolloutJobStatus(conditions=put((), status=FALSE))

    assert condition(status, ConditionType.READY) == status.conditions[0]
    assert condition(status, ConditionType.FAILED) is None
    assert not is_true(status, ConditionType.READY)
    assert not is_true(status, ConditionType.FAILED)
    assert is_true(RolloutJobStatus(conditions=put(())), ConditionType.READY)


@pytest.mark.parametrize(
    ("type_", "status", "finished"),
    [
        (ConditionType.COMPLETE, TRUE, True),
        (ConditionType.FAILED, TRUE, True),
        (ConditionType.COMPLETE, FALSE, False),
        (ConditionType.FAILED, UNKNOWN, False),
        (ConditionType.SUSPENDED, TRUE, False),
    ],
)
def test_a_job_is_finished_when_complete_or_failed(type_, status, finished):
    assert is_finished(RolloutJobStatus(conditions=put((), type_, status=status))) == finished


COMMON = {
    "Accepted": ("Unknown", "NotChecked"),
    "RedisReady": ("Unknown", "NotChecked"),
    "WorkersReady": ("Unknown", "NotChecked"),
    "Backpressured": ("Unknown", "NotChecked"),
    "WeightsStale": ("Unknown", "NotChecked"),
    "Stalled": ("Unknown", "NotChecked"),
    "Ready": ("Unknown", "NotChecked"),
    "Suspended": ("False", "NotSuspended"),
    "Complete": ("False", "InProgress"),
    "Failed": ("False", "InProgress"),
}


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        pytest.param({}, {}, id="usual"),
        pytest.param(
            {"spec.suspend": True}, {"Suspended": ("Unknown", "NotChecked")}, id="created suspended"
        ),
        pytest.param(
            {"spec.determinism": "Strict"}, {"Reproducible": ("True", "NoWorkerReplaced")}, id="strict"
        ),
    ],
)
def test_the_first_visit_sets_every_condition(changes, difference, job_with):
    conditions = initial_conditions(job_with(changes).spec, NOON, 3)

    assert {c.type: (c.status.value, c.reason) for c in conditions} == {**COMMON, **difference}
    assert {(c.last_transition_time, c.observed_generation) for c in conditions} == {
        ("2026-01-01T12:00:00Z", 3)
    }


def test_all_conditions_together_fit_the_list():
    assert len(ConditionType) <= 12


def test_times_are_utc_with_whole_seconds():
    assert (
        format_time(datetime(2026, 1, 1, 1, 30, 5, 7, tzinfo=timezone(timedelta(hours=2))))
        == "2025-12-31T23:30:05Z"
    )


@pytest.mark.parametrize(
    "function", [lambda: format_time(datetime(2026, 1, 1)), lambda: parse_time("2026-01-01T00:00:00")]
)
def test_times_have_a_zone(function):
    with pytest.raises(ValueError, match="has no time zone"):
        function()


@given(st.datetimes(min_value=datetime(1970, 1, 1), max_value=datetime(2200, 1, 1), timezones=st.just(UTC)))
def test_times_are_read_back(moment):
    assert parse_time(format_time(moment)) == moment.replace(microsecond=0)


@pytest.mark.parametrize("enum", [ConditionType, Reason], ids=lambda enum: enum.__name__)
def test_every_type_and_reason_is_documented_one_word(enum):
    body = next(
        n
        for n in ast.parse(inspect.getsource(reasons)).body
        if isinstance(n, ast.ClassDef) and n.name == enum.__name__
    )
    pairs = list(zip(body.body, body.body[1:], strict=False))
    documented = {
        name.targets[0].id
        for name, text in pairs
        if isinstance(name, ast.Assign)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
    }

    assert documented == set(enum.__members__)
    assert all(member.value.isalnum() and member.value[0].isupper() for member in enum)
