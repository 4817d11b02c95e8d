"""Puts the toy environments on the path, of this process and of those that tests start."""

from __future__ import annotations

import os
import sys
from pathlib import Path

TOYS = str(Path(__file__).parent / "toys")

if TOYS not in sys.path:
    sys.path.insert(0, TOYS)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [TOYS, os.environ.get("PYTHONPATH")]))
