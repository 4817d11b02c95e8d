"""Which of these tests run by themselves, and which belong to one process when they run side by side.

`make e2e` runs what is marked `alone` in a part of its own: it restarts the cluster's parts, takes its definition away, or
looks after every namespace, and would be seen by every other test. Tests of a module share its fixtures and stay together.
"""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent
ALONE = (
    "operator/test_crd.py",
    "operator/test_nodes.py",
    "operator/test_faults.py::test_the_api_server_restarts",
    "operator/test_spaces.py::test_one_operator_for_all_namespaces",
    "jobs/test_readme.py",
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE not in item.path.parents:
            continue
        module = item.path.relative_to(HERE).as_posix()
        name = f"{module}::{getattr(item, 'originalname', item.name)}"
        if module in ALONE or name in ALONE:
            item.add_marker(pytest.mark.alone)
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(module))
