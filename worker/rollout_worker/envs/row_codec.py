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
from rollout_worker.envs.unchanged import Memory

Place = tuple[str | int, ...]
"""Where an entry stands in a row: names, and positions within stacks."""


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


@dataclass(frozen=True, slots=True)
class _Same:
    """A value that the other side has: the one that stood there last."""

    batch_size: tuple[int, ...]


def _own(place: Place) -> Place:
    """Where an environment has told what is handed back to it: also what stands under `next` there."""
    return place[1:] if place[:1] == ("next",) else place


class _Packer:
    """Lays arrays one behind the other, each where its dtype likes to be; leaves out what the other side has."""

    def __init__(self, *, packs: bool, sent: Memory | None, known: Memory | None) -> None:
        self._packs, self._sent, self._known = packs, sent, known
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

    def data(self, value: NonTensorData, place: Place) -> _Data | _Same:
        size = tuple(value.batch_size)
        is_there = self._sent is not None and self._sent.holds(place, value.data)
        if is_there or (self._known is not None and self._known.has(_own(place), value.data)):
            return _Same(size)
        return _Data(value.data, size)

    def packed(self) -> bytes | None:
        if not self._packs:
            return None
        buffer = np.zeros(self._size, dtype=np.uint8)
        for offset, array in self._arrays:
            buffer[offset : offset + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        return buffer.tobytes()


def encoded(
    td: TensorDictBase | None,
    *,
    consolidate: bool = True,
    sent: Memory | None = None,
    known: Memory | None = None,
) -> Row | None:
    """A tensordict in a form that pickles quickly. Constants that the other side has are left out: `sent` is what such rows
    have told it until now, `known` what it has told us.

    Raises RuntimeError naming `consolidate` where packing fails.
    """
    if td is None:
        return None
    packer = _Packer(packs=consolidate, sent=sent, known=known)
    try:
        tree = _encoded(td, packer, ())
        return Row(tree, packer.packed())
    except Exception as error:
        if not consolidate:
            raise
        raise RuntimeError(
            "a tensordict could not be packed into one storage; consolidate=False sends each tensor by itself "
            f"({type(error).__name__}: {error})"
        ) from error


def _encoded(value: Any, packer: _Packer, place: Place) -> Any:
    if isinstance(value, torch.Tensor):
        return packer.leaf(value)
    if isinstance(value, NonTensorData):
        return packer.data(value, place)
    if isinstance(value, LazyStackedTensorDict):
        parts = tuple(_encoded(part, packer, (*place, n)) for n, part in enumerate(value.tensordicts))
        return _Stack(value.stack_dim, isinstance(value, NonTensorStack), parts)
    if isinstance(value, TensorDictBase):
        entries = {name: _encoded(each, packer, (*place, name)) for name, each in value.items()}
        return _Tree(tuple(value.batch_size), entries)
    raise TypeError(f"{type(value).__name__} cannot stand in a row of environments")


def decoded(
    row: Row | None, *, received: Memory | None = None, known: Memory | None = None
) -> TensorDictBase | None:
    """The tensordict of a row. `received` is the counterpart of the other side's `sent`, `known` (which we have told it) of
    its `known`."""
    if row is None:
        return None
    buffer = (
        None if row.buffer is None else torch.frombuffer(bytearray(row.buffer or b"\0"), dtype=torch.uint8)
    )
    made: TensorDictBase = _Unpacker(buffer, received, known).entry(row.tree, ())
    return made


class _Unpacker:
    """Makes the entries of one row."""

    def __init__(self, buffer: torch.Tensor | None, received: Memory | None, known: Memory | None) -> None:
        self._buffer, self._received = buffer, received
        self._known = Memory() if known is None else known

    def entry(self, part: Any, place: Place) -> Any:
        if isinstance(part, _Leaf):
            return _tensor(part, self._buffer)
        if isinstance(part, (_Data, _Same)):
            return NonTensorData(self._value(part, place), batch_size=part.batch_size)
        if isinstance(part, _Stack):
            kind = NonTensorStack if part.is_data else LazyStackedTensorDict
            parts = (self.entry(each, (*place, n)) for n, each in enumerate(part.parts))
            return kind(*parts, stack_dim=part.dim)
        entries = {name: self.entry(each, (*place, name)) for name, each in part.entries.items()}
        size = torch.Size(part.batch_size)
        return TensorDict._new_unsafe(entries, batch_size=size, device=None, nested=False)

    def _value(self, part: _Data | _Same, place: Place) -> Any:
        if isinstance(part, _Same):
            return self._known.get(_own(place)) if self._received is None else self._received.get(place)
        if self._received is not None:
            self._received.write(place, part.value)
        return part.value


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
