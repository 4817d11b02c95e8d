"""Starts a program that ends with its parent: `tether.py PARENT_PID PROGRAM ARGUMENTS…`.

Run as a script, in a bare interpreter, by whatever starts a child of a local run. The kernel is asked to kill the
program when its parent ends, however that ends (`kill -9` too), and the program then takes this process' place. A
`preexec_fn` would do the same, but may lock up when the parent has threads.
"""

import os
import signal
import sys
from collections.abc import Sequence

PR_SET_PDEATHSIG = 1


def command(program: Sequence[str]) -> list[str]:
    """The command line that runs `program` (a path and its arguments) tied to the calling process."""
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), *program]


def main() -> None:
    """Tie this process to its parent and become the program. Exit code 127 if it cannot be started."""
    parent, program = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the kernel knew
        os._exit(128 + signal.SIGKILL)
    try:
        os.execv(program[0], program)
    except OSError as error:
        print(f"cannot start {program[0]}: {error.strerror}", file=sys.stderr, flush=True)
        os._exit(127)


if __name__ == "__main__":
    main()
