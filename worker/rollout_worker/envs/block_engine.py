"""Moves rows through a block of one frame: results are copied out of it once, so that they are the caller's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from tensordict import NonTensorStack, TensorDict, TensorDictBase

from rollout_worker.envs.commands import RowOp, Step
from rollout_worker.envs.describe import Key, spelled
from rollout_worker.envs.engine import Engine, ResetOrder
from rollout_worker.envs.layout import VALID, flag_keys
from rollout_worker.envs.native import Start
from rollout_worker.envs.open_rollout import open_rollout
from rollout_worker.envs.row_codec import encoded
from rollout_worker.envs.specs import Composite
from rollout_worker.envs.stacking import rows_of
from rollout_worker.envs.transitions import (
    RESET,
    STEP,
    entries_of,
    merged_where,
    standing_of,
    tensordict_of,
    tree_of,
)
from rollout_worker.envs.vector import VectorEnv

_STEP_ONLY = Step(0, 0, 1, autoreset=False)
_STEP_AND_RESET = Step(0, 0, 1, autoreset=True)


class BlockEngine(Engine):
    """A vector env with a block of one frame.

    `takes_rows` says that the environments are ours and take a tensordict to start from; `sizes` are the batch
    sizes of the tensordicts below the root.
    """

    group: VectorEnv

    def __init__(
        self,
        group: VectorEnv,
        *,
        device: torch.device | None,
        sizes: Mapping[Key, torch.Size],
        takes_rows: bool,
    ) -> None:
        self.group = group
        self._takes_rows = takes_rows
        self._sizes, self._device = sizes, device
        self._view = BlockView(group, device, sizes)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_view": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._view = BlockView(self.group, self._device, self._sizes)

    def moved(self, device: torch.device | None) -> BlockEngine:
        """Another view of the same block."""
        return BlockEngine(self.group, device=device, sizes=self._sizes, takes_rows=self._takes_rows)

    def reset(self, order: ResetOrder) -> TensorDictBase:
        """Reset through the control page's mask; keywords and rows are staged beforehand."""
        td, mask, view = order.td, order.mask, self._view_of_one_frame()
        chosen = range(self.group.num_envs) if mask is None else np.flatnonzero(mask.cpu().numpy()).tolist()
        if chosen:
            starts = self._starts(order, chosen)
            if starts:
                self.group.stage(starts)
            self.group.reset(mask=None if mask is None else mask.cpu().numpy())
        fresh = view.root()
        return fresh if td is None or mask is None else merged_where(mask, fresh, td)

    def _starts(self, order: ResetOrder, chosen: Any) -> dict[int, Start]:
        rows: list[Any] = []
        if self._takes_rows and order.td is not None:
            only_mask = order.only_mask and order.mask is not None
            empty = TensorDict({}, batch_size=order.td.batch_size)
            given = empty if only_mask else order.td.exclude("next", STEP)
            if order.mask is not None:
                given.set(RESET, order.mask.reshape(-1, 1))
            rows = rows_of(given)
        return {
            index: Start(order.kwargs[index], encoded(rows[index]) if rows else None)
            for index in chosen
            if rows or order.kwargs[index]
        }

    def step(
        self, td: TensorDictBase, mask: torch.Tensor | None, *, autoreset: bool
    ) -> tuple[TensorDictBase, TensorDictBase | None]:
        """Write the actions, step, copy out."""
        view = self._view if self.group.settings.num_steps == 1 else self._view_of_one_frame()
        view.put_actions(td)
        if mask is None:
            self.group.advance(_STEP_AND_RESET if autoreset else _STEP_ONLY)
            return view.following(), view.root() if autoreset else None
        if bool(mask.any()):
            self.group.advance(Step(0, 0, 1, autoreset, masked=True), mask=mask.cpu().numpy())
        following = merged_where(mask, view.following(), self._standing(td))
        if not autoreset:
            return following, None
        root = merged_where(mask, view.root(), td)
        return following, root

    def memory(self, *, is_file: bool) -> TensorDictBase:
        """The block itself as a locked tensordict: what the environments write. Its content changes with every step."""
        view = self._view_of_one_frame()
        block = self.group.blocks[0]
        leaves = {key: tensor[:, 0] for key, tensor in block.tensors.items()}
        sizes = {("next", *key): size for key, size in view.sizes.items()} | view.sizes
        return shared_view(leaves, torch.Size((self.group.num_envs,)), sizes, is_file=is_file)

    def can_run_open(self) -> bool:
        """Whether frames can be stepped in runs: everything is a tensor, and nothing is under way."""
        return not self.group.layout.objects

    def run_open(self, num_steps: int, action_spec: Composite) -> TensorDictBase:
        """Reset all, and step that many frames with random actions."""
        self.group.reset()
        return open_rollout(self.group, num_steps, action_spec, device=self._device, sizes=self._sizes)

    def _view_of_one_frame(self) -> BlockView:
        """The view of a block that is one frame long; a longer one, left by a run, is given up."""
        if self.group.settings.num_steps != 1:
            self.group.remap(num_steps=1)
            self._view = BlockView(self.group, self._device, self._sizes)
        return self._view

    def send(self, td: TensorDictBase, indices: Sequence[int]) -> None:
        """Write the rows' actions, and have them stepped."""
        self._view_of_one_frame().put_actions(td, list(indices))
        self.group.begin_rows(RowOp.STEP_AND_RESET, [(index, None) for index in indices])

    def receive(
        self, at_least: int, timeout_s: float | None
    ) -> tuple[list[int], TensorDictBase | None, TensorDictBase | None]:
        """Copy out the rows that are done."""
        indices = list(self.group.finish_rows(at_least, timeout_s))
        if not indices:
            return [], None, None
        return indices, self._view.rows_of_next(indices), self._view.rows_of_root(indices)

    def _standing(self, td: TensorDictBase) -> TensorDictBase:
        """What skipped rows give: their root (as it stands where `td` has none), and reward 0."""
        return standing_of(td, self._view.root(), self._view.no_reward())


class BlockView:
    """The one-frame block of a vector env, as tensordicts whose tensors are copies."""

    def __init__(
        self, group: VectorEnv, device: torch.device | None, sizes: Mapping[Key, torch.Size]
    ) -> None:
        block, carry = group.blocks[0], group.carry
        layout = block.layout
        self._batch_size, self._device = torch.Size((group.num_envs,)), device
        self.sizes = {key: torch.Size((group.num_envs, *size)) for key, size in sizes.items()}
        flags = flag_keys(layout.done_groups)
        keys = [key for key in (*layout.root_keys, *layout.reward_keys, *flags) if key not in layout.objects]
        keys += [VALID[1:]] if VALID in block.arrays else []
        self._next_views = [(key, block.tensors["next", *key][:, 0]) for key in keys]
        self._next = [(key, copier(view, device)) for key, view in self._next_views]
        roots = [key for key in layout.root_keys if key not in layout.objects]
        self._carry_views = [(key, carry.tensors[key][:, 0]) for key in roots]
        self._carry = [(key, copier(view, device)) for key, view in self._carry_views]
        self._flags = [
            (key, _blank((*self._batch_size, *block.arrays["next", *key].shape[2:]), device)) for key in flags
        ]
        self._objects = [
            (key, block.arrays["next", *key], carry.arrays[key])
            for key in layout.root_keys
            if key in layout.objects
        ]
        self._no_reward = {
            key: torch.zeros_like(block.tensors["next", *key][:, 0], device=device)
            for key in layout.reward_keys
        }
        if VALID in block.arrays:
            self._no_reward[VALID[1:]] = torch.ones_like(block.tensors[VALID][:, 0], device=device)
        self._actions = [(key, block.tensors[key][:, 0]) for key in layout.action_keys]
        self._is_flat = all(len(key) == 1 for key in (*keys, *layout.root_keys))

    def put_actions(self, td: TensorDictBase, indices: list[int] | None = None) -> None:
        """Write a tensordict's actions into the block: all rows, or those of some environments.

        Raises KeyError for one that is missing, RuntimeError for one of another shape.
        """
        entries = entries_of(td)
        for key, target in self._actions:
            action = entries.get(key[0]) if len(key) == 1 else td.get(key, None)
            if action is None:
                raise KeyError(f"the tensordict has no {spelled(key)}; a step needs it")
            wanted = target.shape if indices is None else (len(indices), *target.shape[1:])
            if action.shape != wanted:
                raise RuntimeError(
                    f"{spelled(key)} has shape {list(action.shape)}; its spec says {list(wanted)}"
                )
            if indices is not None:
                target[indices] = action.detach().to(target.device, target.dtype)
                continue
            target.copy_(action.detach() if action.requires_grad else action)

    def no_reward(self) -> dict[Key, torch.Tensor]:
        """What a skipped row has beside its root: rewards of zero, and that it is valid."""
        return self._no_reward

    def root(self) -> TensorDictBase:
        """The observation to act on, with flags that are all False."""
        leaves: dict[Key, Any] = {key: copy() for key, copy in self._carry}
        for key, _, array in self._objects:
            leaves[key] = NonTensorStack(*array[:, 0].tolist())
        for key, blank in self._flags:
            leaves[key] = blank()
        return self._tensordict(leaves)

    def following(self) -> TensorDictBase:
        """What the last step gave."""
        leaves: dict[Key, Any] = {key: copy() for key, copy in self._next}
        for key, array, _ in self._objects:
            leaves[key] = NonTensorStack(*array[:, 0].tolist())
        return self._tensordict(leaves)

    def rows_of_next(self, indices: list[int]) -> TensorDictBase:
        """What the last step of some environments gave. The others may be at work meanwhile."""
        leaves: dict[Key, Any] = {key: view[indices] for key, view in self._next_views}
        for key, array, _ in self._objects:
            leaves[key] = NonTensorStack(*array[indices, 0].tolist())
        return self._of_rows(leaves, len(indices))

    def rows_of_root(self, indices: list[int]) -> TensorDictBase:
        """The observations that some environments act on next, with flags that are all False."""
        leaves: dict[Key, Any] = {key: view[indices] for key, view in self._carry_views}
        for key, _, array in self._objects:
            leaves[key] = NonTensorStack(*array[indices, 0].tolist())
        for key, blank in self._flags:
            leaves[key] = blank()[: len(indices)]
        return self._of_rows(leaves, len(indices))

    def _of_rows(self, leaves: dict[Key, Any], num_rows: int) -> TensorDictBase:
        sizes = {key: torch.Size((num_rows, *size[1:])) for key, size in self.sizes.items()}
        size = torch.Size((num_rows,))
        found = tensordict_of(tree_of(leaves, size, None, sizes), size, None)
        return found if self._device is None else found.to(self._device)

    def _tensordict(self, leaves: dict[Key, Any]) -> TensorDictBase:
        if self._is_flat:
            tree: dict[str, Any] = {key[0]: value for key, value in leaves.items()}
        else:
            tree = tree_of(leaves, self._batch_size, self._device, self.sizes)
        return tensordict_of(tree, self._batch_size, self._device)


def shared_view(
    leaves: Mapping[Key, torch.Tensor], size: torch.Size, sizes: Mapping[Key, torch.Size], *, is_file: bool
) -> TensorDictBase:
    """Leaves of shared memory as a locked tensordict, which says of itself where it lies."""
    found = tensordict_of(tree_of(leaves, size, None, sizes), size, None)
    for part in (found, *(each for each in found.values(True) if isinstance(each, TensorDictBase))):
        part._is_memmap, part._is_shared = is_file, not is_file
    return found.lock_()


def copier(view: torch.Tensor, device: torch.device | None) -> Callable[[], torch.Tensor]:
    """A function that gives the caller's own copy of what a view holds now."""
    if device is not None and device != view.device:
        return lambda: view.to(device)
    if view.dtype == torch.bfloat16:
        return view.clone
    array = view.numpy()
    return lambda: torch.from_numpy(array.copy())  # half the cost of a clone for small arrays


def _blank(shape: tuple[int, ...], device: torch.device | None) -> Callable[[], torch.Tensor]:
    """A function that gives new flags, all False."""
    if device is None or device.type == "cpu":
        return lambda: torch.from_numpy(np.zeros(shape, dtype=np.bool_))
    return lambda: torch.zeros(shape, dtype=torch.bool, device=device)
