"""The list of tests that run by themselves names tests that are there: a renamed one would run beside others unseen."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

HERE = Path(__file__).parent
LISTS = runpy.run_path(str(HERE / "conftest.py"))


@pytest.mark.parametrize("name", LISTS["ALONE"])
def test_is_there(name):
    module, _, function = name.partition("::")
    assert f"def {function or 'test_'}" in (HERE / module).read_text()


@pytest.mark.parametrize("module", [*LISTS["NO_IMAGE"], *LISTS["NO_NODE"][1:]])
def test_needs_no_image(module):
    assert "IMAGE" not in (HERE / module).read_text()
    assert "platform" not in (HERE / module).parent.joinpath("conftest.py").read_text()


@pytest.mark.parametrize("module", LISTS["NO_NODE"][1:])
def test_runs_nothing_on_nodes(module):
    """Nor on purpose: whoever brings a template of its own could."""
    text = (HERE / module).read_text()
    assert "nodeSelector" not in text
    assert '"containers":' not in text


@pytest.mark.parametrize("folder", LISTS["ONE_INSTALLATION"])
def test_has_one_installation(folder):
    assert 'scope="session"' in (HERE.parents[1] / folder / "conftest.py").read_text()
