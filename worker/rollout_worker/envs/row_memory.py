"""The memory through which rows of fixed shapes are stepped: what each takes, what it gives, and its next root.

Parent and children lay the same plan over one memory file, so that a step costs a word and a wake-up per process, as
one through a block does. What does not fit (texts, open shapes, unlike rows) goes through pipes instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import numpy as np
import torch
from tensordict import TensorDictBase

from rollout_worker.envs.arena import tensor_over, view_of
from rollout_worker.envs.describe import Key, spelled
from rollout_worker.envs.layout import Leaf, Placed, place
from rollout_worker.envs.memory import mapped
from rollout_worker.envs.metadata import EnvMetaData
from rollout_worker.envs.specs import Composite, LeafSpec, Spec, dtype_name

TAKEN, NEXT, ROOT, STEPPED, BROKEN = "taken", "next", "root", "stepped", "broken"
"""Parts of the memory: actions and states; what stands under `next` after a step; the root after it; which elements are to
be stepped; which rows' environments were replaced instead."""


@dataclass(frozen=True, slots=True)
class RowPlan:
    """Where everything lies. Keys start with the part."""

    num_rows: int
    leaves: tuple[Placed, ...]
    nbytes: int

    @property
    def has_objects(self) -> bool:
        """Texts go through pipes, with their rows."""
        return False

    def shared(self, fd: int) -> RowMemory:
        """The rows in a memory file."""
        return RowMemory(self, mapped(fd, self.nbytes))


def row_plan_of(metas: Sequence[EnvMetaData]) -> RowPlan | None:
    """The plan for such rows, which are alike; None where they hold what cannot lie in memory."""
    leaves = leaves_of_row(metas[0].specs, metas[0].batch_size)
    if leaves is None:
        return None
    placed, nbytes = place(leaves, lead=(len(metas),))
    return RowPlan(len(metas), placed, nbytes)


def leaves_of_row(specs: Mapping[str, Composite], batch_size: torch.Size) -> list[Leaf] | None:
    """What one row of such specs, by group, needs; None where that has no fixed place."""
    leaves: list[Leaf] = []
    for part, groups in _PARTS.items():
        declared = dict(leaf for group in groups for leaf in specs[group].leaves())
        for key, spec in declared.items():
            if not _has_fixed_place(spec):
                return None
            leaves.append(Leaf((part, *key), dtype_name(spec.dtype), tuple(spec.shape)))
    return [*leaves, Leaf((STEPPED,), "bool", tuple(batch_size)), Leaf((BROKEN,), "bool")]


_PARTS = {
    TAKEN: ("action", "state"),
    NEXT: ("observation", "reward", "done"),
    ROOT: ("observation", "done"),
}


def unlike(plan: RowPlan, leaves: Sequence[Leaf] | None) -> list[str]:
    """Where a row's needs differ from the plan that the caller's process has made; one sentence per leaf."""
    wanted = {leaf.key: (leaf.dtype, leaf.shape[1:]) for leaf in plan.leaves}
    given = {leaf.key: (leaf.dtype, leaf.shape) for leaf in leaves or ()}
    return [
        f"{spelled(key)}: {given.get(key, 'absent')} here, {wanted.get(key, 'absent')} in the caller's process"
        for key in {**wanted, **given}
        if wanted.get(key) != given.get(key)
    ]


def _has_fixed_place(spec: Spec) -> TypeGuard[LeafSpec]:
    on_cpu = spec.device is None or spec.device.type == "cpu"
    return isinstance(spec, LeafSpec) and on_cpu and -1 not in spec.shape


class RowMemory:
    """A plan over its bytes. Tensors are `[num_rows, *batch_size, …]` and share that memory."""

    def __init__(self, plan: RowPlan, memory: np.ndarray[Any, np.dtype[np.uint8]]) -> None:
        self.plan = plan
        arrays = {leaf.key: (view_of(memory, leaf), leaf.dtype) for leaf in plan.leaves}
        self._tensors = {key: tensor_over(*each) for key, each in arrays.items()}
        self.taken, self.next, self.root = (dict(self._part(name)) for name in (TAKEN, NEXT, ROOT))
        self.stepped = self._tensors[STEPPED,]
        self.broken = arrays[BROKEN,][0]

    def _part(self, name: str) -> Iterator[tuple[Key, torch.Tensor]]:
        return ((key[1:], tensor) for key, tensor in self._tensors.items() if key[0] == name)


def put_row(leaves: Mapping[Key, torch.Tensor], index: int, row: TensorDictBase) -> None:
    """Write one row into such leaves."""
    for key, tensor in leaves.items():
        tensor[index] = row.get(key if len(key) > 1 else key[0]).detach()


def rows_of_memory(leaves: Mapping[Key, torch.Tensor], index: int) -> dict[Key, torch.Tensor]:
    """One row's own copies of such leaves."""
    return {key: tensor[index].clone() for key, tensor in leaves.items()}
