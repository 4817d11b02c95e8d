"""Rows as one tensordict: dense where they agree, a lazy stack where they do not, or where that is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tensordict import LazyStackedTensorDict, NonTensorData, NonTensorStack, TensorDictBase

from rollout_worker.envs.transitions import lazy, rows_of, tensordict_of, updated

__all__ = ["lazy", "rows_of", "stacked", "updated"]


class _Uneven(Exception):
    """The rows differ in keys or shapes."""


def stacked(rows: Sequence[TensorDictBase], *, is_lazy: bool = False) -> TensorDictBase:
    """The rows along a new first dimension. A dense stack shares no memory with them; nor does a lazy one."""
    if not is_lazy:
        try:
            return _dense(rows)
        except _Uneven:
            pass
    return lazy([row.clone() for row in rows])


def _dense(rows: Sequence[TensorDictBase]) -> TensorDictBase:
    first = rows[0]
    if any(isinstance(row, LazyStackedTensorDict) for row in rows):
        raise _Uneven
    names = list(first.keys())
    wanted = set(names)
    if any(set(row.keys()) != wanted for row in rows[1:]):
        raise _Uneven
    tree = {name: _stacked_entry([row.get(name) for row in rows]) for name in names}
    return tensordict_of(tree, torch.Size((len(rows), *first.batch_size)), first.device)


def _stacked_entry(values: list[Any]) -> Any:
    first = values[0]
    if isinstance(first, torch.Tensor):
        if any(not isinstance(value, torch.Tensor) or value.shape != first.shape for value in values):
            raise _Uneven
        return torch.stack(values)
    if isinstance(first, (NonTensorData, NonTensorStack)):
        return NonTensorStack(*values)
    if isinstance(first, TensorDictBase):
        return _dense(values)
    return NonTensorStack(*values)
