"""Ours gives, leaf by leaf and in every execution mode, what the oracle gave where the oracle is right.

`make oracle` writes the expectations anew. How the two sides are recorded and compared is tested here too, so that
a comparison that sees nothing cannot pass.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from parity_left_out import LEFT_OUT
from parity_record import differences, error_of, plain, spelled
from parity_run import EXPECTED, Scenario, record, scenarios
from tensordict import LazyStackedTensorDict, NonTensorData, TensorDict

CASES = [
    pytest.param(
        case, mode, id=f"{case.module}.{case.name}-{mode}", marks=[pytest.mark.row(row) for row in case.rows]
    )
    for case in scenarios()
    for mode in case.ours
]


@pytest.mark.parametrize(("case", "mode"), CASES)
def test_ours_equals_the_oracle(case: Scenario, mode: str) -> None:
    stored = json.loads((EXPECTED / case.module / f"{case.name}.json").read_text())
    assert list(differences(stored["values"], json.loads(json.dumps(record(case, mode))))) == []


def test_every_scenario_has_an_expectation_and_no_other_is_there() -> None:
    wanted = {f"{case.module}/{case.name}.json" for case in scenarios()}
    assert {path.relative_to(EXPECTED).as_posix() for path in EXPECTED.rglob("*.json")} == wanted
    for case in scenarios():
        stored = json.loads((EXPECTED / case.module / f"{case.name}.json").read_text())
        assert stored["rows"] == list(case.rows)
        assert stored["modes"] == list(case.right_in)


def test_every_row_is_compared_or_says_why_not() -> None:
    table = (Path(__file__).parents[1] / "rows" / "envs.txt").read_text().split()
    compared = {row for case in scenarios() for row in case.rows}
    assert compared | LEFT_OUT.keys() == set(table)
    assert compared & LEFT_OUT.keys() == set()


def leaf(**changes: Any) -> TensorDict:
    return TensorDict(
        {"a": torch.tensor([[1.0], [2.0]]), "b": {"c": torch.ones(2)}, **changes}, batch_size=(2,)
    )


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        pytest.param(leaf(a=torch.tensor([[1.0], [2.5]])), "/leaves/a: expected", id="value"),
        pytest.param(leaf(a=torch.tensor([[1], [2]])), "/leaves/a: expected", id="dtype"),
        pytest.param(leaf(a=torch.tensor([1.0, 2.0])), "/leaves/a: expected", id="shape"),
        pytest.param(leaf(z=torch.ones(2)), "/leaves/z: not expected", id="one more"),
        pytest.param(leaf().exclude(("b", "c")), "/leaves/b/leaves/c: missing", id="one less"),
        pytest.param(LazyStackedTensorDict(*leaf().unbind(0)), "/lazy: not expected", id="lazy"),
    ],
)
def test_every_kind_of_difference_is_seen(changed: Any, line: str) -> None:
    assert list(differences(plain(leaf()), plain(leaf()))) == []
    assert any(found.startswith(line) for found in differences(plain(leaf()), plain(changed)))


def test_records_survive_their_text() -> None:
    made = plain({"td": leaf(text=NonTensorData("x", batch_size=(2,))), "flag": True, "n": 0.1, "none": None})
    assert json.loads(spelled(made)) == made


def test_an_error_is_recorded_by_the_nearest_class_of_python() -> None:
    class Own(KeyError):
        pass

    def fail() -> None:
        raise Own("x")

    assert error_of(fail) == {"error": "KeyError"}
    with pytest.raises(AssertionError, match="expected to raise"):
        error_of(lambda: None)
    with pytest.raises(TypeError, match="cannot be recorded"):
        plain(object())
