"""Whole runs of the CartPole example with different seeds: how often it learns, how long it takes.

`python -m benchmarks.learning --seeds 10` prints one line a seed and ends with 1 when more than one in ten did not reach
the target.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "cartpole"
TARGET_RETURN = 475.0
LIMIT_S = 180.0


@dataclass(frozen=True)
class Outcome:
    """How one run ended."""

    seed: int
    exit_code: int
    seconds: float
    mean_return: float
    frames: int

    @property
    def has_learned(self) -> bool:
        """Whether the run ended by itself, in time, with the target reached."""
        return self.exit_code == 0 and self.mean_return >= TARGET_RETURN and self.seconds <= LIMIT_S


def run_seed(seed: int, directory: Path) -> Outcome:
    """One `rolloutctl run` of the example in a directory of its own."""
    run_dir = directory / f"seed-{seed}"
    command = [sys.executable, "-m", "rollout_cli", "run", str(EXAMPLE / "job.yaml")]
    command += ["--learner", str(EXAMPLE / "learner.py"), "--seed", str(seed), "--run-dir", str(run_dir)]
    start = time.monotonic()
    with (directory / f"seed-{seed}.log").open("w") as log:
        code = subprocess.run(
            command, stdout=log, stderr=subprocess.STDOUT, timeout=4 * LIMIT_S, check=False
        ).returncode
    seconds = time.monotonic() - start
    result_file = run_dir / "result.json"
    result = json.loads(result_file.read_text()) if result_file.exists() else {}
    return Outcome(seed, code, seconds, float(result.get("mean_return", 0.0)), int(result.get("frames", 0)))


def main() -> int:
    """Run all seeds, print a line for each and the share that learned."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--keep", type=Path, help="keep the runs' directories here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        directory = options.keep or Path(scratch)
        directory.mkdir(parents=True, exist_ok=True)
        outcomes = []
        for seed in range(options.seeds):
            outcome = run_seed(seed, directory)
            outcomes.append(outcome)
            verdict = "learned" if outcome.has_learned else "NOT LEARNED"
            print(
                f"seed {seed}: {verdict}, mean return {outcome.mean_return:.1f}, {outcome.frames} frames, "
                f"{outcome.seconds:.0f} s, exit {outcome.exit_code}",
                flush=True,
            )
    learned = sum(o.has_learned for o in outcomes)
    print(f"{learned} of {len(outcomes)} seeds reached {TARGET_RETURN:.0f}")
    return 0 if 10 * learned >= 9 * len(outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
