"""Puts the scenarios' support on the path, of this process and of the children that it starts."""

from __future__ import annotations

import os
import sys
from pathlib import Path

SUPPORT = str(Path(__file__).parent / "support")

if SUPPORT not in sys.path:
    sys.path.insert(0, SUPPORT)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [SUPPORT, os.environ.get("PYTHONPATH")]))
