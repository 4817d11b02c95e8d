"""Writes what the oracle gives into `expected/`, or, with `--check`, says what differs from what is there.

Run by `make oracle` with the interpreter of the oracle's virtual environment. The modes in which the oracle is
right must agree with one another.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ["PARITY_API"] = "torchrl"
sys.path.insert(0, str(Path(__file__).resolve().parent / "support"))

from parity_record import differences, spelled
from parity_run import EXPECTED, Scenario, record, scenarios


def recorded(case: Scenario) -> dict[str, Any]:
    """The rows and values of a scenario. Raises RuntimeError where the oracle's modes disagree."""
    first, *others = case.right_in
    values = record(case, first)
    for mode in others:
        found = list(differences(values, record(case, mode)))
        if found:
            raise RuntimeError(f"{case.module}.{case.name}: {first} and {mode} disagree: {'; '.join(found)}")
    return {"rows": list(case.rows), "modes": list(case.right_in), "values": values}


def main(arguments: list[str]) -> int:
    """Record all scenarios, or those whose name holds an argument; gives the exit code."""
    is_check = "--check" in arguments
    wanted = [word for word in arguments if not word.startswith("--")]
    problems: list[str] = []
    kept: set[Path] = set()
    for case in scenarios():
        path = EXPECTED / case.module / f"{case.name}.json"
        kept.add(path)
        if wanted and not any(word in f"{case.module}.{case.name}" for word in wanted):
            continue
        print(f"{case.module}.{case.name}", flush=True)
        try:
            made = recorded(case)
        except Exception as error:
            problems.append(f"{case.module}.{case.name}: {type(error).__name__}: {error}")
            continue
        if is_check:
            stored = json.loads(path.read_text()) if path.exists() else {}
            problems += [f"{path.name}{line}" for line in differences(stored, made)]
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(spelled(made))
    stale = [path for path in EXPECTED.rglob("*.json") if path not in kept]
    problems += [f"{path.name}: no scenario has this name" for path in stale if is_check]
    for path in stale if not is_check else []:
        path.unlink()
    print("\n".join(problems), file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
