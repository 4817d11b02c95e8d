"""The page about environments runs, top to bottom, and the reference is what the docstrings say."""

from __future__ import annotations

import importlib.util
import inspect
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from rollout_worker import envs

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "environments.md"
PROMISE = re.compile(r"^(\S.*?)  # -> (.+)$")


def script_of(page: str) -> tuple[str, int]:
    """The python blocks as one script in which every promised value is checked; and how many promises there are."""
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    lines: list[str] = []
    count = 0
    for line in "\n".join(blocks).splitlines():
        promise = PROMISE.match(line)
        if promise is None:
            lines.append(line)
            continue
        count += 1
        code, value = promise.groups()
        lines.append(f"found = str({code}); assert found == {value!r}, (found, {code!r})")
    return "\n".join(lines), count


@pytest.mark.timeout(400)
def test_the_page_runs_and_keeps_its_promises(tmp_path: Path) -> None:
    script, count = script_of(PAGE.read_text())
    assert count >= 15
    path = tmp_path / "page.py"
    path.write_text(script)
    ran = subprocess.run(
        [sys.executable, str(path)], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=360
    )
    assert ran.returncode == 0, ran.stderr


def test_a_broken_promise_is_seen() -> None:
    script, count = script_of("```python\nx = 1\nx + 1  # -> 3\n```\n")
    assert count == 1
    with pytest.raises(AssertionError, match="2"):
        exec(script, {})  # noqa: S102 (the text above)


@pytest.fixture(scope="module")
def writer() -> ModuleType:
    described = importlib.util.spec_from_file_location("write_api_envs", ROOT / "docs" / "write_api_envs.py")
    assert described is not None
    assert described.loader is not None
    module = importlib.util.module_from_spec(described)
    described.loader.exec_module(module)
    return module


def test_the_reference_is_what_the_docstrings_say(writer: ModuleType) -> None:
    assert writer.TARGET.read_text() == writer.document(), "run docs/write_api_envs.py"


@pytest.mark.parametrize("name", envs.__all__)
def test_every_public_name_is_described(name: str) -> None:
    value = getattr(envs, name)
    assert inspect.getdoc(value)
    if not inspect.isclass(value) or not value.__module__.startswith("rollout_worker."):
        return
    for member, found in vars(value).items():
        if not member.startswith("_") and (callable(found) or isinstance(found, property)):
            assert inspect.getdoc(getattr(value, member)), f"{name}.{member}"
