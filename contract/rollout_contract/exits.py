"""Exit codes of workers, and what each tells the operator. The table is part of the contract."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """How a worker process ends."""

    FINISHED = 0
    """The job's frames are all appended; nothing is left to do."""
    ERROR = 1
    """An environment or the policy raised, timed out, or returned what its spec does not allow. Counted; replaced."""
    USAGE = 2
    """Wrong command line or pod environment: a fault of the platform, not of the user's code. Counted; replaced."""
    CONFIGURATION = 64
    """Entrypoint missing, syntax error, layout that does not fit: no replacement can help. Fails the job."""
    STATE_LOST = 70
    """The server lost the job's keys. Fails the job: it never starts again from zero by itself."""
    STREAM_LOST = 75
    """The server stayed away for longer than the worker would wait. Counted; replaced."""
    FENCED = 76
    """A newer attempt of the same worker has written. Not counted, not replaced: its successor is there."""
    DRAINED = 143
    """Ended in order on SIGTERM: batch finished or dropped, environments closed. Not counted."""
