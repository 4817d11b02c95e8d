"""`python -m rollout_api`: the gateway in a cluster."""

from __future__ import annotations

import os
import signal
import sys


def start() -> int:
    """Import and run the program; its exit code.

    As the first process of a container, one without a handler is not ended by SIGTERM at all; until the program has its
    own, nothing has begun that must end in order.
    """
    signal.signal(signal.SIGTERM, lambda number, frame: os._exit(0))
    from rollout_api.program import main

    return main()


if __name__ == "__main__":
    sys.exit(start())
