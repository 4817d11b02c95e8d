"""Processes under test: how they begin as from a terminal, and whether they have ended."""

from __future__ import annotations

import signal
from pathlib import Path


def as_from_a_terminal() -> None:
    """To be called in a new process before its program: what runs in the background of a shell ignores SIGINT, and so
    would all that is started there.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def is_gone(pid: int) -> bool:
    """Whether a process has ended, though nobody may have waited for it: the first process of some machines does so late."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):  # it may go while it is read
        return True
