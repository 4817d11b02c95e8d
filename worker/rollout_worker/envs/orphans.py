"""Makes a child end with its parent, however the parent ended and whatever the child is doing.

Two watches, because each has a gap. The kernel's death signal acts at once even on a child that never returns
to Python, but speaks of the thread that forked it, so it is set only where that thread lives as long as its
process. A thread that sleeps on the parent's pidfd covers all other ways of starting.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import threading

PR_SET_PDEATHSIG = 1


def die_with_parent(parent_pid: int, *, is_direct_child: bool) -> None:
    """End this process with SIGKILL once the process `parent_pid` is gone.

    `is_direct_child` says that this process was forked by the main thread of its parent (or of a fork server,
    which itself ends with the parent), so that the death signal can be relied on.
    """
    if is_direct_child:
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    try:
        watched = os.pidfd_open(parent_pid)
    except ProcessLookupError:
        os.kill(os.getpid(), signal.SIGKILL)
        return
    threading.Thread(target=_watch, args=(watched,), name="rollout-parent-watch", daemon=True).start()


def _watch(pidfd: int) -> None:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    poll.poll()
    os.kill(os.getpid(), signal.SIGKILL)
