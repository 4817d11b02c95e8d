"""Finds scenarios and runs them: one function per situation, in `scenarios/*.py`, each for several execution modes.

A scenario is a function that takes `make(num_workers, factory, **keywords)` and gives what is compared. `scenario`
names the rows of the behaviour table that it stands for, and the modes in which the oracle is right; ours must be
right in all modes of `MODES` that the scenario's `ours` names (all, unless it says otherwise).
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parity_api import IS_ORACLE, ParallelEnv, SerialEnv
from parity_record import plain

HERE = Path(__file__).resolve().parent.parent
SCENARIOS, EXPECTED = HERE / "scenarios", HERE / "expected"

ALL = ("serial", "parallel", "direct")
"""Execution modes: in this process; in children with shared buffers; in children without."""

MODES = ALL if IS_ORACLE else (*ALL, "one child")
"""Ours has one more: all environments in one child."""

Make = Callable[..., Any]


@dataclass(frozen=True)
class Scenario:
    """One situation. `right_in` are the oracle's modes whose values are right and agree."""

    name: str
    module: str
    rows: tuple[str, ...]
    run: Callable[[Make], Any]
    right_in: tuple[str, ...]
    ours: tuple[str, ...]


_FOUND: list[Scenario] = []


def scenario(
    *rows: str, right_in: tuple[str, ...] = ALL, ours: tuple[str, ...] | None = None
) -> Callable[[Callable[[Make], Any]], Callable[[Make], Any]]:
    """Declare a function as the scenario of these rows."""
    modes = MODES if ours is None else tuple(mode for mode in MODES if mode in ours)

    def declare(run: Callable[[Make], Any]) -> Callable[[Make], Any]:
        module = Path(run.__code__.co_filename).stem
        _FOUND.append(Scenario(run.__name__, module, rows, run, right_in, modes))
        return run

    return declare


def scenarios() -> list[Scenario]:
    """Every scenario, by file and in its order there."""
    if not _FOUND:
        for path in sorted(SCENARIOS.glob("*.py")):
            described = importlib.util.spec_from_file_location(f"parity_scenarios_{path.stem}", path)
            assert described is not None
            assert described.loader is not None
            described.loader.exec_module(importlib.util.module_from_spec(described))
    return list(_FOUND)


@contextmanager
def maker(mode: str) -> Iterator[Make]:
    """A function that makes batched environments in one mode; they are closed at the end."""
    made: list[Any] = []

    def make(num_workers: int, factory: Any, **keywords: Any) -> Any:
        made.append(_made(mode, num_workers, factory, keywords))
        return made[-1]

    make.mode = mode  # type: ignore[attr-defined]
    try:
        yield make
    finally:
        for env in made:
            # After a failure the oracle cannot be closed, and says so; ours can.
            with suppress(RuntimeError) if IS_ORACLE else nullcontext():
                env.close(raise_if_closed=False)


def _made(mode: str, num_workers: int, factory: Any, keywords: dict[str, Any]) -> Any:
    if mode == "serial":
        return SerialEnv(num_workers, factory, **keywords)
    more = {"mp_start_method": "fork", **keywords}
    if mode == "direct":
        more.setdefault("use_buffers", False)
    if not IS_ORACLE:
        more.setdefault("num_processes", 1 if mode == "one child" else min(3, num_workers))
    return ParallelEnv(num_workers, factory, **more)


def record(case: Scenario, mode: str) -> Any:
    """What a scenario gives in one mode, in its plain form."""
    with warnings.catch_warnings(), maker(mode) as make:
        warnings.simplefilter("ignore")
        return plain(case.run(make))
