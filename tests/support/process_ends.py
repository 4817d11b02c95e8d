"""Processes under test: how they begin as from a terminal, how they are ended, and whether they have."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

END_WITHIN_S = 120.0
"""From SIGTERM on, on a machine that stalls: every program of ours has a bound of its own that is well below."""


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


def end(
    process: subprocess.Popen[Any], *, within_s: float = END_WITHIN_S, said: Callable[[], str] = str
) -> int:
    """Ask a process to end, and wait for it; its exit code. For the way out of a fixture: nothing of it is left.

    Where it does not end in time, AssertionError tells what was alive and what it `said`, and all of it is killed: a
    later test would be blamed for what it leaves or takes.
    """
    process.terminate()
    try:
        return process.wait(within_s)
    except subprocess.TimeoutExpired:
        alive = kill_tree(process.pid)
        process.wait(60)
        lines = "\n  ".join(alive)
        raise AssertionError(
            f"not ended {within_s:g} s after SIGTERM; alive were\n  {lines}\n{said()}"
        ) from None


def kill_tree(pid: int) -> list[str]:
    """Kill a process and all that descends from it, sessions of their own included; tells what was alive."""
    try:
        root = psutil.Process(pid)
        tree = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []
    alive = []
    for found in tree:
        with suppress(psutil.NoSuchProcess):
            alive.append(f"{found.pid} ({found.status()}) {' '.join(found.cmdline())}")
            found.kill()
    psutil.wait_procs(tree[1:], timeout=60)
    return alive
