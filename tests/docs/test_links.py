"""Documents point to what is there, and every decision is in the index."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")])


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(path: Path) -> None:
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    targets = [
        t.split("#")[0]
        for t in re.findall(r"\]\(([^)\s]+)\)", text)
        if "://" not in t and not t.startswith("#")
    ]
    missing = [t for t in targets if not (path.parent / t).exists()]
    assert not missing


def test_every_decision_is_in_the_index() -> None:
    folder = ROOT / "docs" / "decisions"
    index = (folder / "README.md").read_text()
    assert [p.name for p in sorted(folder.glob("0*.md")) if p.name not in index] == []


def test_the_changelog_names_the_version() -> None:
    import tomllib

    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert f"## [{version}]" in (ROOT / "CHANGELOG.md").read_text()


def test_paths_that_the_architecture_names_exist() -> None:
    text = (ROOT / "docs" / "ARCHITECTURE.md").read_text()
    named = re.findall(r"`((?:contract|stream|operator|worker|api|cli|tests|benchmarks)/[\w/.]+)`", text)
    assert len(named) > 10
    assert [n for n in named if not (ROOT / n).exists()] == []
