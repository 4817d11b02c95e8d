"""`python tests/rows.py`: the rows of the design's tables that no test stands for.

The tables' row ids are kept in `tests/rows/*.txt`, one a line; a test says which rows it stands for with the marker
`row`. Prints what is missing, and marks of rows that no table has; ends with 1 where there are any.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent


def rows_of(table: Path) -> list[str]:
    """The ids of a table, in its order; empty lines and comments are left out."""
    lines = (line.partition("#")[0].strip() for line in table.read_text().splitlines())
    return [line for line in lines if line]


def marked_in(source: str) -> Iterator[str]:
    """The ids in the calls of `pytest.mark.row` of a module's text."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "row":
            for argument in node.args:
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                    yield argument.value


def marked(folder: Path) -> dict[str, list[str]]:
    """Each id that a test below a folder is marked with, and the files of such tests."""
    found: dict[str, list[str]] = {}
    for path in sorted(folder.rglob("test_*.py")):
        for row in marked_in(path.read_text()):
            found.setdefault(row, []).append(str(path.relative_to(folder)))
    return found


def report(tables: dict[str, list[str]], marks: dict[str, list[str]]) -> list[str]:
    """One line for each table with rows that no test stands for, and one for each mark of an unknown row."""
    lines = []
    known: set[str] = set()
    for name, rows in tables.items():
        known.update(rows)
        missing = [row for row in rows if row not in marks]
        if missing:
            lines.append(f"{name}: {len(missing)} of {len(rows)} rows have no test: {', '.join(missing)}")
    prefixes = {row.partition("-")[0] for row in known}
    for row in marks:
        if row not in known and row.partition("-")[0] in prefixes:
            lines.append(f"{', '.join(marks[row])}: marked with {row}, which no table has")
    return lines


def main() -> int:
    """Print the report; gives the exit code."""
    tables = {path.stem: rows_of(path) for path in sorted((HERE / "rows").glob("*.txt"))}
    lines = report(tables, marked(HERE))
    total = sum(map(len, tables.values()))
    print("\n".join(lines) if lines else f"all {total} rows have a test")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
