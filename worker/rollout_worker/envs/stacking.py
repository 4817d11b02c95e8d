"""Rows as one tensordict: dense where they agree, a lazy stack where they do not, or where that is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tensordict import LazyStackedTensorDict, NonTensorData, NonTensorStack, TensorDictBase

from rollout_worker.envs.transitions import tensordict_of


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


def lazy(rows: Sequence[TensorDictBase]) -> LazyStackedTensorDict:
    """A lazy stack of these rows themselves."""
    return LazyStackedTensorDict(*rows, stack_dim=0)


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


def rows_of(td: TensorDictBase) -> list[TensorDictBase]:
    """The rows of a batch: new tensordicts whose tensors are the batch's own memory."""
    return list(td.unbind(0))


def updated(td: TensorDictBase, new: TensorDictBase) -> TensorDictBase:
    """The batch with the entries of another, in place where both are of one kind; else a lazy stack."""
    if not isinstance(td, LazyStackedTensorDict) and not isinstance(new, LazyStackedTensorDict):
        return td.update(new)
    if isinstance(td, LazyStackedTensorDict):
        for row, fresh in zip(td.tensordicts, new.unbind(0), strict=True):
            row.update(fresh)
        return td
    return lazy([row.update(fresh) for row, fresh in zip(rows_of(td), new.unbind(0), strict=True)])
