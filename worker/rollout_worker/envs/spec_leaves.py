"""Specs of single leaves: what values of one tensor are allowed, and how to make, check and repair them.

Names and arguments are those that TorchRL users know. A spec never changes; operations give a new one. Random
values come from torch's global generator, or from the one that is passed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from math import prod
from typing import Any, Self, TypeAlias

import numpy as np
import torch

Shape: TypeAlias = int | Sequence[int] | torch.Size
Device: TypeAlias = torch.device | str | int | None


def as_shape(shape: Shape) -> torch.Size:
    """A shape from an int or a sequence."""
    return torch.Size((shape,)) if isinstance(shape, int) else torch.Size(shape)


def as_device(device: Device) -> torch.device | None:
    """A device from any of its spellings; None stays None."""
    return None if device is None else torch.device(device)


class Spec(ABC):
    """What one entry of a tensordict may hold. `shape` includes all batch dimensions; `device` None means any."""

    shape: torch.Size
    device: torch.device | None

    @abstractmethod
    def rand(self, shape: Shape = (), *, generator: torch.Generator | None = None) -> Any:
        """A random allowed value of shape `[*shape, *self.shape]`."""

    @abstractmethod
    def zero(self, shape: Shape = ()) -> Any:
        """A value of zeros of shape `[*shape, *self.shape]`, allowed or not."""

    @abstractmethod
    def is_in(self, value: Any) -> bool:
        """Whether a value is allowed: dtype, trailing shape and domain."""

    @abstractmethod
    def project(self, value: Any) -> Any:
        """The value itself where it is allowed, else the nearest that is."""

    @abstractmethod
    def encode(self, value: Any) -> Any:
        """A Python or numpy value as this spec stores it."""

    @abstractmethod
    def expand(self, *shape: Any) -> Self:
        """The spec with other batch dimensions in front, as `torch.Tensor.expand` gives a tensor."""

    @abstractmethod
    def to(self, device: Device) -> Self:
        """The spec on another device."""

    @abstractmethod
    def __getitem__(self, index: Any) -> Any:
        """The spec of a part of the value."""

    def clone(self) -> Self:
        """A spec that shares nothing that could be changed with this one."""
        return self.to(self.device)

    def assert_is_in(self, value: Any) -> None:
        """Raise ValueError, saying what is wrong, for a value that is not allowed."""
        if not self.is_in(value):
            given = f"{value.dtype}{list(value.shape)}" if isinstance(value, torch.Tensor) else repr(value)
            raise ValueError(f"{given} is not in {self}")


def expanded(old: torch.Size, new: tuple[Any, ...]) -> torch.Size:
    """The shape that `expand(*new)` asks for. Raises ValueError where the old one cannot become it."""
    wanted = torch.Size(new[0] if len(new) == 1 and not isinstance(new[0], int) else new)
    tail = wanted[len(wanted) - len(old) :] if len(wanted) >= len(old) else ()
    if len(wanted) < len(old) or any(a not in (1, b) for a, b in zip(old, tail, strict=True)):
        raise ValueError(f"a spec of shape {list(old)} cannot be expanded to {list(wanted)}")
    return wanted


def indexed(shape: torch.Size, index: Any) -> torch.Size:
    """The shape of `tensor[index]` for a tensor of such a shape."""
    return torch.empty(shape, device="meta")[index].shape


class LeafSpec(Spec):
    """A spec of one tensor. Subclasses say what distinguishes them through `_domain`."""

    dtype: torch.dtype

    def __init__(self, shape: Shape, device: Device, dtype: torch.dtype) -> None:
        self.shape = as_shape(shape)
        self.device = as_device(device)
        self.dtype = dtype

    def _domain(self) -> tuple[Any, ...]:
        """What two specs of one class, shape, dtype and device must share to be equal."""
        return ()

    @abstractmethod
    def _with(self, shape: torch.Size, device: torch.device | None) -> Self:
        """The same domain over another shape and device."""

    @abstractmethod
    def _draw(self, shape: torch.Size, generator: torch.Generator | None) -> torch.Tensor: ...

    @abstractmethod
    def _allows(self, value: torch.Tensor) -> bool: ...

    def rand(self, shape: Shape = (), *, generator: torch.Generator | None = None) -> torch.Tensor:
        return self._draw(torch.Size((*as_shape(shape), *self.shape)), generator).to(self.dtype)

    def zero(self, shape: Shape = ()) -> torch.Tensor:
        return torch.zeros((*as_shape(shape), *self.shape), dtype=self.dtype, device=self.device)

    def one(self, shape: Shape = ()) -> torch.Tensor:
        """A value of ones, allowed or not."""
        return torch.ones((*as_shape(shape), *self.shape), dtype=self.dtype, device=self.device)

    def is_in(self, value: Any) -> bool:
        if not isinstance(value, torch.Tensor) or value.dtype != self.dtype:
            return False
        return value.shape[value.ndim - len(self.shape) :] == self.shape and (
            value.ndim >= len(self.shape) and self._allows(value)
        )

    def project(self, value: torch.Tensor) -> torch.Tensor:
        return value if self.is_in(value) else self._nearest(value.to(self.dtype))

    def _nearest(self, value: torch.Tensor) -> torch.Tensor:
        return value

    def encode(self, value: Any) -> torch.Tensor:
        tensor = value if isinstance(value, torch.Tensor) else torch.as_tensor(np.asarray(value))
        tensor = tensor.to(device=self.device, dtype=self.dtype)
        if tensor.shape != self.shape and tensor.numel() == prod(self.shape):
            tensor = tensor.reshape(self.shape)
        self.assert_is_in(tensor)
        return tensor

    def expand(self, *shape: Any) -> Self:
        return self._with(expanded(self.shape, shape), self.device)

    def to(self, device: Device) -> Self:
        return self._with(self.shape, as_device(device))

    def __getitem__(self, index: Any) -> Self:
        return self._with(indexed(self.shape, index), self.device)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return False
        assert isinstance(other, LeafSpec)
        return (self.shape, self.dtype, self.device) == (other.shape, other.dtype, other.device) and _same(
            self._domain(), other._domain()
        )

    def __hash__(self) -> int:
        return hash((type(self), self.shape, self.dtype, self.device))

    def __repr__(self) -> str:
        domain = "".join(f", {name}={value}" for name, value in self._shown().items())
        device = "" if self.device is None else f", device={str(self.device)!r}"
        return f"{type(self).__name__}(shape={tuple(self.shape)}, dtype={self.dtype}{device}{domain})"

    def _shown(self) -> dict[str, Any]:
        return {}


def _same(left: tuple[Any, ...], right: tuple[Any, ...]) -> bool:
    return all(
        torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b for a, b in zip(left, right, strict=True)
    )


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
        self.low, self.high = lower.expand(self.shape), upper.expand(self.shape)
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
        return type(self)(
            self.low.to(device).expand(shape), self.high.to(device).expand(shape), shape, device, self.dtype
        )

    def __getitem__(self, index: Any) -> Self:
        return type(self)(self.low[index], self.high[index], self.low[index].shape, self.device, self.dtype)

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


class Categorical(LeafSpec):
    """Category numbers 0 to n - 1."""

    def __init__(
        self, n: int, shape: Shape = (), device: Device = None, dtype: torch.dtype = torch.int64
    ) -> None:
        super().__init__(shape, device, dtype)
        self.n = _positive(n, "Categorical")

    def _domain(self) -> tuple[Any, ...]:
        return (self.n,)

    def _shown(self) -> dict[str, Any]:
        return {"n": self.n}

    def _with(self, shape: torch.Size, device: torch.device | None) -> Self:
        return type(self)(self.n, shape, device, self.dtype)

    def _draw(self, shape: torch.Size, generator: torch.Generator | None) -> torch.Tensor:
        return torch.randint(0, self.n, shape, device=self.device, generator=generator)

    def _allows(self, value: torch.Tensor) -> bool:
        return bool(((value >= 0) & (value < self.n)).all())

    def _nearest(self, value: torch.Tensor) -> torch.Tensor:
        return value.clamp(0, self.n - 1)

    def to_one_hot(self, value: torch.Tensor) -> torch.Tensor:
        """Category numbers as bool vectors of length n, in one more trailing dimension."""
        return torch.nn.functional.one_hot(value.long(), self.n).bool()


class OneHot(LeafSpec):
    """Vectors of length n with exactly one element set; `shape` ends in n."""

    def __init__(
        self, n: int, shape: Shape | None = None, device: Device = None, dtype: torch.dtype = torch.bool
    ) -> None:
        self.n = _positive(n, "OneHot")
        super().__init__((n,) if shape is None else shape, device, dtype)
        if not self.shape or self.shape[-1] != n:
            raise ValueError(f"OneHot: the shape {list(self.shape)} must end in n = {n}")

    def _domain(self) -> tuple[Any, ...]:
        return (self.n,)

    def _shown(self) -> dict[str, Any]:
        return {"n": self.n}

    def _with(self, shape: torch.Size, device: torch.device | None) -> Self:
        return type(self)(self.n, shape, device, self.dtype)

    def _draw(self, shape: torch.Size, generator: torch.Generator | None) -> torch.Tensor:
        index = torch.randint(0, self.n, shape[:-1], device=self.device, generator=generator)
        return torch.nn.functional.one_hot(index, self.n)

    def _allows(self, value: torch.Tensor) -> bool:
        is_set = value != 0
        return bool((is_set.sum(-1) == 1).all()) and bool((value.to(self.dtype)[is_set] == 1).all())

    def _nearest(self, value: torch.Tensor) -> torch.Tensor:
        index = value.to(torch.float32).argmax(-1)
        return torch.nn.functional.one_hot(index, self.n).to(self.dtype)

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
        self.nvec = counts.expand(self.shape)
        if bool((self.nvec < 1).any()):
            raise ValueError(f"MultiCategorical: nvec is {self.nvec.tolist()}; each count must be at least 1")

    def _domain(self) -> tuple[Any, ...]:
        return (self.nvec,)

    def _shown(self) -> dict[str, Any]:
        return {"nvec": self.nvec.tolist()}

    def _with(self, shape: torch.Size, device: torch.device | None) -> Self:
        return type(self)(self.nvec.to(device).expand(shape), shape, device, self.dtype)

    def __getitem__(self, index: Any) -> Self:
        return type(self)(self.nvec[index], self.nvec[index].shape, self.device, self.dtype)

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

    def encode(self, value: Any) -> torch.Tensor:
        """Category numbers, one per part in the last dimension, as vectors side by side; such vectors as they are."""
        tensor = torch.as_tensor(np.asarray(value)) if not isinstance(value, torch.Tensor) else value
        if tensor.shape != self.shape:
            parts = self._parts(self.shape)
            tensor = torch.cat(
                [part.encode(column) for part, column in zip(parts, tensor.unbind(-1), strict=True)], -1
            )
        return super().encode(tensor)


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


class NonTensor(Spec):
    """Anything that is no tensor: a text, an object. `example` is what `rand` and `zero` give."""

    def __init__(self, shape: Shape = (), device: Device = None, example: Any = "") -> None:
        self.shape = as_shape(shape)
        self.device = as_device(device)
        self.dtype = None
        self.example = example

    def rand(self, shape: Shape = (), *, generator: torch.Generator | None = None) -> Any:
        return _stacked(self.example, [*as_shape(shape), *self.shape])

    def zero(self, shape: Shape = ()) -> Any:
        return self.rand(shape)

    def is_in(self, value: Any) -> bool:
        return not isinstance(value, torch.Tensor)

    def project(self, value: Any) -> Any:
        return value

    def encode(self, value: Any) -> Any:
        return value

    def expand(self, *shape: Any) -> Self:
        return type(self)(expanded(self.shape, shape), self.device, self.example)

    def to(self, device: Device) -> Self:
        return type(self)(self.shape, device, self.example)

    def __getitem__(self, index: Any) -> Self:
        return type(self)(indexed(self.shape, index), self.device, self.example)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NonTensor) and (self.shape, self.device) == (other.shape, other.device)

    def __hash__(self) -> int:
        return hash((NonTensor, self.shape, self.device))

    def __repr__(self) -> str:
        return f"NonTensor(shape={tuple(self.shape)})"


def _stacked(value: Any, shape: Sequence[int]) -> Any:
    from tensordict import NonTensorData, NonTensorStack  # slow to load, and needed by few

    if not shape:
        return NonTensorData(value)
    return NonTensorStack(*(_stacked(value, shape[1:]) for _ in range(shape[0])))


def _positive(n: int, name: str) -> int:
    if n < 1:
        raise ValueError(f"{name}: the number of categories is {n}; it must be at least 1")
    return n
