"""Writes a bill of materials of an image (CycloneDX 1.5, JSON): Python distributions and Debian packages.

Run by the image build with the image's own interpreter, so that it lists what is there and not what was asked for.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

DPKG_STATUS = Path("/var/lib/dpkg/status")
Component = dict[str, Any]


def python_components() -> Iterator[Component]:
    """Every installed distribution."""
    for package in distributions():
        meta = package.metadata
        name, version = meta["Name"].lower().replace("_", "-"), package.version
        component = _component(name, version, f"pkg:pypi/{name}@{version}")
        licence = meta.get("License-Expression") or meta.get("License")
        if licence and len(licence) <= 100:
            component["licenses"] = [{"license": {"name": licence}}]
        yield component


def debian_components(status: str) -> Iterator[Component]:
    """Every installed package of the distribution below."""
    for paragraph in status.split("\n\n"):
        fields = dict(
            line.split(": ", 1) for line in paragraph.splitlines() if ": " in line and line[:1] != " "
        )
        if fields.get("Status", "").endswith(" installed"):
            name, version = fields["Package"], fields["Version"]
            yield _component(name, version, f"pkg:deb/debian/{name}@{version}")


def _component(name: str, version: str, purl: str) -> Component:
    return {"type": "library", "name": name, "version": version, "purl": purl, "bom-ref": purl}


def document(image: str, version: str) -> dict[str, Any]:
    """The whole bill, in an order that two builds share."""
    status = DPKG_STATUS.read_text(encoding="utf-8") if DPKG_STATUS.exists() else ""
    found = {c["purl"]: c for c in (*python_components(), *debian_components(status))}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {"type": "container", "name": image, "version": version}},
        "components": [found[key] for key in sorted(found)],
    }


def main() -> None:
    image, version, target = sys.argv[1:]
    path = Path(target)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document(image, version), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
