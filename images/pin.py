"""Writes images/constraints.txt: the exact versions that images are built with (`make pins`).

Taken from the environment that runs it, which is the one that the tests passed in: every distribution that an image's
extra needs, directly or not.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from requirements_of import requirements

HERE = Path(__file__).parent
EXTRAS = ("operator", "api", "worker", "learner", "local")
TARGET = HERE / "constraints.txt"
_HEADER = "# Written by `make pins` from an environment that the tests passed in.\n"


def closure(lines: Iterable[str]) -> dict[str, str]:
    """Name and version of everything that these requirements need, directly or not."""
    found: dict[str, str] = {}
    seen: set[tuple[str, str]] = set()
    todo = [needed for line in lines for needed in _needed(line, extra="")]
    while todo:
        name, extra = todo.pop()
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        try:
            package = distribution(name)
        except PackageNotFoundError:
            continue  # a requirement of another platform
        found[name] = package.version.partition("+")[0]
        for line in package.requires or ():
            todo += _needed(line, extra=extra)
    return found


def _needed(line: str, *, extra: str) -> list[tuple[str, str]]:
    """What a requirement asks for, once for itself and once for each extra; nothing where its marker does not hold."""
    requirement = Requirement(line)
    if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
        return []
    return [(canonicalize_name(requirement.name), inner) for inner in ("", *requirement.extras)]


def main() -> None:
    project = tomllib.loads((HERE.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    pins = closure(line for extra in EXTRAS for line in requirements(project, extra))
    TARGET.write_text(_HEADER + "".join(f"{name}=={pins[name]}\n" for name in sorted(pins)), encoding="utf-8")
    print(f"{TARGET.name}: {len(pins)} distributions")


if __name__ == "__main__":
    main()
