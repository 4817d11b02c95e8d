"""Every row of the behaviour tables has a test that carries its id."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "rows.py"


def loaded():
    described = importlib.util.spec_from_file_location("rows_script", SCRIPT)
    module = importlib.util.module_from_spec(described)
    described.loader.exec_module(module)
    return module


def test_no_row_is_without_a_test():
    found = subprocess.run(
        [sys.executable, str(SCRIPT)], capture_output=True, text=True, timeout=150, check=False
    )
    assert found.returncode == 0, found.stdout


def test_marks_are_found_wherever_they_stand():
    text = (
        "@pytest.mark.row('E-01')\ndef test(): ...\ncase = pytest.param(1, marks=pytest.mark.row('E-02'))\n"
    )
    assert list(loaded().marked_in(text)) == ["E-01", "E-02"]


def test_what_is_missing_and_what_is_unknown_is_named():
    lines = loaded().report(
        {"envs": ["E-01", "E-02"]}, {"E-01": ["a.py"], "E-09": ["b.py"], "C-01": ["c.py"]}
    )
    assert lines == ["envs: 1 of 2 rows have no test: E-02", "b.py: marked with E-09, which no table has"]
