"""`rolloutctl logs`: the end of a log of a local run, or which logs there are. Called by `main`."""

from __future__ import annotations

import argparse
from collections import deque
from pathlib import Path

from rollout_cli.errors import Exit, UsageError
from rollout_cli.local.run_dir import DEFAULT_BASE, RunDir, newest_run


def command(arguments: argparse.Namespace) -> int:
    """Print the last lines of every log whose name begins with the one asked for."""
    run = RunDir(arguments.run_dir.absolute()) if arguments.run_dir else newest_run(DEFAULT_BASE)
    logs = sorted(run.logs.glob("*.log"))
    if not arguments.who:
        print("\n".join(path.stem for path in logs))
        return Exit.OK
    chosen = [path for path in logs if _is_meant(path.stem, arguments.who)]
    if not chosen:
        known = ", ".join(path.stem for path in logs) or "none"
        raise UsageError(f"{run.path} has no log of {arguments.who!r}; there are: {known}")
    for path in chosen:
        if len(chosen) > 1:
            print(f"== {path.stem}")
        for line in last_lines(path, arguments.lines):
            print(line)
    return Exit.OK


def last_lines(path: Path, count: int) -> list[str]:
    """The last `count` lines of a text file; 0: all of them."""
    with path.open(errors="replace") as file:
        return [line.rstrip("\n") for line in deque(file, maxlen=count or None)]


def _is_meant(stem: str, who: str) -> bool:
    """`default-0` means all attempts of that worker (`default-0-0`, or with the job's name in front)."""
    return stem == who or f"-{stem}-".find(f"-{who}-") >= 0
