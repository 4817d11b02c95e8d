"""Short words for scenarios: actions, columns, policies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from parity_api import TensorDict


def acting(td: Any, *values: float) -> Any:
    """The same tensordict with one action per row (a single value: the same for all)."""
    shape = (*td.batch_size, 1)
    action = torch.tensor(values, dtype=torch.float32)
    return td.set("action", action.expand(shape).clone() if len(values) == 1 else action.reshape(shape))


def policy(*values: float) -> Callable[[Any], Any]:
    """A policy that always takes these actions."""
    return lambda td: acting(td, *values)


def column(td: Any, key: Any = "observation") -> Any:
    """One leaf of each row, without its last dimension."""
    return td.get(key).squeeze(-1).tolist()


def mask(*rows: Any, width: bool = False) -> torch.Tensor:
    """A mask of these rows; `width` adds the trailing dimension of size 1."""
    made = torch.tensor(rows, dtype=torch.bool)
    return made.unsqueeze(-1) if width else made


def alone(num_rows: int, **leaves: Any) -> TensorDict:
    """A tensordict that holds nothing else."""
    return TensorDict(leaves, batch_size=(num_rows,))


def following(td: Any) -> Any:
    """`next` as a root of its own, as a caller without a policy would go on."""
    return td.get("next").exclude("reward").clone()


def names(td: Any) -> list[str]:
    """The sorted keys of a tensordict's root."""
    return sorted(map(str, td.keys()))
