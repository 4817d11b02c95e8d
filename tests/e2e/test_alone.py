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


@pytest.mark.parametrize("name", LISTS["NO_IMAGE"])
def test_needs_no_image(name):
    module = name.partition("::")[0]
    assert "IMAGE" not in (HERE / module).read_text()
    assert "platform" not in (HERE / module).parent.joinpath("conftest.py").read_text()


@pytest.mark.parametrize("folder", LISTS["ONE_INSTALLATION"])
def test_has_one_installation(folder):
    assert 'scope="session"' in (HERE.parents[1] / folder / "conftest.py").read_text()
