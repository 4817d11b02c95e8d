"""Interleaves the cases of a table, and prints medians with their spread and the ratio to a reference case.

A machine's speed drifts, so that an absolute figure means little: every round runs each case once, in turn, and a ratio is
taken within the round. A peer that is not installed becomes a row that says so.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path

Work = Callable[[], int]
"""Does a portion of the work, and says how many units (frames, steps, bytes) that was."""


@dataclass(frozen=True)
class Case:
    """One row: `open` prepares and yields the work; ImportError means that the peer is not installed."""

    name: str
    open: Callable[[], AbstractContextManager[Work]]


@dataclass
class Row:
    """What was measured of a case: units per second, one figure a round."""

    name: str
    rates: list[float] = field(default_factory=list)
    missing: str = ""

    @property
    def median(self) -> float:
        """Median rate; 0 if the case did not run."""
        return statistics.median(self.rates) if self.rates else 0.0


@dataclass(frozen=True)
class Table:
    """Cases that are compared with the case named `reference`."""

    title: str
    unit: str
    reference: str
    cases: Sequence[Case]


def measure(table: Table, *, rounds: int, seconds: float) -> list[Row]:
    """Run every case once per round for about `seconds`, all opened beforehand, one round of warm-up not counted."""
    rows = [Row(case.name) for case in table.cases]
    with ExitStack() as stack:
        works: list[Work | None] = []
        for case, row in zip(table.cases, rows, strict=True):
            try:
                works.append(stack.enter_context(case.open()))
            except ImportError as error:
                row.missing = f"not installed: {error.name}"
                works.append(None)
        for number in range(rounds + 1):
            for work, row in zip(works, rows, strict=True):
                if work is not None:
                    rate = _rate_of(work, seconds if number else seconds / 4)
                    row.rates += [rate] if number else []
    return rows


def _rate_of(work: Work, seconds: float) -> float:
    units, start = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - start) < seconds:
        units += work()
    return units / elapsed


def print_table(table: Table, rows: Sequence[Row]) -> None:
    """One line a case: median, spread, and the reference's median ratio to it (how many times faster we are)."""
    reference = next(row for row in rows if row.name == table.reference)
    print(f"\n{table.title} ({table.unit}/s)")
    print(f"{'case':<34}{'median':>12}{'min':>12}{'max':>12}{'ours / it':>11}")
    for row in rows:
        if row.missing:
            print(f"{row.name:<34}{row.missing:>12}")
            continue
        ratio = statistics.median(a / b for a, b in zip(reference.rates, row.rates, strict=True))
        print(
            f"{row.name:<34}{row.median:>12,.0f}{min(row.rates):>12,.0f}{max(row.rates):>12,.0f}{ratio:>11.2f}"
        )


def arguments(description: str) -> argparse.Namespace:
    """The options that every family has."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "--short", action="store_true", help="three short rounds instead of seven longer ones"
    )
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    return parser.parse_args()


def run(description: str, tables: Callable[[], Iterator[Table]]) -> None:
    """Measure, print and, with --out, write all tables of a family."""
    options = arguments(description)
    rounds, seconds = (3, 0.6) if options.short else (7, 2.0)
    figures = []
    for table in tables():
        rows = measure(table, rounds=rounds, seconds=seconds)
        print_table(table, rows)
        figures.append(
            {
                "title": table.title,
                "unit": f"{table.unit}/s",
                "rows": [{"name": r.name, "rates": r.rates, "missing": r.missing} for r in rows],
            }
        )
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(figures, indent=1))


def end(process: subprocess.Popen[str] | subprocess.Popen[bytes]) -> None:
    """Ask a program that was measured to end, and kill it where it does not."""
    process.terminate()
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
