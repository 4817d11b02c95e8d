"""NonTensor: the spec of an entry that is no tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import torch

from rollout_worker.envs.spec_base import Device, Shape, Spec, as_device, as_shape, closed, expanded, indexed


class NonTensor(Spec):
    """Anything that is no tensor: a text, an object. `example_data` is what `rand` and `zero` give."""

    def __init__(
        self, shape: Shape = (), device: Device = None, dtype: None = None, example_data: Any = ""
    ) -> None:
        self.shape = as_shape(shape)
        self.device = as_device(device)
        self.dtype = dtype
        self.example_data = example_data

    def rand(self, shape: Shape = (), *, generator: torch.Generator | None = None) -> Any:
        return _stacked(self.example_data, [*as_shape(shape), *closed(self.shape)])

    def zero(self, shape: Shape = ()) -> Any:
        return self.rand(shape)

    def is_in(self, value: Any) -> bool:
        return not isinstance(value, torch.Tensor)

    def project(self, value: Any) -> Any:
        return value

    def encode(self, value: Any) -> Any:
        return value

    def expand(self, *shape: Any) -> Self:
        return type(self)(expanded(self.shape, shape), self.device, None, self.example_data)

    def to(self, device: Device) -> Self:
        return type(self)(self.shape, device, None, self.example_data)

    def _reshaped(self, shape: torch.Size) -> Self:
        return type(self)(shape, self.device, None, self.example_data)

    def __getitem__(self, index: Any) -> Self:
        return type(self)(indexed(self.shape, index), self.device, None, self.example_data)

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
