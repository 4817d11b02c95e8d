"""The layout's rules that no tool checks by itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROLE_FOLDERS = ("operator", "worker", "api", "contract", "stream", "cli", "tests")


@pytest.mark.parametrize("folder", ROLE_FOLDERS)
def test_a_role_folder_is_no_package(folder: str) -> None:
    """A top-level package `operator` would hide Python's own module, and break `import collections`."""
    assert (ROOT / folder).is_dir()
    assert not (ROOT / folder / "__init__.py").exists()


def test_the_standard_library_is_not_hidden() -> None:
    code = "import operator, collections; print(operator.__file__)"
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT / "docs"
    )
    assert not Path(found.stdout.strip()).is_relative_to(ROOT)


@pytest.mark.parametrize(
    "module",
    [
        "rollout_operator.reconcile",
        "rollout_api.app",
        "rollout_cli.main",
        "rollout_stream",
        "rollout_contract.spec",
    ],
)
def test_the_light_parts_load_no_torch(module: str) -> None:
    heavy = "{'torch', 'tensordict', 'numpy', 'gymnasium'}"
    code = f"import sys, {module}; print(sorted({heavy} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
