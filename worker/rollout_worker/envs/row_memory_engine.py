"""Moves rows through memory where that is possible: one copy per leaf for all rows, and no message.

Steps go through the memory; resets, environments that are sent one by one, and steps that hand values on under `next`,
go as tensordicts through pipes (`row_engine`), to the same environments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase

from rollout_worker.envs.block_engine import copier, shared_view
from rollout_worker.envs.commands import Step
from rollout_worker.envs.describe import FLAGS, Key, spelled
from rollout_worker.envs.engine import Engine, ResetOrder
from rollout_worker.envs.layout import VALID
from rollout_worker.envs.row_engine import RowEngine
from rollout_worker.envs.row_group import RowGroup
from rollout_worker.envs.row_memory import RowMemory, rows_of_memory
from rollout_worker.envs.stacking import stacked
from rollout_worker.envs.transitions import (
    leaves_of,
    merged_where,
    names_of,
    put,
    standing_of,
    tensordict_of,
    tree_of,
)

Copiers = list[tuple[Key, Callable[[], torch.Tensor]]]
"""Functions that give the caller's own copies of leaves."""


class RowMemoryEngine(Engine):
    """A row engine whose group has memory. `sizes` are the batch sizes of a row's tensordicts below its root."""

    group: RowGroup

    def __init__(self, rows: RowEngine, *, sizes: Mapping[Key, torch.Size]) -> None:
        self._rows, self._row_sizes = rows, sizes
        self.group = rows.group
        assert self.group.memory is not None
        self._memory: RowMemory = self.group.memory
        self._batch_size = self._memory.stepped.shape
        self._sizes = {key: torch.Size((self.group.num_envs, *size)) for key, size in sizes.items()}
        self._is_marked = self.group.settings.rules.restarts
        self._device = rows.device
        self._next: Copiers = [(key, copier(view, self._device)) for key, view in self._memory.next.items()]
        self._root: Copiers = [(key, copier(view, self._device)) for key, view in self._memory.root.items()]
        self._no_reward = {
            key: torch.zeros_like(view, device=self._device)
            for key, view in self._memory.next.items()
            if key not in self._memory.root
        }
        self._is_flat = all(len(key) == 1 for key in self._memory.next)

    def moved(self, device: torch.device | None) -> RowMemoryEngine:
        """The same memory, with results on another device."""
        return RowMemoryEngine(self._rows.moved(device), sizes=self._row_sizes)

    def reset(self, order: ResetOrder) -> TensorDictBase:
        """Reset through pipes."""
        return self._rows.reset(order)

    def send(self, td: TensorDictBase, indices: Sequence[int]) -> None:
        """Send through pipes."""
        self._rows.send(td, indices)

    def receive(
        self, at_least: int, timeout_s: float | None
    ) -> tuple[list[int], TensorDictBase | None, TensorDictBase | None]:
        """Receive through pipes."""
        return self._rows.receive(at_least, timeout_s)

    def step(
        self, td: TensorDictBase, mask: torch.Tensor | None, *, autoreset: bool
    ) -> tuple[TensorDictBase, TensorDictBase | None]:
        """Write actions and states, step, copy out."""
        if type(td) is not TensorDict or "next" in names_of(td):
            return self._rows.step(td, mask, autoreset=autoreset)
        self._put(td)
        before = self._current() if self._is_marked and self._lacks(td) else None
        chosen = None if mask is None else mask.cpu().reshape(self.group.num_envs, -1).any(1)
        if mask is not None:
            self._memory.stepped.copy_(mask)
        if chosen is None or bool(chosen.any()):
            command = Step(0, 0, 1, autoreset, masked=chosen is not None)
            self.group.advance(command, None if chosen is None else chosen.numpy())
            self._rows.stand_elsewhere(self._row_of_memory, chosen)
        following = self._tensordict(self._next)
        root = self._tensordict(self._root) if autoreset else None
        if self._is_marked:
            put(
                following,
                VALID[-1],
                torch.ones((*self._batch_size, 1), dtype=torch.bool, device=self._device),
            )
            broken = self._broken(chosen)
            if bool(broken.any()):
                following = merged_where(broken, self._broken_off(td, before), following)
                mask = None if mask is None else mask | broken
        if mask is not None:
            standing = self._standing(td, None)
            following = merged_where(mask, following, standing)
            root = None if root is None else merged_where(mask, root, standing)
        return following, root

    def memory(self, *, is_file: bool) -> TensorDictBase:
        """The memory itself as a locked tensordict. Its content changes with every step."""
        memory = self._memory
        leaves = {
            **memory.taken,
            **memory.root,
            **{("next", *key): view for key, view in memory.next.items()},
        }
        sizes = {("next", *key): size for key, size in self._sizes.items()} | self._sizes
        return shared_view(leaves, self._batch_size, sizes, is_file=is_file)

    # -- parts -----------------------------------------------------------------------------------------------------

    def _put(self, td: TensorDictBase) -> None:
        """Write what the rows take. Raises KeyError or RuntimeError for what does not fit, before anything is written."""
        given = []
        for key, target in self._memory.taken.items():
            value = td.get(key if len(key) > 1 else key[0], None)
            if value is None:
                raise KeyError(f"the tensordict has no {spelled(key)}; a step needs it")
            if value.shape != target.shape:
                raise RuntimeError(
                    f"{spelled(key)} has shape {list(value.shape)}; its spec says {list(target.shape)}"
                )
            given.append((target, value.detach()))
        for target, value in given:
            target.copy_(value)

    def _broken(self, chosen: torch.Tensor | None) -> torch.Tensor:
        """Which elements belong to rows whose environments were replaced in this step; `[num_envs, *batch_size]`."""
        broken = torch.from_numpy(self._memory.broken.copy())
        if chosen is not None:
            broken = broken & chosen
        spread = broken.reshape(-1, *(1,) * (len(self._batch_size) - 1)).expand(self._batch_size)
        return spread.to(self._device)

    def _broken_off(self, td: TensorDictBase, before: TensorDictBase | None) -> TensorDictBase:
        """What such rows give: their root, no reward, truncated and not valid."""
        lost = self._standing(td, before)
        for key, value in leaves_of(lost):
            if key[-1] in FLAGS and key in self._memory.root:
                lost.set(key, torch.full_like(value, key[-1] != "terminated"))
        return lost.set(VALID[-1], torch.zeros((*self._batch_size, 1), dtype=torch.bool, device=self._device))

    def _standing(self, td: TensorDictBase, current: TensorDictBase | None) -> TensorDictBase:
        """What skipped rows give: their root, as the caller has it or as the environments stand, and no reward."""
        standing = standing_of(td, self._current() if current is None else current, self._no_reward)
        if self._is_marked:
            standing.set(VALID[-1], torch.ones((*self._batch_size, 1), dtype=torch.bool, device=self._device))
        return standing

    def _current(self) -> TensorDictBase:
        """The roots that the environments stand at."""
        rows = [self._rows.current_of(index) for index in range(self.group.num_envs)]
        batch = stacked(rows)
        return batch if self._device is None else batch.to(self._device)

    def _lacks(self, td: TensorDictBase) -> bool:
        """Whether a caller's root has not all that the environments observed."""
        values = ((view, td.get(key, None)) for key, view in self._memory.root.items())
        return any(value is None or value.shape != view.shape for view, value in values)

    def _row_of_memory(self, index: int) -> TensorDictBase:
        tree = tree_of(rows_of_memory(self._memory.root, index), self._batch_size[1:], None, self._row_sizes)
        return tensordict_of(tree, self._batch_size[1:], None)

    def _tensordict(self, copiers: Copiers) -> TensorDict:
        leaves = {key: copy() for key, copy in copiers}
        if self._is_flat:
            tree: dict[str, Any] = {key[0]: value for key, value in leaves.items()}
        else:
            tree = tree_of(leaves, self._batch_size, self._device, self._sizes)
        return tensordict_of(tree, self._batch_size, self._device)
