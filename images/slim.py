"""Takes out of an environment what the light programs never load: the generated models and endpoints of the client library.

Run by the image build with the environment's interpreter. The platform calls the API server through `kubernetes.aio`
and with raw JSON; its two thousand generated modules load on demand, and nothing of ours demands them.
"""

from __future__ import annotations

import sysconfig
from pathlib import Path

SITE = Path(sysconfig.get_path("purelib"))
GENERATED = tuple(f"kubernetes/{half}client/{kind}" for half in ("", "aio/") for kind in ("models", "api"))
KEPT = {"__init__.py", "v1_object_meta.py", "v1_owner_reference.py", "v1_managed_fields_entry.py"}


def main() -> None:
    taken = 0
    for folder in GENERATED:
        for path in (SITE / folder).glob("*.py"):
            if path.name not in KEPT:
                taken += path.stat().st_size
                path.unlink()
    print(f"{taken // 2**20} MiB taken out")


if __name__ == "__main__":
    main()
