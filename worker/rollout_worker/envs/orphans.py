"""Makes a child end with its parent, however the parent ended and whatever the child is doing.

Three watches, because each has a gap. The kernel's death signal acts at once even on a child that never
returns to Python, but speaks of the thread that forked it, so it is set only where that thread lives as long
as the parent does. Elsewhere a lifeline takes its place: a pipe whose end in the parent is closed with the
parent, at which the kernel sends the child SIGKILL. Both can be missing in a sandbox; a thread that sleeps on
the parent's pidfd needs neither.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import signal
import threading
from contextlib import suppress

PR_SET_PDEATHSIG = 1


def die_with_parent(parent_pid: int, *, lifeline: int | None) -> None:
    """End this process with SIGKILL once the process `parent_pid` is gone.

    `lifeline` is the reading end of a pipe whose writing end the parent alone holds; None says that this
    process was forked by the main thread of its parent, so that the death signal can be relied on.
    """
    if lifeline is None:
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    else:
        _signal_when_closed(lifeline)
    try:
        watched = os.pidfd_open(parent_pid)
    except ProcessLookupError:
        os.kill(os.getpid(), signal.SIGKILL)
        return
    threading.Thread(target=_watch, args=(watched,), name="rollout-parent-watch", daemon=True).start()


def _signal_when_closed(lifeline: int) -> None:
    with suppress(OSError):  # not offered everywhere; the thread is there too
        fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)


def _watch(pidfd: int) -> None:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    poll.poll()
    os.kill(os.getpid(), signal.SIGKILL)
