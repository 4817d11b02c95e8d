"""How a batched environment's rows are moved: what `BatchedEnv` asks of its engine.

`block_engine` moves them through a block of arrays, `row_engine` as tensordicts. Both give the same results.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from tensordict import TensorDictBase

from rollout_worker.envs.group import EnvGroup


@dataclass(frozen=True, slots=True)
class ResetOrder:
    """What a reset hands over: `td` and the mask of what to reset (None: all), of the batch's whole size.

    `kwargs` holds one mapping per row. `only_mask` keeps the rest of `td` from the environments, so that an
    observation that is over cannot be taken for one to start from.
    """

    td: TensorDictBase | None
    mask: torch.Tensor | None
    kwargs: Sequence[Mapping[str, Any]]
    only_mask: bool = False


class Engine(ABC):
    """Moves the rows of a group that runs."""

    group: EnvGroup

    @abstractmethod
    def reset(self, order: ResetOrder) -> TensorDictBase:
        """Reset what the order says; gives the root of every row: what was not reset as `td` has it, or as it stands."""

    @abstractmethod
    def step(
        self, td: TensorDictBase, mask: torch.Tensor | None, *, autoreset: bool
    ) -> tuple[TensorDictBase, TensorDictBase | None]:
        """Step the rows that the mask marks (None: all); gives what stands under `next` then, and with `autoreset` the
        observations and flags of the following root, already reset where done."""

    @abstractmethod
    def send(self, td: TensorDictBase, indices: Sequence[int]) -> None:
        """Have environments stepped (and reset where they end) whatever the others are doing; `td` has a row for each."""

    @abstractmethod
    def receive(
        self, at_least: int, timeout_s: float | None
    ) -> tuple[list[int], TensorDictBase | None, TensorDictBase | None]:
        """Wait for environments that were sent; gives which are done, what stands under `next` then, and their next
        roots' observations and flags, a row for each (None where none is done in time)."""

    @abstractmethod
    def moved(self, device: torch.device | None) -> Engine:
        """The same engine with its results on another device."""
