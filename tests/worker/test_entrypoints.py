"""Entrypoints: what resolves, and what each mistake says."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollout_contract.errors import EntrypointError
from rollout_worker.entrypoints import add_code_dirs, resolve

FIELD = "spec.policy.entrypoint"


@pytest.fixture
def code(tmp_path: Path) -> Iterator[Path]:
    """A directory with the user's code, on the path for one test."""
    (tmp_path / "ep_good.py").write_text(
        "def make_policy():\n    return 1\n\nclass A:\n    make = staticmethod(len)\n\nN = 3\n"
    )
    (tmp_path / "ep_syntax.py").write_text("def make_policy(:\n")
    (tmp_path / "ep_raises.py").write_text("def deep():\n    raise ValueError('boom-7')\n\ndeep()\n")
    (tmp_path / "ep_needs.py").write_text("import ep_not_there_either\n")
    before = list(sys.path)
    add_code_dirs([str(tmp_path)])
    yield tmp_path
    sys.path[:] = before
    for name in [n for n in sys.modules if n.startswith("ep_")]:
        del sys.modules[name]


@pytest.mark.usefixtures("code")
def test_functions_and_nested_attributes_resolve() -> None:
    assert resolve("ep_good:make_policy", field=FIELD)() == 1
    assert resolve("ep_good:A.make", field=FIELD)("ab") == 2


@pytest.mark.usefixtures("code")
@pytest.mark.parametrize(
    ("entrypoint", "parts"),
    [
        pytest.param("ep_missing:f", ["no module 'ep_missing'", "beside the manifest"], id="no-module"),
        pytest.param(
            "ep_good:make_polizy",
            ["has no 'make_polizy'", "mean ep_good:make_policy?"],
            id="no-attribute",
        ),
        pytest.param("ep_good:N", ["is a int", "function or class"], id="not-callable"),
        pytest.param(
            "ep_syntax:make_policy", ["importing ep_syntax failed", "SyntaxError"], id="syntax-error"
        ),
        pytest.param(
            "ep_raises:f", ["raise ValueError('boom-7')", "ValueError: boom-7"], id="raises-at-import"
        ),
        pytest.param(
            "ep_needs:f", ["importing ep_needs failed", "ep_not_there_either"], id="module-needs-another"
        ),
    ],
)
def test_each_mistake_is_named(entrypoint: str, parts: list[str]) -> None:
    with pytest.raises(EntrypointError) as caught:
        resolve(entrypoint, field=FIELD)
    text = str(caught.value)
    assert text.startswith(f"{FIELD} is {entrypoint!r}")
    assert all(part in text for part in parts), text
    assert "importlib" not in text


@pytest.mark.usefixtures("code")
def test_the_users_own_line_ends_the_message() -> None:
    with pytest.raises(EntrypointError) as caught:
        resolve("ep_raises:f", field=FIELD)
    assert str(caught.value).splitlines()[-1] == "ValueError: boom-7"


def test_code_directories_are_added_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", ["/usr/lib"])
    add_code_dirs(["/a", "/b"])
    add_code_dirs(["/a"])
    assert sys.path == ["/a", "/b", "/usr/lib"]
