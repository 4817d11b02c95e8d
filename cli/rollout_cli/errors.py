"""How `rolloutctl` fails: what a command raises, and the exit code that each gives.

Commands raise; `main` alone prints and exits. Every other error of the tree (`SpecError`, `StreamError` …) counts as
`UsageError` does: nothing was started, exit code 2.
"""

from __future__ import annotations

from enum import IntEnum

from rollout_contract.errors import RolloutError


class Exit(IntEnum):
    """Exit codes of `rolloutctl`."""

    OK = 0
    FAILED = 1
    """The job or the learner failed, or the gateway refused."""
    USAGE = 2
    """Bad input, or something that is missing: nothing was started, nothing is left."""
    INTERRUPTED = 130
    TERMINATED = 143


class UsageError(RolloutError):
    """What was asked for cannot be done as it was asked. The text says what to change."""


class GatewayError(RolloutError):
    """The gateway answered with an error, or not at all. `status` is its HTTP status, 0 for no answer."""

    def __init__(self, message: str, *, status: int = 0) -> None:
        super().__init__(message)
        self.status = status
