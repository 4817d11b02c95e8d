"""Whether a learner that ended is started again, and when: a pure decision.

Called by `learner`. The limits are those of the job's failure policy; the learner has a count of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from rollout_contract.spec import FailurePolicy
from rollout_operator.failure import HEALTHY_AFTER_S, MAX_BACKOFF_S

HOPELESS_AFTER = 3
"""A learner that raises so often in a row without acking a single batch will not do better the next time."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How one attempt of the learner ended."""

    exit_code: int
    ran_s: float
    has_acked: bool
    """Whether a batch was acked while it ran."""

    @property
    def has_raised(self) -> bool:
        """Whether its own code ended it: a signal (a kill, no memory) says nothing about the next attempt."""
        return 0 < self.exit_code < 128


@dataclass(frozen=True, slots=True)
class History:
    """What the learner went through so far."""

    restarts: int = 0
    streak: int = 0
    """Ends in a row without HEALTHY_AFTER_S between them: what the back-off doubles with."""
    fruitless: int = 0
    """Exceptions in a row without an ack between them."""

    def after(self, ended: Ended) -> History:
        """With one more end that was no success."""
        return replace(
            self,
            restarts=self.restarts + 1,
            streak=1 if ended.ran_s >= HEALTHY_AFTER_S else self.streak + 1,
            fruitless=self.fruitless + 1 if ended.has_raised and not ended.has_acked else 0,
        )


@dataclass(frozen=True, slots=True)
class Restart:
    """Start it again after this many seconds."""

    after_s: float
    history: History


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Do not start it again. `reason` is for people."""

    reason: str


def decide(ended: Ended, history: History, policy: FailurePolicy) -> Restart | GiveUp:
    """What to do after an end with another code than 0."""
    now = history.after(ended)
    if now.fruitless >= HOPELESS_AFTER:
        return GiveUp(f"it failed {now.fruitless} times in a row without acking a batch")
    if now.restarts > policy.backoff_limit:
        return GiveUp(f"it failed {now.restarts} times; failurePolicy.backoffLimit is {policy.backoff_limit}")
    return Restart(min(MAX_BACKOFF_S, policy.backoff_seconds * 2.0 ** min(now.streak - 1, 32)), now)
