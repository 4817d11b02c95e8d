"""Stands over one pod of a local run, as an init process does in a container: `launcher.py PROGRAM ARGUMENTS…`.

Run as a script in a bare interpreter; the local cluster is its parent. Standard input is a lifeline: a pipe that nobody
writes to and whose other end the parent holds. The program's descendants, also those that left its session, are this
process' to end: when the program has ended, when the lifeline is cut (the parent died, even by `kill -9`), and on
SIGUSR1 (the grace is over) none of them is left. SIGTERM is passed on to the program alone. Ends with the program's
exit code, 128 + n if it was ended by signal n, 127 if it cannot be started. Knows the standard library only, to start
in milliseconds.
"""

import contextlib
import os
import select
import signal
import sys
import time

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
KILL_PATIENCE_S = 5.0
"""Processes that do not go away on SIGKILL for so long are stuck in the kernel: nothing more can be done."""


def main() -> None:
    """Start the program, wait for its end or ours, leave nothing behind."""
    is_linux = sys.platform == "linux"
    prctl = _prctl if is_linux else _no_prctl
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    wake = _watch_signals()
    me = os.getpid()
    program = os.fork()
    if program == 0:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != me:  # it died before the kernel knew
            os._exit(128 + signal.SIGKILL)
        _become(sys.argv[1:])
    code = _wait(program, wake)
    _end_all(program)
    os._exit(code)


def _become(arguments: list[str]) -> None:
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGCHLD, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    try:
        os.execvp(arguments[0], arguments)
    except OSError as error:
        os.write(2, f"cannot start {arguments[0]}: {error.strerror}\n".encode())
    os._exit(127)


def _watch_signals() -> int:
    """A descriptor on which the numbers of signals arrive."""
    read, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC) if hasattr(os, "pipe2") else os.pipe()
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return read


def _wait(program: int, wake: int) -> int:
    """Until the program has ended; its exit code."""
    while True:
        ready, _, _ = select.select([0, wake], [], [])
        numbers = os.read(wake, 256) if wake in ready else b""
        code = _reap(program)
        if code is not None:
            return code
        if 0 in ready or signal.SIGUSR1 in numbers:
            _kill_tree(os.getpid())
            return 128 + signal.SIGKILL
        if signal.SIGTERM in numbers:
            os.kill(program, signal.SIGTERM)


def _reap(program: int) -> int | None:
    """Collect what has ended; the program's exit code if it is among them."""
    code = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return code
        if pid == 0:
            return code
        if pid == program:
            code = os.waitstatus_to_exitcode(status)
            code = 128 - code if code < 0 else code


def _end_all(program: int) -> None:
    """SIGKILL to every descendant until there is none. Orphans come to us, so all of them are found in the end."""
    deadline = time.monotonic() + KILL_PATIENCE_S
    wait = 0.001
    while time.monotonic() < deadline:
        _kill_tree(os.getpid())
        _reap(program)
        if not _children(os.getpid()):
            return
        time.sleep(wait)
        wait = min(0.05, 2 * wait)


def _kill_tree(pid: int) -> None:
    for child in _children(pid):
        _kill_tree(child)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)


def _children(pid: int) -> list[int]:
    """Children of all threads of a process, none if it is gone."""
    found: list[int] = []
    with contextlib.suppress(OSError):  # the process is gone
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/children") as file:
                found += map(int, file.read().split())  # of a thread that ended, its siblings have them
    return found


def _prctl(option: int, value: int) -> None:
    import ctypes

    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _no_prctl(option: int, value: int) -> None:
    """Elsewhere the process group is what is ended; see the local cluster."""


if __name__ == "__main__":
    main()
