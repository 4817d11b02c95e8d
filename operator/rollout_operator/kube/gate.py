"""Whether the operator may write: it holds the Lease, and the installed CRD fits. Asked before every write."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from rollout_operator.cluster import ClusterError

Reason = Callable[[], str]
"""Why nothing may be written now; empty: it may be."""


class WritesHeld(ClusterError):
    """Nothing is written for now: the Lease is not ours (any more), or the CRD does not fit."""


@dataclass(slots=True)
class Gate:
    """Closed as long as one of its conditions gives a reason."""

    conditions: list[Reason] = field(default_factory=list)

    @property
    def reason(self) -> str:
        """Why it is closed; empty: it is open."""
        return next((reason for condition in self.conditions if (reason := condition())), "")

    def require(self) -> None:
        """WritesHeld if it is closed."""
        reason = self.reason
        if reason:
            raise WritesHeld(f"nothing is written: {reason}")
