"""Versions are loaded into the policy as a whole, whatever is wrapped around it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rollout_contract.errors import ConfigurationError, WeightsRejected
from rollout_stream import codec
from rollout_worker.weights import ModuleLoader, NoParameters, weights_layout_of


def policy() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))


class Kept:
    """A reader with these versions."""

    def __init__(self, *versions: Any) -> None:
        self._versions = [codec.state_bytes(state, allow_nonfinite=True) for state in versions]

    def fetch(self, version: int) -> Any:
        return SimpleNamespace(data=self._versions[version - 1])


@pytest.mark.parametrize("wrap", [
    lambda m: m, lambda m: torch.compile(m, backend="eager"), torch.nn.DataParallel,
], ids=["bare", "compiled", "on several devices"])  # fmt: skip
def test_a_version_of_the_bare_module_is_loaded_into_what_is_wrapped(wrap: Any) -> None:
    published, ours = policy(), policy()

    ModuleLoader(Kept(published), wrap(ours)).load(1)  # type: ignore[arg-type]

    for name, tensor in published.state_dict().items():
        assert torch.equal(ours.state_dict()[name], tensor), name


def test_a_version_that_does_not_fit_changes_nothing() -> None:
    ours = policy()
    before = {name: tensor.clone() for name, tensor in ours.state_dict().items()}
    wrong = {**policy().state_dict(), "0.bias": torch.zeros(4), "more": torch.zeros(1)}
    broken = {**policy().state_dict(), "0.weight": torch.full((3, 2), float("nan"))}
    loader = ModuleLoader(Kept(wrong, broken), ours)  # type: ignore[arg-type]

    with pytest.raises(WeightsRejected, match=r"(?s)0\.bias.*more"):
        loader.load(1)
    with pytest.raises(WeightsRejected, match=r"0\.weight: 6 of 6 values are not finite"):
        loader.load(2)
    assert all(torch.equal(ours.state_dict()[name], tensor) for name, tensor in before.items())


def test_a_function_has_no_weights() -> None:
    assert not weights_layout_of(lambda observation: observation).leaves
    with pytest.raises(WeightsRejected, match=r"no torch\.nn\.Module"):
        NoParameters().load(1)


def test_a_policy_whose_state_cannot_be_published_is_told_at_once() -> None:
    class Noted(torch.nn.Linear):
        def get_extra_state(self) -> dict[str, int]:
            return {"epoch": 3}

    with pytest.raises(ConfigurationError, match=r"(?s)state_dict .* _extra_state: not a tensor but a dict"):
        weights_layout_of(Noted(2, 2))
