"""`python -m rollout_operator`: the operator on a real cluster."""

from __future__ import annotations

import sys

from rollout_operator.program import main

if __name__ == "__main__":
    sys.exit(main())
