"""Which of these tests run when, and which share a process when they run side by side.

`make e2e` runs what is marked `alone` in parts of its own: it restarts the cluster's parts, takes its definition away, or
looks after every namespace, and would be seen by every other test. What of it needs no image runs while they are built.
Tests of a module share its fixtures and stay together; so do those of a folder with one installation of the chart.
"""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent
ALONE = (
    "operator/test_crd.py",
    "operator/test_faults.py::test_the_api_server_restarts",
    "operator/test_spaces.py::test_one_operator_for_all_namespaces",
    "jobs/test_readme.py",
)
NO_IMAGE = ALONE[:3]
"""The platform's programs run beside the cluster, and pods run nothing."""
ONE_INSTALLATION = ("tests/e2e/jobs", "tests/e2e/rights")
LONGEST = (*ONE_INSTALLATION, "tests/e2e/operator/test_nodes.py")
"""They come first, so that none of them is left for the end."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE not in item.path.parents:
            continue
        module = item.path.relative_to(HERE).as_posix()
        name = f"{module}::{getattr(item, 'originalname', item.name)}"
        if module in ALONE or name in ALONE:
            item.add_marker(pytest.mark.alone)
        if module in NO_IMAGE or name in NO_IMAGE:
            item.add_marker(pytest.mark.no_image)
    items.sort(key=lambda item: not item.nodeid.startswith(LONGEST))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """One unit of work for each module, or for a whole folder with one installation; in the order of the command line."""
    if config.getvalue("dist") != "loadscope":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class ByInstallation(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            module = nodeid.split("::")[0]
            folder = module.rpartition("/")[0]
            return folder if folder in ONE_INSTALLATION else module

    return ByInstallation(config, log)
