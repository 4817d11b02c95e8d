"""`python -m rollout_worker`: one worker, as the pod's environment says."""

import os
import signal
import sys

DRAINED = 143
"""As `rollout_contract.exits` says, which is not imported yet."""


def start() -> int:
    """Import and run the program; its exit code.

    As the first process of a container, one without a handler is not ended by SIGTERM at all; until the program has its
    own, nothing has begun that must end in order.
    """
    signal.signal(signal.SIGTERM, lambda number, frame: os._exit(DRAINED))
    from rollout_worker.main import main

    return main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(start())
