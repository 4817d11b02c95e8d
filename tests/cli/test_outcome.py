from __future__ import annotations

import signal

import pytest

from rollout_cli.local.outcome import (
    FAILED_GRACE_S,
    LEARNER_GRACE_S,
    Ended,
    LearnerFacts,
    Move,
    code_of_signal,
    failure_text,
    next_move,
    own_words,
)

RUNS = {"Complete": "False", "Failed": "False"}
COMPLETE = {"Complete": "True", "Failed": "False"}
FAILED = {"Complete": "False", "Failed": "True"}

NONE = LearnerFacts(is_wanted=False)
READS = LearnerFacts(is_wanted=True)
DONE = LearnerFacts(is_wanted=True, has_ended=True)
GIVEN_UP = LearnerFacts(is_wanted=True, failure="it raised")


@pytest.mark.parametrize(
    ("conditions", "learner", "finished_for_s", "expected"),
    [
        pytest.param({}, NONE, 0.0, Move.GO_ON, id="nothing is known yet"),
        pytest.param(RUNS, NONE, 0.0, Move.GO_ON, id="runs without a learner"),
        pytest.param(RUNS, READS, 0.0, Move.GO_ON, id="runs with one"),
        pytest.param(RUNS, DONE, 0.0, Move.COMPLETE_JOB, id="the learner has what it wanted"),
        pytest.param(RUNS, GIVEN_UP, 0.0, Ended(1, "it raised"), id="the learner is given up"),
        pytest.param(COMPLETE, NONE, 0.0, Ended(0), id="complete"),
        pytest.param(COMPLETE, READS, 1.0, Move.GO_ON, id="complete, the learner still reads"),
        pytest.param(COMPLETE, DONE, 1.0, Ended(0), id="complete, and the learner is done"),
        pytest.param(COMPLETE, GIVEN_UP, 1.0, Ended(1, "it raised"), id="complete, the learner failed"),
        pytest.param(FAILED, NONE, 0.0, Ended(1), id="failed"),
        pytest.param(FAILED, READS, 1.0, Move.GO_ON, id="failed, the learner is about to notice"),
        pytest.param(FAILED, READS, FAILED_GRACE_S, Ended(1), id="failed, the learner does not end"),
        pytest.param(FAILED, DONE, 0.0, Ended(1), id="failed, the learner ended"),
        pytest.param(FAILED, GIVEN_UP, 0.0, Ended(1), id="failed: the job's failure is the cause"),
    ],
)
def test_what_a_run_does_next(conditions, learner, finished_for_s, expected):
    assert next_move(conditions, learner, finished_for_s=finished_for_s) == expected


def test_a_learner_is_not_waited_for_without_end():
    ended = next_move(COMPLETE, READS, finished_for_s=LEARNER_GRACE_S)

    assert isinstance(ended, Ended)
    assert (ended.code, "did not end within 600 s" in ended.problem) == (1, True)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)], ids=str
)
def test_signals_give_the_codes_that_shells_know(number, code):
    assert code_of_signal(number) == code


def test_a_failure_names_reason_and_worker():
    document = {
        "status": {
            "conditions": [
                {"type": "Complete", "status": "False", "reason": "InProgress"},
                {
                    "type": "Failed",
                    "status": "True",
                    "reason": "BackoffLimitExceeded",
                    "message": "7 worker failures\nTraceback: …",
                },
            ],
            "lastFailure": {"group": "default", "worker": 3, "attempt": 2, "exitCode": 1, "reason": "Error"},
        }
    }

    assert failure_text(document) == (
        "the job failed: BackoffLimitExceeded: 7 worker failures\nworker default-3, attempt 2, exit code 1:"
    )


LOG = """12:00 INFO rollout_worker: collecting
12:01 ERROR rollout_worker: worker default-0-0 ends with code 1
Traceback (most recent call last):
  File "loop.py", line 1, in run
EnvError: environment 1 during step: ValueError: no
Traceback (most recent call last):
  File "mine.py", line 9, in step
ValueError: no
environment 1 during step: ValueError: no
Traceback (most recent call last):
  File "mine.py", line 9, in step
ValueError: no"""


@pytest.mark.parametrize(
    ("message", "words"),
    [
        pytest.param(
            "EnvError: environment 1 during step: ValueError: no\nTrace…",
            LOG[LOG.rindex("environment 1") :],
            id="its error",
        ),
        pytest.param("EnvError: something else", LOG, id="not in the log"),
        pytest.param("", LOG, id="killed"),
    ],
)
def test_of_a_workers_log_its_own_error_is_shown(message, words):
    assert own_words(LOG, message) == words


def test_a_failure_of_which_nothing_is_known():
    assert failure_text({}) == "the job failed: unknown"
