"""What all specs share: shapes, devices, and how a value is made, checked and repaired.

Names and arguments are those that TorchRL users know. A spec of one leaf never changes; operations give a new one.
Random values come from torch's global generator, or from the one that is passed. A dimension of size -1 is open: any
size is allowed there, and values that a spec makes have size 1.
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

    @property
    def ndim(self) -> int:
        """The number of dimensions, those of the batch included."""
        return len(self.shape)

    @property
    def is_open(self) -> bool:
        """Whether a dimension is of no fixed size (-1)."""
        return -1 in self.shape

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

    def sample(self, shape: Shape = (), *, generator: torch.Generator | None = None) -> Any:
        """The same as `rand`."""
        return self.rand(shape, generator=generator)

    def zeros(self, shape: Shape = ()) -> Any:
        """The same as `zero`."""
        return self.zero(shape)

    def unsqueeze(self, dim: int) -> Self:
        """The spec with one more dimension, of size 1, before dimension `dim`."""
        at = _position(dim, self.ndim + 1)
        return self._reshaped(torch.Size((*self.shape[:at], 1, *self.shape[at:])))

    def squeeze(self, dim: int) -> Self:
        """The spec without dimension `dim`. Raises ValueError where that is not of size 1."""
        at = _position(dim, self.ndim)
        if self.shape[at] != 1:
            raise ValueError(f"dimension {dim} of {list(self.shape)} is not of size 1; it cannot be squeezed")
        return self._reshaped(torch.Size((*self.shape[:at], *self.shape[at + 1 :])))

    def _reshaped(self, shape: torch.Size) -> Self:
        """The spec with dimensions of size 1 added or removed."""
        raise TypeError(f"{type(self).__name__} cannot be squeezed or unsqueezed")

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """`torch.stack([spec, spec], dim)` is `stack_specs`."""
        if func is not torch.stack:
            return NotImplemented
        from rollout_worker.envs.spec_stack import stack_specs  # it is built on this module

        return stack_specs(*args, **(kwargs or {}))

    def clone(self) -> Self:
        """A spec that shares nothing that could be changed with this one."""
        return self.to(self.device)

    def assert_is_in(self, value: Any) -> None:
        """Raise ValueError, saying what is wrong, for a value that is not allowed."""
        if not self.is_in(value):
            given = f"{value.dtype}{list(value.shape)}" if isinstance(value, torch.Tensor) else repr(value)
            raise ValueError(f"{given} is not in {self}")


def expanded(old: torch.Size, new: tuple[Any, ...]) -> torch.Size:
    """The shape that `expand(*new)` asks for (-1 keeps a size). Raises ValueError where the old one cannot become it."""
    wanted = list(new[0] if len(new) == 1 and not isinstance(new[0], int) else new)
    lead = len(wanted) - len(old)
    tail = [b if a == -1 else a for a, b in zip(wanted[max(lead, 0) :], old, strict=False)]
    if lead < 0 or -1 in wanted[:lead] or any(a not in (1, b) for a, b in zip(old, tail, strict=True)):
        raise ValueError(f"a spec of shape {list(old)} cannot be expanded to {wanted}")
    return torch.Size((*wanted[:lead], *tail))


_OPEN = 1_000_003
"""Stands for an open dimension while a shape is worked out; no dimension has this size by chance."""


def indexed(shape: torch.Size, index: Any) -> torch.Size:
    """The shape of `tensor[index]` for a tensor of such a shape."""
    closed = [_OPEN if size == -1 else size for size in shape]
    found = torch.empty((), device="meta").expand(closed)[index].shape
    return torch.Size(-1 if size == _OPEN else size for size in found)


def closed(shape: torch.Size) -> torch.Size:
    """A shape of its kind in which every size is fixed: 1 where it was open."""
    return torch.Size(1 if size == -1 else size for size in shape)


def fits(shape: torch.Size, wanted: torch.Size) -> bool:
    """Whether a shape ends in the wanted one; open dimensions take any size."""
    lead = len(shape) - len(wanted)
    return lead >= 0 and all(b in (-1, a) for a, b in zip(shape[lead:], wanted, strict=True))


def _position(dim: int, ndim: int) -> int:
    if not -ndim <= dim < ndim:
        raise IndexError(f"there is no dimension {dim}; allowed are {-ndim} to {ndim - 1}")
    return dim % ndim


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
        return self._draw(torch.Size((*as_shape(shape), *closed(self.shape))), generator).to(self.dtype)

    def zero(self, shape: Shape = ()) -> torch.Tensor:
        return torch.zeros((*as_shape(shape), *closed(self.shape)), dtype=self.dtype, device=self.device)

    def one(self, shape: Shape = ()) -> torch.Tensor:
        """A value of ones, allowed or not."""
        return torch.ones((*as_shape(shape), *closed(self.shape)), dtype=self.dtype, device=self.device)

    def is_in(self, value: Any) -> bool:
        if not isinstance(value, torch.Tensor) or value.dtype != self.dtype:
            return False
        if self.device is not None and value.device.type != self.device.type:
            return False
        return fits(value.shape, self.shape) and self._allows(value)

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

    def _reshaped(self, shape: torch.Size) -> Self:
        return self._with(shape, self.device)

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
        return (self.shape, self.dtype, self.device) == (other.shape, other.dtype, other.device) and same(
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


def same(left: tuple[Any, ...], right: tuple[Any, ...]) -> bool:
    return all(
        torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b for a, b in zip(left, right, strict=True)
    )
