"""Specs of categories: as numbers (`Categorical`, `MultiCategorical`) and as vectors (`OneHot`, `MultiOneHot`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import torch

from rollout_worker.envs.spec_base import Device, LeafSpec, Shape, as_device, closed, indexed


def _positive(n: int, name: str) -> int:
    if n < 1:
        raise ValueError(f"{name}: the number of categories is {n}; it must be at least 1")
    return n


class _OneOfMany(LeafSpec):
    """Of `n` categories one; `mask` (bool, `[..., n]`, True = allowed) may rule some out."""

    n: int
    mask: torch.Tensor | None

    def _take_mask(self, mask: Any, shape: torch.Size) -> None:
        """Keep a mask, spread over `[*shape, n]`. Raises ValueError where nothing is allowed."""
        if mask is None:
            self.mask = None
            return
        given = torch.as_tensor(mask, dtype=torch.bool, device=self.device)
        if not given.ndim or given.shape[-1] != self.n:
            raise ValueError(
                f"{type(self).__name__}: the mask has shape {list(given.shape)}; it must end in n = {self.n}"
            )
        self.mask = given.expand(*shape, self.n)
        if not bool(self.mask.any(-1).all()):
            raise ValueError(f"{type(self).__name__}: the mask allows no category at all")

    def _domain(self) -> tuple[Any, ...]:
        return self.n, self.mask is None, self.mask if self.mask is not None else 0

    def _shown(self) -> dict[str, Any]:
        return {"n": self.n} if self.mask is None else {"n": self.n, "mask": self.mask.int().tolist()}

    def _number(self, shape: torch.Size, generator: torch.Generator | None) -> torch.Tensor:
        """Random category numbers of this shape, of those that the mask allows."""
        if self.mask is None:
            return torch.randint(0, self.n, shape, device=self.device, generator=generator)
        weights = self.mask.expand(*shape, self.n).reshape(-1, self.n).float()
        return torch.multinomial(weights, 1, generator=generator).reshape(shape)

    def _permitted(self, number: torch.Tensor) -> bool:
        """Whether the mask allows these category numbers, which are in range."""
        if self.mask is None:
            return True
        spread = self.mask.expand(*number.shape, self.n)
        return bool(spread.gather(-1, number.long().unsqueeze(-1)).all())

    def _nearest_number(self, number: torch.Tensor) -> torch.Tensor:
        """The category that is allowed and nearest."""
        number = number.clamp(0, self.n - 1).long()
        if self.mask is None:
            return number
        distance = (torch.arange(self.n, device=number.device) - number.unsqueeze(-1)).abs().double()
        return distance.masked_fill(~self.mask.expand(*number.shape, self.n), torch.inf).argmin(-1)


class Categorical(_OneOfMany):
    """Category numbers 0 to n - 1. `mask` (bool, `[*shape, n]`) says which are allowed."""

    def __init__(
        self,
        n: int,
        shape: Shape = (),
        device: Device = None,
        dtype: torch.dtype = torch.int64,
        mask: Any = None,
    ) -> None:
        super().__init__(shape, device, dtype)
        self.n = _positive(n, "Categorical")
        self._take_mask(mask, closed(self.shape))

    def _with(self, shape: torch.Size, device: torch.device | None) -> Self:
        mask = None if self.mask is None else self.mask.to(device).expand(*closed(shape), self.n)
        return type(self)(self.n, shape, device, self.dtype, mask)

    def _reshaped(self, shape: torch.Size) -> Self:
        mask = None if self.mask is None else self.mask.reshape(*closed(shape), self.n)
        return type(self)(self.n, shape, self.device, self.dtype, mask)

    def __getitem__(self, index: Any) -> Self:
        shape = indexed(self.shape, index)
        if self.mask is None:
            return type(self)(self.n, shape, self.device, self.dtype)
        at = index if isinstance(index, tuple) else (index,)
        mask = self.mask[(*at, slice(None))] if Ellipsis in at else self.mask[at]
        return type(self)(self.n, shape, self.device, self.dtype, mask)

    def masked(self, mask: Any) -> Self:
        """The spec with another mask (None: every category is allowed)."""
        return type(self)(self.n, self.shape, self.device, self.dtype, mask)

    def _draw(self, shape: torch.Size, generator: torch.Generator | None) -> torch.Tensor:
        return self._number(shape, generator)

    def _allows(self, value: torch.Tensor) -> bool:
        return bool(((value >= 0) & (value < self.n)).all()) and self._permitted(value)

    def _nearest(self, value: torch.Tensor) -> torch.Tensor:
        return self._nearest_number(value).to(self.dtype)

    def to_one_hot(self, value: torch.Tensor) -> torch.Tensor:
        """Category numbers as bool vectors of length n, in one more trailing dimension."""
        return torch.nn.functional.one_hot(value.long(), self.n).bool()

    def to_one_hot_spec(self) -> OneHot:
        """The spec of the vectors that `to_one_hot` gives."""
        return OneHot(self.n, (*self.shape, self.n), self.device, mask=self.mask)


class OneHot(_OneOfMany):
    """Vectors of length n with exactly one element set; `shape` ends in n. `mask` (bool, of that shape): which may be."""

    def __init__(
        self,
        n: int,
        shape: Shape | None = None,
        device: Device = None,
        dtype: torch.dtype = torch.bool,
        mask: Any = None,
    ) -> None:
        self.n = _positive(n, "OneHot")
        super().__init__((n,) if shape is None else shape, device, dtype)
        if not self.shape or self.shape[-1] != n:
            raise ValueError(f"OneHot: the shape {list(self.shape)} must end in n = {n}")
        self._take_mask(mask, closed(self.shape)[:-1])

    def _with(self, shape: torch.Size, device: torch.device | None) -> Self:
        mask = None if self.mask is None else self.mask.to(device).expand(closed(shape))
        return type(self)(self.n, shape, device, self.dtype, mask)

    def _reshaped(self, shape: torch.Size) -> Self:
        mask = None if self.mask is None else self.mask.reshape(closed(shape))
        return type(self)(self.n, shape, self.device, self.dtype, mask)

    def __getitem__(self, index: Any) -> Self:
        mask = None if self.mask is None else self.mask[index]
        return type(self)(self.n, indexed(self.shape, index), self.device, self.dtype, mask)

    def masked(self, mask: Any) -> Self:
        """The spec with another mask (None: every category is allowed)."""
        return type(self)(self.n, self.shape, self.device, self.dtype, mask)

    def _draw(self, shape: torch.Size, generator: torch.Generator | None) -> torch.Tensor:
        return torch.nn.functional.one_hot(self._number(shape[:-1], generator), self.n)

    def _allows(self, value: torch.Tensor) -> bool:
        is_set = value != 0
        if not bool((is_set.sum(-1) == 1).all()) or not bool((value.to(self.dtype)[is_set] == 1).all()):
            return False
        return self._permitted(self.to_categorical(value))

    def _nearest(self, value: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.one_hot(self._nearest_number(self.to_categorical(value)), self.n).to(
            self.dtype
        )

    def to_categorical(self, value: torch.Tensor) -> torch.Tensor:
        """Vectors as category numbers (int64), without the last dimension."""
        return value.to(torch.float32).argmax(-1)

    def to_categorical_spec(self) -> Categorical:
        """The spec of the numbers that `to_categorical` gives."""
        return Categorical(self.n, self.shape[:-1], self.device, mask=self.mask)

    def encode(self, value: Any) -> torch.Tensor:
        """A category number, or an array of them, as one-hot vectors; a vector as it is."""
        tensor = torch.as_tensor(np.asarray(value)) if not isinstance(value, torch.Tensor) else value
        if tensor.shape != self.shape:
            if not bool(((tensor >= 0) & (tensor < self.n)).all()):
                raise ValueError(f"{tensor.tolist()} is no category of {self}")
            tensor = torch.nn.functional.one_hot(tensor.long(), self.n)
        return super().encode(tensor)


class MultiCategorical(LeafSpec):
    """Category numbers, each element with its own count: `nvec` holds the counts and broadcasts to `shape`."""

    nvec: torch.Tensor

    def __init__(
        self, nvec: Any, shape: Shape | None = None, device: Device = None, dtype: torch.dtype = torch.int64
    ) -> None:
        counts = torch.as_tensor(nvec, dtype=torch.int64, device=as_device(device))
        super().__init__(counts.shape if shape is None else shape, device, dtype)
        self.nvec = counts.expand(closed(self.shape))
        if bool((self.nvec < 1).any()):
            raise ValueError(f"MultiCategorical: nvec is {self.nvec.tolist()}; each count must be at least 1")

    def _domain(self) -> tuple[Any, ...]:
        return (self.nvec,)

    def _shown(self) -> dict[str, Any]:
        return {"nvec": self.nvec.tolist()}

    def _with(self, shape: torch.Size, device: torch.device | None) -> Self:
        return type(self)(self.nvec.to(device).expand(closed(shape)), shape, device, self.dtype)

    def __getitem__(self, index: Any) -> Self:
        return type(self)(self.nvec[index], indexed(self.shape, index), self.device, self.dtype)

    def _reshaped(self, shape: torch.Size) -> Self:
        return type(self)(self.nvec.reshape(closed(shape)), shape, self.device, self.dtype)

    def _draw(self, shape: torch.Size, generator: torch.Generator | None) -> torch.Tensor:
        uniform = torch.rand(shape, dtype=torch.float64, device=self.device, generator=generator)
        return torch.minimum((uniform * self.nvec).long(), self.nvec - 1)

    def _allows(self, value: torch.Tensor) -> bool:
        return bool(((value >= 0) & (value < self.nvec)).all())

    def _nearest(self, value: torch.Tensor) -> torch.Tensor:
        return torch.minimum(value.long().clamp(min=0), self.nvec - 1).to(self.dtype)


class MultiOneHot(LeafSpec):
    """One-hot vectors of the lengths `nvec` side by side; `shape` ends in their sum."""

    def __init__(
        self,
        nvec: Sequence[int],
        shape: Shape | None = None,
        device: Device = None,
        dtype: torch.dtype = torch.bool,
    ) -> None:
        self.nvec = tuple(_positive(int(n), "MultiOneHot") for n in nvec)
        super().__init__((sum(self.nvec),) if shape is None else shape, device, dtype)
        if not self.shape or self.shape[-1] != sum(self.nvec):
            raise ValueError(
                f"MultiOneHot: the shape {list(self.shape)} must end in {sum(self.nvec)}, the sum of nvec"
            )

    def _domain(self) -> tuple[Any, ...]:
        return (self.nvec,)

    def _shown(self) -> dict[str, Any]:
        return {"nvec": self.nvec}

    def _parts(self, shape: torch.Size) -> list[OneHot]:
        return [OneHot(n, (*shape[:-1], n), self.device, self.dtype) for n in self.nvec]

    def _with(self, shape: torch.Size, device: torch.device | None) -> Self:
        return type(self)(self.nvec, shape, device, self.dtype)

    def _draw(self, shape: torch.Size, generator: torch.Generator | None) -> torch.Tensor:
        return torch.cat([part.rand(generator=generator) for part in self._parts(shape)], dim=-1)

    def _allows(self, value: torch.Tensor) -> bool:
        pieces = torch.split(value, list(self.nvec), dim=-1)
        return all(part._allows(piece) for part, piece in zip(self._parts(value.shape), pieces, strict=True))

    def _nearest(self, value: torch.Tensor) -> torch.Tensor:
        pieces = torch.split(value, list(self.nvec), dim=-1)
        parts = zip(self._parts(value.shape), pieces, strict=True)
        return torch.cat([part.project(piece) for part, piece in parts], dim=-1)

    def to_categorical(self, value: torch.Tensor) -> torch.Tensor:
        """Vectors as category numbers (int64), one per part in the last dimension."""
        pieces = torch.split(value, list(self.nvec), dim=-1)
        return torch.stack([piece.to(torch.float32).argmax(-1) for piece in pieces], -1)

    def encode(self, value: Any) -> torch.Tensor:
        """Category numbers, one per part in the last dimension, as vectors side by side; such vectors as they are."""
        tensor = torch.as_tensor(np.asarray(value)) if not isinstance(value, torch.Tensor) else value
        if tensor.shape != self.shape:
            parts = self._parts(self.shape)
            tensor = torch.cat(
                [part.encode(column) for part, column in zip(parts, tensor.unbind(-1), strict=True)], -1
            )
        return super().encode(tensor)
