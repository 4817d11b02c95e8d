"""Prints what an extra of the project needs, without the project itself: `requirements_of.py pyproject.toml EXTRA`.

Used by the image build, so that dependencies are a layer of their own, which a change of our sources leaves as it is.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_REQUIREMENT = re.compile(r"(?P<name>[A-Za-z0-9._-]+)\s*(\[(?P<extras>[^\]]*)\])?")


def requirements(project: dict[str, Any], extra: str) -> Iterator[str]:
    """Requirement lines of an extra and of the extras of our own that it names, base dependencies first."""
    yield from project["dependencies"]
    yield from _of_extra(project, extra)


def _of_extra(project: dict[str, Any], extra: str) -> Iterator[str]:
    for line in project["optional-dependencies"][extra]:
        match = _REQUIREMENT.match(line)
        if match and match["name"] == project["name"]:
            for inner in (match["extras"] or "").split(","):
                yield from _of_extra(project, inner.strip())
        else:
            yield line


def main() -> None:
    path, extra = sys.argv[1:]
    project = tomllib.loads(Path(path).read_text(encoding="utf-8"))["project"]
    print("\n".join(dict.fromkeys(requirements(project, extra))))


if __name__ == "__main__":
    main()
