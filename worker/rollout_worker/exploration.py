"""How actions are taken from the policy's distribution."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Final

import torch
from torch import Tensor
from torch.distributions import Distribution

from rollout_contract.errors import ConfigurationError
from rollout_contract.spec import Exploration

_exploration: ContextVar[Exploration] = ContextVar("exploration", default=Exploration.RANDOM)


def exploration_type() -> Exploration:
    """How actions are to be taken from a distribution, for policies that sample themselves."""
    return _exploration.get()


class set_exploration_type:  # noqa: N801 - used like a function
    """Take actions this way within the block. One at a time may be entered."""

    def __init__(self, exploration: Exploration) -> None:
        self._exploration = exploration

    def __enter__(self) -> None:
        self._token = _exploration.set(self._exploration)

    def __exit__(self, *_: object) -> None:
        _exploration.reset(self._token)


def sample(distribution: Distribution, exploration: Exploration) -> Tensor:
    """An action of the distribution. `Deterministic` is the mode where there is one, else the mean.

    ConfigurationError if the distribution has nothing of the kind.
    """
    try:
        return _WAYS[exploration](distribution)
    except NotImplementedError as error:
        raise ConfigurationError(
            f"policy.exploration is {exploration.value}, for which a {type(distribution).__name__} has nothing to give: "
            "use another exploration (Random takes any distribution), or return another distribution"
        ) from error


def _deterministic(distribution: Distribution) -> Tensor:
    try:
        return distribution.mode
    except NotImplementedError:
        return distribution.mean


_WAYS: Final[Mapping[Exploration, Callable[[Distribution], Tensor]]] = {
    Exploration.RANDOM: lambda d: d.sample(),
    Exploration.MODE: lambda d: d.mode,
    Exploration.MEAN: lambda d: d.mean,
    Exploration.MEDIAN: lambda d: d.icdf(torch.tensor(0.5)),
    Exploration.DETERMINISTIC: _deterministic,
}
