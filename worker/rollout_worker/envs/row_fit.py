"""Brings what an environment gives into the form that its specs declare, or says what is wrong with it.

Leaves beside the specs are dropped; a leaf that is missing or has another shape is an error that names it; another
dtype is cast. The same for every way in which rows travel.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from tensordict import LazyStackedTensorDict, TensorDictBase

from rollout_worker.envs.describe import Key, spelled
from rollout_worker.envs.specs import Composite, LeafSpec, Spec, flat_key
from rollout_worker.envs.transitions import leaves_of, tensordict_of, tree_of


class Declared:
    """The leaves that a tensordict must have."""

    def __init__(self, trees: Iterable[Composite], batch_size: torch.Size) -> None:
        trees = list(trees)
        self.leaves: list[tuple[Key, Spec]] = [leaf for tree in trees for leaf in tree.leaves()]
        self.sizes = nested_sizes(trees)
        self._names = {key for key, _ in self.leaves}
        self._batch_size = batch_size

    def fit(self, given: TensorDictBase) -> TensorDictBase:
        """A new tensordict of exactly these leaves. Raises KeyError or ValueError naming the leaf that is wrong."""
        if isinstance(given, LazyStackedTensorDict):
            return given  # the rows of a batch of unlike environments: each was looked at where it arose
        entries: dict[Key, Any] = {}
        for key, spec in self.leaves:
            value = entry_of(given, key)
            if value is None:
                raise KeyError(f"the environment gave no {spelled(key)}, which its spec declares")
            entries[key] = fitted(value, key, spec) if isinstance(value, torch.Tensor) else value
        tree = tree_of(entries, self._batch_size, given.device, self.sizes)
        return tensordict_of(tree, self._batch_size, given.device)

    def undeclared(self, given: TensorDictBase) -> list[Key]:
        """The keys of leaves that a tensordict has beside these."""
        if isinstance(given, LazyStackedTensorDict):
            return []
        return [key for key, _ in leaves_of(given) if key not in self._names]


def entry_of(td: TensorDictBase, key: Key) -> Any:
    """The entry as it stands there: a tensor, a tensordict, or non-tensor data in its wrapping; None if there is none."""
    return td.get(key if len(key) > 1 else key[0], None)


def fits(shape: torch.Size, declared: torch.Size) -> bool:
    """Whether a shape is one that a spec allows; -1 there allows any size."""
    return shape == declared or (
        len(shape) == len(declared)
        and all(want in (-1, size) for size, want in zip(shape, declared, strict=True))
    )


def fitted(value: torch.Tensor, key: Key, spec: Spec) -> torch.Tensor:
    """A value in the spec's dtype. Raises ValueError naming both shapes where they differ."""
    if not fits(value.shape, spec.shape):
        raise ValueError(f"{spelled(key)} has shape {list(value.shape)}; its spec says {list(spec.shape)}")
    if isinstance(spec, LeafSpec) and value.dtype != spec.dtype:
        return value.to(spec.dtype)
    return value


def nested_sizes(trees: Iterable[Composite]) -> dict[Key, torch.Size]:
    """The batch sizes of all tensordicts below the root: the longest that any of the specs gives."""
    sizes: dict[Key, torch.Size] = {}
    for tree in trees:
        for name, spec in tree.items(True):
            key = flat_key(name)
            if isinstance(spec, Composite) and len(spec.shape) >= len(sizes.get(key, ())):
                sizes[key] = spec.shape
    return sizes
