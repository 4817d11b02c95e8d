"""Writes images/constraints.txt: the exact versions that images are built with (`make pins`).

Taken from the environment that runs it, which is the one that the tests passed in: every distribution that an image's
extra needs, directly or not.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

EXTRAS = ("operator", "api", "worker", "learner", "local")
TARGET = Path(__file__).with_name("constraints.txt")
_HEADER = "# Written by `make pins` from an environment that the tests passed in.\n"


def closure(root: str, extras: tuple[str, ...]) -> dict[str, str]:
    """Name and version of everything that the root needs with these extras, itself left out."""
    found: dict[str, str] = {}
    seen: set[tuple[str, str]] = set()
    todo = [(root, extra) for extra in ("", *extras)]
    while todo:
        name, extra = todo.pop()
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        try:
            package = distribution(name)
        except PackageNotFoundError:
            continue  # a requirement of another platform
        if name != root:
            found[canonicalize_name(name)] = package.version.partition("+")[0]
        for line in package.requires or ():
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                needed = canonicalize_name(requirement.name)
                todo += [(needed, inner) for inner in ("", *requirement.extras)]
    return found


def main() -> None:
    pins = closure("rolloutjob", EXTRAS)
    TARGET.write_text(
        _HEADER + "".join(f"{name}=={pins[name]}\n" for name in sorted(pins)), encoding="utf-8"
    )
    print(f"{TARGET.name}: {len(pins)} distributions")


if __name__ == "__main__":
    main()
