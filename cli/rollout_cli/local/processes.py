"""Processes of a run: orphans come to us, are reaped while it goes on, and whole trees are gone at its end.

Called by `run`. Every program that a run starts leads a session of its own, so Ctrl-C reaches the run alone; what those
programs leave behind when they are killed (a simulator that an environment started) becomes our child and is found.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

log = logging.getLogger(__name__)

PR_SET_CHILD_SUBREAPER = 36
REAP_EVERY_S = 1.0
END_TIMEOUT_S = 10.0
"""After SIGKILL, a process can only stay while the kernel waits for a device; we do not."""


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """One line of the process table."""

    pid: int
    parent: int
    session: int
    is_zombie: bool


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends. Nothing happens where the system cannot do it."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


def process_table() -> dict[int, ProcessInfo]:
    """All processes by pid; empty where there is no /proc."""
    table = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, ValueError, IndexError):
            # The name, in brackets, may hold anything: what counts comes after the last bracket.
            fields = path.read_text().rpartition(")")[2].split()
            pid = int(path.parent.name)
            table[pid] = ProcessInfo(pid, int(fields[1]), int(fields[3]), fields[0] == "Z")
    return table


def descendants_of(pid: int, table: dict[int, ProcessInfo]) -> list[ProcessInfo]:
    """Children, their children and so on, parents first."""
    children: dict[int, list[ProcessInfo]] = {}
    for info in table.values():
        children.setdefault(info.parent, []).append(info)
    found = list(children.get(pid, ()))
    for info in found:
        found += children.get(info.pid, ())
    return found


async def reap_orphans() -> None:
    """Take the exit codes of adopted processes, until cancelled.

    What was started on purpose leads its own session and is waited for by whoever started it; anything else that is our
    child and a zombie was adopted.
    """
    while True:
        await asyncio.sleep(REAP_EVERY_S)
        for info in process_table().values():
            if info.parent == os.getpid() and info.is_zombie and info.session != info.pid:
                _reap(info.pid)


async def end_descendants() -> list[int]:
    """Kill every descendant and reap what is ours; returns the pids that were still alive. Waits for END_TIMEOUT_S."""
    killed: list[int] = []
    deadline = asyncio.get_running_loop().time() + END_TIMEOUT_S
    while True:
        found = descendants_of(os.getpid(), process_table())
        for info in found:
            if info.is_zombie:
                if info.parent == os.getpid():
                    _reap(info.pid)
            else:
                killed += [info.pid] if info.pid not in killed else []
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(info.pid, signal.SIGKILL)
        if not found or asyncio.get_running_loop().time() > deadline:
            return killed
        await asyncio.sleep(0.02)


def kill_descendants() -> None:
    """Kill every descendant now, without waiting."""
    for info in descendants_of(os.getpid(), process_table()):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(info.pid, signal.SIGKILL)


def _reap(pid: int) -> None:
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


async def end_process(process: asyncio.subprocess.Process, *, grace_s: float) -> None:
    """SIGTERM, after the grace SIGKILL; nothing if it has ended. Returns when it is gone, or END_TIMEOUT_S later."""
    for number, within_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, END_TIMEOUT_S)):
        if process.returncode is not None:
            return
        if within_s <= 0:
            continue
        with suppress(ProcessLookupError):
            process.send_signal(number)
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await process.wait()
    if process.returncode is None:
        log.error("process %d did not end within %g s after it was killed", process.pid, END_TIMEOUT_S)


def exit_text(code: int | None) -> str:
    """How a process ended, for people."""
    if code is not None and code < 0:
        with suppress(ValueError):
            return f"signal {signal.Signals(-code).name}"
    return f"exit code {code}"


def kill_session(leader: int) -> None:
    """Kill whatever runs in the session that `leader` began."""
    for info in process_table().values():
        if info.session == leader and not info.is_zombie:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(info.pid, signal.SIGKILL)
