"""Descriptors: waiting for several, giving them back."""

from __future__ import annotations

import os
import select
from collections.abc import Sequence


def readable(fds: Sequence[int], timeout_s: float) -> set[int]:
    """Which of these descriptors can be read (a pidfd: whose process ended) within the time."""
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    return {fd for fd, _ in poll.poll(timeout_s * 1000)}


def close_all(*fds: int) -> None:
    """Close those that are open (not negative)."""
    for fd in fds:
        if fd >= 0:
            os.close(fd)
