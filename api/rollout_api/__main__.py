"""`python -m rollout_api`: the gateway in a cluster."""

from __future__ import annotations

import sys

from rollout_api.program import main

if __name__ == "__main__":
    sys.exit(main())
