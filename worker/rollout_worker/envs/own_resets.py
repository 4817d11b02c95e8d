"""For environments whose `_step` gives the first observation of the next episode where it is done (`auto_reset=True`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from tensordict import TensorDict, TensorDictBase

from rollout_worker.envs.describe import Key
from rollout_worker.envs.transitions import RESET, merged_where


class OwnResets:
    """Keeps the observations with which episodes have begun, until their rows are reset."""

    def __init__(self, *, is_replacing: bool) -> None:
        self._is_replacing = is_replacing
        self._begun: TensorDictBase | None = None
        self._rows: torch.Tensor | None = None

    def take(self, following: TensorDictBase, done: torch.Tensor, keys: Iterable[Key]) -> None:
        """Keep the observations of done rows; with replacing, put NaN (floats) or 0 in their place."""
        self._begun = self._rows = None
        if not bool(done.any()):
            return
        observed = [key for key in keys if isinstance(following.get(key, None), torch.Tensor)]
        self._begun, self._rows = following.select(*observed).clone(), done
        if self._is_replacing:
            for key in observed:
                value = following.get(key)
                spread = done.reshape((*done.shape, *(1,) * (value.ndim - done.ndim)))
                nothing = torch.nan if value.dtype.is_floating_point else 0
                following.set(key, value.masked_fill(spread, nothing))

    def reset(
        self,
        mask: torch.Tensor,
        reset: Callable[[TensorDictBase], TensorDictBase],
        *,
        batch_size: torch.Size,
    ) -> TensorDictBase:
        """The root of the marked rows: what was kept, and `reset` for those that began nothing by themselves."""
        begun, rows = self._begun, self._rows
        self._begun = self._rows = None
        if begun is None or rows is None:
            return reset(TensorDict({RESET: mask.unsqueeze(-1)}, batch_size=batch_size))
        rest = mask & ~rows
        if not bool(rest.any()):
            return begun.clone()
        fresh = reset(TensorDict({RESET: rest.unsqueeze(-1)}, batch_size=batch_size))
        return merged_where(~rows, fresh, begun)
