"""`python -m benchmarks`: every family, one after the other, each in a process of its own."""

from __future__ import annotations

import subprocess
import sys

FAMILIES = ("envs", "collectors", "stream", "pipeline", "gateway")


def main() -> int:
    """Run all families with the given options; the highest of their exit codes."""
    options = sys.argv[1:]
    return max(
        subprocess.run([sys.executable, "-m", f"benchmarks.{f}", *options], check=False).returncode
        for f in FAMILIES
    )


if __name__ == "__main__":
    sys.exit(main())
