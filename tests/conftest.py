"""Puts the toy environments on the path, of this process and of those that tests start; sets how hypothesis searches."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from _pytest.nodeid import coerce_node_id
from hypothesis import HealthCheck, settings

TOYS = str(Path(__file__).parent / "toys")
SUPPORT = str(Path(__file__).parent / "support")
"""What tests of several packages need: only in this process."""

if TOYS not in sys.path:
    sys.path.insert(0, TOYS)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [TOYS, os.environ.get("PYTHONPATH")]))

if SUPPORT not in sys.path:
    sys.path.insert(0, SUPPORT)

# No test fails on a time, also not on that of making its examples; in CI the same examples every time, so that a red run is
# one of the change under test.
settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("default"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep tests of a group in one process: xdist 3.8 writes the group where pytest 9.2 no longer reads a test's id."""
    if getattr(config.option, "loadgroup", False):
        for item in items:
            grouped = vars(item).get("_nodeid")
            if grouped and grouped != item.nodeid:
                item._id = coerce_node_id(grouped)
