"""Tensordicts across a pipe: as plain arrays, whatever they hold, nested, lazily stacked or no tensors at all.

`encoded` packs all tensors of a row into one run of bytes, or leaves each for itself where packing is not wanted;
`decoded` gives a row that shares memory with nobody. Devices are not kept: what crosses a pipe lies on the CPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from tensordict import LazyStackedTensorDict, NonTensorData, NonTensorStack, TensorDict, TensorDictBase

from rollout_worker.envs.layout import align


@dataclass(frozen=True, slots=True)
class Row:
    """One encoded tensordict. `buffer` holds the bytes of all tensors (None: each lies in `tree` as an array)."""

    tree: Any
    buffer: bytes | None


@dataclass(frozen=True, slots=True)
class _Leaf:
    dtype: str
    shape: tuple[int, ...]
    offset: int
    array: Any = None


@dataclass(frozen=True, slots=True)
class _Tree:
    batch_size: tuple[int, ...]
    entries: dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Stack:
    dim: int
    is_data: bool
    parts: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class _Data:
    value: Any
    batch_size: tuple[int, ...]


class _Packer:
    """Lays arrays one behind the other, each where its dtype likes to be."""

    def __init__(self, *, packs: bool) -> None:
        self._packs = packs
        self._arrays: list[tuple[int, Any]] = []
        self._size = 0

    def leaf(self, value: torch.Tensor) -> _Leaf:
        value = value.detach()
        if value.device.type != "cpu":
            value = value.cpu()
        dtype = str(value.dtype).removeprefix("torch.")
        array = (value.view(torch.int16) if value.dtype == torch.bfloat16 else value).numpy()
        if not self._packs:
            return _Leaf(dtype, tuple(value.shape), 0, np.ascontiguousarray(array))
        offset = align(self._size)
        self._arrays.append((offset, array))
        self._size = offset + array.nbytes
        return _Leaf(dtype, tuple(value.shape), offset)

    def packed(self) -> bytes | None:
        if not self._packs:
            return None
        buffer = np.zeros(self._size, dtype=np.uint8)
        for offset, array in self._arrays:
            buffer[offset : offset + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        return buffer.tobytes()


def encoded(td: TensorDictBase | None, *, consolidate: bool = True) -> Row | None:
    """A tensordict in a form that pickles quickly. Raises RuntimeError naming `consolidate` where packing fails."""
    if td is None:
        return None
    packer = _Packer(packs=consolidate)
    try:
        tree = _encoded(td, packer)
        return Row(tree, packer.packed())
    except Exception as error:
        if not consolidate:
            raise
        raise RuntimeError(
            "a tensordict could not be packed into one storage; consolidate=False sends each tensor by itself "
            f"({type(error).__name__}: {error})"
        ) from error


def _encoded(value: Any, packer: _Packer) -> Any:
    if isinstance(value, torch.Tensor):
        return packer.leaf(value)
    if isinstance(value, NonTensorData):
        return _Data(value.data, tuple(value.batch_size))
    if isinstance(value, LazyStackedTensorDict):
        parts = tuple(_encoded(part, packer) for part in value.tensordicts)
        return _Stack(value.stack_dim, isinstance(value, NonTensorStack), parts)
    if isinstance(value, TensorDictBase):
        return _Tree(tuple(value.batch_size), {name: _encoded(each, packer) for name, each in value.items()})
    raise TypeError(f"{type(value).__name__} cannot stand in a row of environments")


def decoded(row: Row | None) -> TensorDictBase | None:
    """The tensordict of a row."""
    if row is None:
        return None
    buffer = (
        None if row.buffer is None else torch.frombuffer(bytearray(row.buffer or b"\0"), dtype=torch.uint8)
    )
    made: TensorDictBase = _decoded(row.tree, buffer)
    return made


def _decoded(part: Any, buffer: torch.Tensor | None) -> Any:
    if isinstance(part, _Leaf):
        return _tensor(part, buffer)
    if isinstance(part, _Data):
        return NonTensorData(part.value, batch_size=part.batch_size)
    if isinstance(part, _Stack):
        kind = NonTensorStack if part.is_data else LazyStackedTensorDict
        return kind(*(_decoded(each, buffer) for each in part.parts), stack_dim=part.dim)
    entries = {name: _decoded(each, buffer) for name, each in part.entries.items()}
    size = torch.Size(part.batch_size)
    return TensorDict._new_unsafe(entries, batch_size=size, device=None, nested=False)


def _tensor(leaf: _Leaf, buffer: torch.Tensor | None) -> torch.Tensor:
    dtype: torch.dtype = getattr(torch, leaf.dtype)
    if leaf.array is not None:
        found = torch.from_numpy(leaf.array if leaf.array.flags.writeable else leaf.array.copy())
        return found.view(dtype) if dtype == torch.bfloat16 else found
    assert buffer is not None
    count = int(np.prod(leaf.shape, dtype=np.int64))
    if not count:
        return torch.zeros(leaf.shape, dtype=dtype)
    nbytes = count * dtype.itemsize
    return buffer[leaf.offset : leaf.offset + nbytes].view(dtype).reshape(leaf.shape)
