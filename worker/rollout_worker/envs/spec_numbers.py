"""Specs of numbers: `Unbounded`, `Bounded`, `Binary`."""

from __future__ import annotations

from typing import Any, Self

import torch

from rollout_worker.envs.spec_base import Device, LeafSpec, Shape, as_device, as_shape, closed, indexed


class Unbounded(LeafSpec):
    """Any value of the dtype. Random floats are standard normal, integers one byte's worth."""

    def __init__(self, shape: Shape = (), device: Device = None, dtype: torch.dtype = torch.float32) -> None:
        super().__init__(shape, device, dtype)

    def _with(self, shape: torch.Size, device: torch.device | None) -> Self:
        return type(self)(shape, device, self.dtype)

    def _draw(self, shape: torch.Size, generator: torch.Generator | None) -> torch.Tensor:
        if self.dtype.is_floating_point or self.dtype.is_complex:
            dtype = self.dtype if self.dtype.is_complex else torch.float32
            return torch.randn(shape, dtype=dtype, device=self.device, generator=generator)
        is_signed = self.dtype.is_signed
        low, high = (0, 2) if self.dtype == torch.bool else (-128, 128) if is_signed else (0, 256)
        return torch.randint(low, high, shape, device=self.device, generator=generator)

    def _allows(self, value: torch.Tensor) -> bool:
        return True


class Bounded(LeafSpec):
    """Values from `low` to `high`, both included; numbers, or tensors that broadcast to `shape`. Bounds may be infinite."""

    low: torch.Tensor
    high: torch.Tensor

    def __init__(
        self,
        low: Any,
        high: Any,
        shape: Shape | None = None,
        device: Device = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        dtype = dtype or (low.dtype if isinstance(low, torch.Tensor) else torch.float32)
        lower = torch.as_tensor(low, dtype=dtype, device=as_device(device))
        upper = torch.as_tensor(high, dtype=dtype, device=as_device(device))
        size = (lower + upper).shape if shape is None else as_shape(shape)
        super().__init__(size, device, dtype)
        self.low, self.high = lower.expand(closed(self.shape)), upper.expand(closed(self.shape))
        if bool((_wide(self.low) > _wide(self.high)).any()):
            raise ValueError(f"Bounded: low {low} is above high {high}")

    def _domain(self) -> tuple[Any, ...]:
        return self.low, self.high

    def _shown(self) -> dict[str, Any]:
        bounds = {"low": self.low, "high": self.high}
        return {
            name: bound.ravel()[0].item()
            if bound.numel() and bool((bound == bound.ravel()[0]).all())
            else bound.tolist()
            for name, bound in bounds.items()
        }

    def _with(self, shape: torch.Size, device: torch.device | None) -> Self:
        low, high = (bound.to(device).expand(closed(shape)) for bound in (self.low, self.high))
        return type(self)(low, high, shape, device, self.dtype)

    def _reshaped(self, shape: torch.Size) -> Self:
        low, high = self.low.reshape(closed(shape)), self.high.reshape(closed(shape))
        return type(self)(low, high, shape, self.device, self.dtype)

    def __getitem__(self, index: Any) -> Self:
        shape = indexed(self.shape, index)
        return type(self)(self.low[index], self.high[index], shape, self.device, self.dtype)

    def _draw(self, shape: torch.Size, generator: torch.Generator | None) -> torch.Tensor:
        low, high = _wide(self.low).expand(shape), _wide(self.high).expand(shape)
        uniform = torch.rand(shape, dtype=torch.float64, device=self.device, generator=generator)
        if not self.dtype.is_floating_point:
            drawn = torch.floor(low + uniform * (high - low + 1))
            return (
                torch.minimum(torch.maximum(drawn, low), high)
                .to(torch.int64)
                .clamp(self._least(), self._most())
            )
        beyond = torch.empty(shape, dtype=torch.float64, device=self.device).exponential_(generator=generator)
        normal = torch.randn(shape, dtype=torch.float64, device=self.device, generator=generator)
        has_low, has_high = low.isfinite(), high.isfinite()
        drawn = torch.where(has_low & has_high, low * (1 - uniform) + high * uniform, normal)
        drawn = torch.where(has_low & ~has_high, low + beyond, drawn)
        drawn = torch.where(~has_low & has_high, high - beyond, drawn)
        return torch.minimum(
            torch.maximum(drawn.to(self.dtype), self.low.expand(shape)), self.high.expand(shape)
        )

    def _least(self) -> int:
        return int(self.low.min()) if self.low.numel() else 0

    def _most(self) -> int:
        return int(self.high.max()) if self.high.numel() else 0

    def _allows(self, value: torch.Tensor) -> bool:
        return bool(((_wide(value) >= _wide(self.low)) & (_wide(value) <= _wide(self.high))).all())

    def _nearest(self, value: torch.Tensor) -> torch.Tensor:
        low, high = _wide(self.low), _wide(self.high)
        return torch.minimum(torch.maximum(_wide(value), low), high).to(self.dtype)


def _wide(value: torch.Tensor) -> torch.Tensor:
    """In a dtype in which bounds of any dtype can be compared (torch has few operations on the wider unsigned ones)."""
    if value.dtype in (torch.int64, torch.float64):
        return value
    return (
        value.to(torch.float64)
        if value.dtype.is_floating_point or value.dtype == torch.uint64
        else value.to(torch.int64)
    )


class Binary(LeafSpec):
    """Zeros and ones; `n` is the shape's last dimension where no shape is given."""

    def __init__(
        self,
        n: int | None = None,
        shape: Shape | None = None,
        device: Device = None,
        dtype: torch.dtype = torch.int8,
    ) -> None:
        super().__init__(shape if shape is not None else () if n is None else (n,), device, dtype)
        if n is not None and (not self.shape or self.shape[-1] != n):
            raise ValueError(f"Binary: the shape {list(self.shape)} must end in n = {n}")

    def _with(self, shape: torch.Size, device: torch.device | None) -> Self:
        return type(self)(None, shape, device, self.dtype)

    def _draw(self, shape: torch.Size, generator: torch.Generator | None) -> torch.Tensor:
        return torch.randint(0, 2, shape, device=self.device, generator=generator)

    def _allows(self, value: torch.Tensor) -> bool:
        return self.dtype == torch.bool or bool(((value == 0) | (value == 1)).all())

    def _nearest(self, value: torch.Tensor) -> torch.Tensor:
        return (value != 0).to(self.dtype)
