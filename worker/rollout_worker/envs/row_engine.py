"""Moves rows as tensordicts: for environments with a batch size of their own, states, open or unlike shapes.

One routine for all of it: which rows, what goes to each, what each came to, and what stands in for those that were
left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase

from rollout_worker.envs.commands import Broken, RowOp
from rollout_worker.envs.describe import Key, spelled
from rollout_worker.envs.engine import Engine, ResetOrder
from rollout_worker.envs.layout import VALID
from rollout_worker.envs.metadata import EnvMetaData
from rollout_worker.envs.row_fit import entry_of, fits
from rollout_worker.envs.row_group import RowGroup
from rollout_worker.envs.specs import LeafSpec, Spec
from rollout_worker.envs.stacking import rows_of, stacked
from rollout_worker.envs.transitions import RESET, STEP, merged_where, standing_of


class RowEngine(Engine):
    """A group of rows. `metas` says of each row what it takes and gives."""

    group: RowGroup

    def __init__(
        self, group: RowGroup, metas: Sequence[EnvMetaData], *, device: torch.device | None, is_lazy: bool
    ) -> None:
        self.group = group
        self._row_size = metas[0].batch_size
        self._inputs = [_inputs_of(meta) for meta in metas]
        self._kept = [_observed_of(meta) for meta in metas]
        self._no_reward = [
            {key: spec.zero() for key, spec in meta.specs["reward"].leaves()} for meta in metas
        ]
        self.device, self._is_lazy = device, is_lazy
        self._is_marked = group.settings.rules.restarts
        self._current: list[TensorDictBase | None] = [None] * group.num_envs
        self._elsewhere: dict[int, Callable[[int], TensorDictBase]] = {}
        self._sent: dict[int, TensorDictBase] = {}

    def moved(self, device: torch.device | None) -> RowEngine:
        """The rows stay where they are; their stack goes to the device."""
        self.device = device
        return self

    # -- reset -----------------------------------------------------------------------------------------------------

    def reset(self, order: ResetOrder) -> TensorDictBase:
        """Hand each row that is to be reset its part of the order."""
        masks = self._masks(order.mask)
        given = None if order.td is None else rows_of(order.td)
        work = [
            (index, (self._start(order, index, given, mask), order.kwargs[index]))
            for index, mask in enumerate(masks)
            if mask is None or bool(mask.any())
        ]
        fresh = self.group.do(RowOp.RESET, work) if work else {}
        roots = []
        for index, mask in enumerate(masks):
            row = None if given is None else given[index]
            roots.append(self._root_after_reset(index, fresh.get(index), mask, row))
        self._current = list(roots)
        return self._stacked(roots)

    def _start(
        self, order: ResetOrder, index: int, given: list[TensorDictBase] | None, mask: torch.Tensor | None
    ) -> TensorDictBase | None:
        if given is None:
            return None
        if mask is None:
            return given[index].exclude("next", STEP)
        marks = mask.unsqueeze(-1)
        if order.only_mask:
            return TensorDict({RESET: marks}, batch_size=self._row_size, device=marks.device)
        return given[index].exclude("next", STEP).set(RESET, marks)

    def _root_after_reset(
        self,
        index: int,
        fresh: TensorDictBase | None,
        mask: torch.Tensor | None,
        given: TensorDictBase | None,
    ) -> TensorDictBase:
        if fresh is not None:
            if mask is None or bool(mask.all()):
                return fresh
            return merged_where(
                mask.to(fresh.device or mask.device), fresh, self._standing_root(index, given)
            )
        return self._standing_root(index, given)

    def _standing_root(self, index: int, given: TensorDictBase | None) -> TensorDictBase:
        """A row's root as the caller has it, or, leaf by leaf, as the environment left it."""
        root = self.current_of(index).clone(False)
        for key, shape in self._kept[index]:
            value = None if given is None else entry_of(given, key)
            if value is not None and (not isinstance(value, torch.Tensor) or fits(value.shape, shape)):
                root.set(key, value)
        return root

    def current_of(self, index: int) -> TensorDictBase:
        """The root that an environment stands at; it is reset where it never was."""
        current = self._current[index]
        if current is None and index in self._elsewhere:
            return self._elsewhere[index](index)
        if current is None:
            current = self._current[index] = self.group.do(RowOp.RESET, [(index, (None, {}))])[index]
        return current

    def stand_elsewhere(self, of: Callable[[int], TensorDictBase], chosen: torch.Tensor | None) -> None:
        """Rows (None: all) were stepped otherwise: `of` tells where they stand, until this engine moves them again."""
        for index in range(self.group.num_envs):
            if chosen is None or bool(chosen[index]):
                self._current[index] = None
                self._elsewhere[index] = of

    # -- step ------------------------------------------------------------------------------------------------------

    def step(
        self, td: TensorDictBase, mask: torch.Tensor | None, *, autoreset: bool
    ) -> tuple[TensorDictBase, TensorDictBase | None]:
        """Hand each row that is to be stepped its own part of `td`."""
        given = rows_of(td)
        masks = self._masks(mask)
        work = [
            (index, self._acting(index, given[index], row_mask))
            for index, row_mask in enumerate(masks)
            if row_mask is None or bool(row_mask.any())
        ]
        for index, _ in work:
            self.current_of(index)
        found = self.group.do(RowOp.STEP_AND_RESET if autoreset else RowOp.STEP, work) if work else {}
        following, roots = [], []
        for index, row_mask in enumerate(masks):
            came = found.get(index)
            row, fresh = self._came_of(index, came, given[index], autoreset=autoreset)
            following.append(row)
            mask_of_fresh = None if isinstance(came, Broken) else row_mask
            roots.append(self._root_after_step(index, row, fresh, mask_of_fresh))
        self._current = list(roots)
        return self._stacked(following), self._stacked(roots) if autoreset else None

    def send(self, td: TensorDictBase, indices: Sequence[int]) -> None:
        """Hand each row to its environment."""
        for index in indices:
            self.current_of(index)
        rows = [
            (index, self._acting(index, row, None)) for index, row in zip(indices, rows_of(td), strict=True)
        ]
        self.group.begin_rows(RowOp.STEP_AND_RESET, rows)
        self._sent.update(rows)

    def receive(
        self, at_least: int, timeout_s: float | None
    ) -> tuple[list[int], TensorDictBase | None, TensorDictBase | None]:
        """Stack the rows that are done."""
        found = self.group.finish_rows(at_least, timeout_s)
        if not found:
            return [], None, None
        roots = []
        rows = []
        for index, came in found.items():
            row, fresh = self._came_of(index, came, self._sent.pop(index), autoreset=True)
            rows.append(row)
            roots.append(self._root_after_step(index, row, fresh, None))
            self._current[index] = roots[-1]
        return list(found), self._stacked(rows), self._stacked(roots)

    def _came_of(
        self, index: int, came: Any, given: TensorDictBase, *, autoreset: bool
    ) -> tuple[TensorDictBase, TensorDictBase | None]:
        """What stands under a row's `next`, and its fresh root where there is one."""
        if came is None:
            return self._skipped(index, given), None
        if isinstance(came, Broken):
            return self._broken_off(index, given), came.fresh if autoreset else None
        return came if autoreset else (came, None)

    def _acting(self, index: int, given: TensorDictBase, mask: torch.Tensor | None) -> TensorDictBase:
        """A row as its environment gets it. Raises KeyError or RuntimeError for actions that do not fit, before anybody is
        told."""
        row = given.exclude(STEP, RESET, "next")
        lead = () if self._is_lazy else (self.group.num_envs,)
        for key, spec in self._inputs[index]:
            row.set(key, _input(row, key, spec, lead))
        for key, _ in self._kept[index]:
            if row.get(key, None) is None:
                row.set(key, self.current_of(index).get(key).clone())
        if mask is not None and not bool(mask.all()):
            row.set(STEP, mask.unsqueeze(-1))
        passed = given.get("next", None)
        if passed is not None:
            handed = {key: entry_of(passed, key) for key in self._handed_on(index)}
            for key, value in handed.items():
                if value is not None:
                    row.set(("next", *key), value)
        return row

    def _handed_on(self, index: int) -> list[Key]:
        """What of `next` an environment may look at: observations and states; never flags or rewards."""
        flags = {"done", "terminated", "truncated"}
        keys = [key for key, _ in self._kept[index] if key[-1] not in flags]
        return list(dict.fromkeys([*keys, *(key for key, _ in self._inputs[index])]))

    def _skipped(self, index: int, given: TensorDictBase) -> TensorDictBase:
        row = standing_of(given, self.current_of(index), self._no_reward[index])
        if self._is_marked:
            row.set(VALID[-1], torch.ones((*self._row_size, 1), dtype=torch.bool))
        return row

    def _broken_off(self, index: int, given: TensorDictBase) -> TensorDictBase:
        """What a row gives whose environment was replaced: its root, no reward, truncated and not valid."""
        row = standing_of(given, self.current_of(index), self._no_reward[index])
        for key, _ in self._kept[index]:
            if key[-1] in ("done", "truncated", "terminated"):
                row.set(key, torch.full_like(row.get(key), key[-1] != "terminated"))
        row.set(VALID[-1], torch.zeros((*self._row_size, 1), dtype=torch.bool))
        return row

    def _root_after_step(
        self, index: int, row: TensorDictBase, fresh: TensorDictBase | None, mask: torch.Tensor | None
    ) -> TensorDictBase:
        root = row.exclude(*self._no_reward[index], VALID[-1])
        if fresh is None:
            return root
        done = self._done_of(index, root)
        return merged_where(done if mask is None else done & mask.to(done.device), fresh, root)

    def _done_of(self, index: int, root: TensorDictBase) -> torch.Tensor:
        """Which elements of a row are done: by the root's flag where there is one."""
        keys = [key for key, _ in self._kept[index] if key[-1] == "done"]
        keys = [("done",)] if ("done",) in keys else keys
        flags = [root.get(key).reshape(*self._row_size, -1).any(-1) for key in keys]
        return torch.stack(flags).any(0)

    # -- parts -----------------------------------------------------------------------------------------------------

    def _masks(self, mask: torch.Tensor | None) -> list[torch.Tensor | None]:
        if mask is None:
            return [None] * self.group.num_envs
        return list(mask.unbind(0))

    def _stacked(self, rows: Sequence[TensorDictBase]) -> TensorDictBase:
        batch = stacked(rows, is_lazy=self._is_lazy)
        return batch if self.device is None or batch.device == self.device else batch.to(self.device)


def _inputs_of(meta: EnvMetaData) -> list[tuple[Key, Spec]]:
    return [leaf for group in ("action", "state") for leaf in meta.specs[group].leaves()]


def _observed_of(meta: EnvMetaData) -> list[tuple[Key, torch.Size]]:
    return [
        (key, spec.shape) for group in ("observation", "done") for key, spec in meta.specs[group].leaves()
    ]


def _input(row: TensorDictBase, key: Key, spec: Spec, lead: tuple[int, ...]) -> Any:
    """The environment's own copy of an action or a state, in its spec's dtype."""
    value = entry_of(row, key)
    if value is None:
        raise KeyError(f"the tensordict has no {spelled(key)}; a step needs it")
    if not isinstance(value, torch.Tensor) or not isinstance(spec, LeafSpec):
        return value
    if not fits(value.shape, spec.shape):
        raise RuntimeError(
            f"{spelled(key)} has shape {[*lead, *value.shape]}; its spec says {[*lead, *spec.shape]}"
        )
    return value.clone() if value.dtype == spec.dtype else value.to(spec.dtype)
