"""How a run ends: a pure decision from the job, the learner and what the user wants, and the words for it.

Called by `run` after every look. Knows no clock: times come in.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from rollout_cli.errors import Exit

LEARNER_GRACE_S = 600.0
"""After Complete, for the learner to read what is left and to end."""
MAX_LOG_LINES = 40
FAILED_GRACE_S = 5.0
"""After Failed, for the learner to notice and to write down what it has."""

COMPLETED_BY_LEARNER = "CompletedByLearner"
"""Reason of the end of a job whose learner ended with code 0 while it ran."""


class Move(Enum):
    """What the run does now."""

    GO_ON = auto()
    COMPLETE_JOB = auto()
    """The learner has what it wanted: end the job with the frames that it has."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The run is over. `problem` (empty: none) is printed last."""

    code: int
    problem: str = ""


@dataclass(frozen=True, slots=True)
class LearnerFacts:
    """The learner: whether there is one, whether it ended well, and why it was given up (empty: it was not)."""

    is_wanted: bool
    has_ended: bool = False
    failure: str = ""

    @property
    def runs(self) -> bool:
        """Whether something is still to be expected from it."""
        return self.is_wanted and not self.has_ended and not self.failure


def next_move(conditions: Mapping[str, str], learner: LearnerFacts, *, finished_for_s: float) -> Move | Ended:
    """What to do. `conditions`: type → status; `finished_for_s`: since the job was first seen Complete or Failed."""
    if conditions.get("Failed") == "True":
        waits = learner.runs and finished_for_s < FAILED_GRACE_S
        return Move.GO_ON if waits else Ended(Exit.FAILED)
    if learner.failure:
        return Ended(Exit.FAILED, learner.failure)
    if conditions.get("Complete") != "True":
        return Move.COMPLETE_JOB if learner.has_ended else Move.GO_ON
    if not learner.runs:
        return Ended(Exit.OK)
    if finished_for_s < LEARNER_GRACE_S:
        return Move.GO_ON
    return Ended(
        Exit.FAILED, f"the learner did not end within {LEARNER_GRACE_S:.0f} s after the job was complete"
    )


def code_of_signal(number: int) -> int:
    """The exit code of a program that a signal ended."""
    return {signal.SIGINT: Exit.INTERRUPTED, signal.SIGTERM: Exit.TERMINATED}.get(
        signal.Signals(number), 128 + number
    )


def failure_text(document: Mapping[str, Any]) -> str:
    """Why the job failed, in a line or two: the condition's reason, and the worker that failed last."""
    status = document.get("status") or {}
    conditions = status.get("conditions") or ()
    failed: Mapping[str, Any] = next((c for c in conditions if c["type"] == "Failed"), {})
    words = str(failed.get("message") or "").splitlines()
    lines = [": ".join(["the job failed", str(failed.get("reason", "unknown")), *words[:1]])]
    last = status.get("lastFailure")
    if last:
        code = f", exit code {last['exitCode']}" if last.get("exitCode") is not None else ""
        lines.append(f"worker {last['group']}-{last['worker']}, attempt {last['attempt']}{code}:")
    return "\n".join(lines)


def own_words(log: str, message: str) -> str:
    """A failed worker's last error out of its log, whole: `message` is how it begins, cut after some hundred bytes.

    A worker that could say nothing any more (it was killed) has no message; then the end of its log has to do.
    """
    begin = message.partition("\n")[0].partition(": ")[2]
    at = log.rfind(f"\n{begin}") if begin else -1
    return log[at + 1 :] if at >= 0 else "\n".join(log.splitlines()[-MAX_LOG_LINES:])
