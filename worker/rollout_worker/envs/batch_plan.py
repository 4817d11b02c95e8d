"""Decides how a batch of environments is stepped, from what is known of each: pure, nothing is started.

Called by `BatchedEnv` when it is constructed and when it is configured anew.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch

from rollout_contract.errors import LayoutMismatch
from rollout_worker.envs.batch_settings import BatchSettings
from rollout_worker.envs.describe import Key, differences, spelled
from rollout_worker.envs.metadata import GROUPS, EnvMetaData
from rollout_worker.envs.row_fit import nested_sizes
from rollout_worker.envs.row_memory import RowPlan, row_plan_of
from rollout_worker.envs.spec_stack import stack_specs
from rollout_worker.envs.specs import Composite


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """`metas` has one entry per row. `uses_block` says that rows go through a block of arrays; otherwise they go as
    tensordicts, and `is_lazy` says that the results stay apart even where they could be stacked."""

    metas: tuple[EnvMetaData, ...]
    batch_size: torch.Size
    device: torch.device | None
    uses_block: bool
    is_lazy: bool
    is_dynamic: bool
    takes_rows: bool
    rows: RowPlan | None = None
    """The memory that rows are stepped through, if they are; where they do not go through a block."""

    def specs(self) -> dict[str, Composite]:
        """The specs of the batch, by group."""
        return {group: self._tree(group) for group in GROUPS}

    def _tree(self, group: str) -> Composite:
        tree = stack_specs([meta.specs[group] for meta in self.metas])
        return cast("Composite", tree if self.device is None else tree.to(self.device))

    def sizes(self) -> dict[Key, torch.Size]:
        """The batch sizes of a row's tensordicts below its root, by key."""
        return nested_sizes(self.metas[0].specs.values())


def plan_of(
    metas: Sequence[EnvMetaData],
    settings: BatchSettings,
    *,
    device: torch.device | None,
    is_one_task: bool,
    is_in_process: bool,
) -> BatchPlan:
    """The plan for such environments.

    Raises ValueError where rows cannot be put together as the settings want it, LayoutMismatch (a ValueError too)
    where keywords change the specs of one factory. Warns where buffers were asked for that cannot be.
    """
    _refuse_unlike_batches(metas)
    uneven = _uneven(metas)
    if uneven and is_one_task:
        raise LayoutMismatch("environments' own", uneven)
    if uneven and settings.share_individual_td is False:
        raise ValueError(
            "share_individual_td=False, but the rows cannot be stacked into one tensor per key: "
            + "; ".join(uneven)
        )
    is_dynamic = any(meta.is_dynamic for meta in metas)
    if is_dynamic and settings.use_buffers:
        warnings.warn(
            "use_buffers=True is not possible where a spec leaves a size open: rows go without", stacklevel=4
        )
    is_lazy = bool(uneven) or bool(settings.share_individual_td)
    takes_rows = any(meta.takes_rows for meta in metas)
    uses_block = (
        settings.use_buffers is not False
        and not is_lazy
        and not (is_in_process and takes_rows)  # nothing is saved there, and gradients would be lost
        and _share_a_block(metas)
    )
    has_rows = not uses_block and not is_in_process and not is_lazy and not is_dynamic
    return BatchPlan(
        metas=tuple(metas),
        batch_size=torch.Size((len(metas), *metas[0].batch_size)),
        device=_device(metas) if device is None else device,
        uses_block=uses_block,
        is_lazy=is_lazy,
        is_dynamic=is_dynamic,
        takes_rows=takes_rows,
        rows=row_plan_of(metas) if settings.use_buffers is not False and has_rows else None,
    )


def _share_a_block(metas: Sequence[EnvMetaData]) -> bool:
    first = metas[0].description
    if first is None:
        return False
    others = {id(meta): meta for meta in metas[1:]}.values()
    return all(meta.description is not None and not differences(first, meta.description) for meta in others)


def _refuse_unlike_batches(metas: Sequence[EnvMetaData]) -> None:
    first = metas[0].batch_size
    for index, meta in enumerate(metas):
        if meta.batch_size != first:
            raise ValueError(
                f"environments of one batch need one batch size: environment 0 has {list(first)}, environment {index} has "
                f"{list(meta.batch_size)}"
            )


def _uneven(metas: Sequence[EnvMetaData]) -> list[str]:
    """Where rows differ in keys, shapes or dtypes from the first one; one sentence per leaf."""
    wanted = metas[0].shapes()
    lines: list[str] = []
    seen = {id(metas[0])}
    for index, meta in enumerate(metas):
        if id(meta) in seen:
            continue
        seen.add(id(meta))
        given = meta.shapes()
        for key in [*wanted, *(key for key in given if key not in wanted)]:
            if wanted.get(key) != given.get(key):
                group, *name = key
                lines.append(
                    f"{group} {spelled(tuple(name))}: {_said(wanted.get(key))} in environment 0 against "
                    f"{_said(given.get(key))} in environment {index}"
                )
    return lines


def _said(leaf: tuple[object, ...] | None) -> str:
    if leaf is None:
        return "absent"
    shape, dtype = leaf
    return f"shape {shape}, {str(dtype).removeprefix('torch.')}"


def _device(metas: Sequence[EnvMetaData]) -> torch.device | None:
    devices = dict.fromkeys(meta.device for meta in metas)
    if len(devices) > 1:
        raise ValueError(
            f"the environments are on different devices ({', '.join(map(str, devices))}): say which one the batch is on"
        )
    return metas[0].device
