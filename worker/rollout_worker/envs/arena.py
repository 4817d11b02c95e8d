"""The memory that environments write into: blocks, the carry between them, and the control page.

An arena knows where its bytes live and nothing else: `LocalArena` in this process, `SharedArena` in an
anonymous memory file that has no name in any file system, so that nothing is left of it once the last process
has gone, however it went. Steppers and collectors see numpy arrays (`Block.arrays`), tensors of the same
memory (`Block.tensors`) and raw buffers (`Block.leaves`) and cannot tell the two apart.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from rollout_worker.envs.describe import Key
from rollout_worker.envs.layout import ALIGNMENT, BlockLayout, Leaf, Placed, align, carry_layout, place
from rollout_worker.envs.memory import mapped, memory_file

if TYPE_CHECKING:
    import torch


class LeafBuffer(NamedTuple):
    """A data leaf as bytes: `view` is the block's own memory, C order, little-endian."""

    key: Key
    dtype: str
    shape: tuple[int, ...]
    view: memoryview


class Block:
    """One batch's worth of memory.

    `arrays` maps each key (data, notes and leaves that are no tensors) to its array `[num_envs, num_steps,
    *shape]`. Arrays of dtype object are private to the process; all else is the arena's memory, and whoever
    keeps an array keeps it mapped.
    """

    def __init__(self, index: int, layout: BlockLayout, memory: np.ndarray[Any, np.dtype[np.uint8]]) -> None:
        self.index = index
        self.layout = layout
        self._memory = memory
        self.arrays: dict[Key, np.ndarray[Any, Any]] = {
            leaf.key: view_of(memory, leaf) for leaf in (*layout.data, *layout.notes)
        }
        for key in layout.objects:
            self.arrays[key] = np.full((layout.num_envs, layout.num_steps), None, dtype=object)
        self._tensors: dict[Key, torch.Tensor] | None = None

    def leaves(self) -> Iterator[LeafBuffer]:
        """The data leaves in the layout's order, each as its key, dtype, whole shape and bytes."""
        data = self._memory.data
        for leaf in self.layout.data:
            yield LeafBuffer(leaf.key, leaf.dtype, leaf.shape, data[leaf.offset : leaf.offset + leaf.nbytes])

    def data(self) -> memoryview:
        """All data leaves in one run, with the padding between them."""
        return self._memory.data[: self.layout.data_bytes]

    @property
    def tensors(self) -> dict[Key, torch.Tensor]:
        """The data leaves as tensors of the same memory."""
        if self._tensors is None:
            self._tensors = {
                leaf.key: tensor_over(self.arrays[leaf.key], leaf.dtype) for leaf in self.layout.data
            }
        return self._tensors


def view_of(memory: np.ndarray[Any, np.dtype[np.uint8]], leaf: Placed) -> np.ndarray[Any, Any]:
    """The array that lies at a leaf's place."""
    return memory[leaf.offset : leaf.offset + leaf.nbytes].view(leaf.storage).reshape(leaf.shape)


def tensor_over(array: np.ndarray[Any, Any], dtype: str) -> torch.Tensor:
    """A tensor of such an array's memory. Loads torch."""
    import torch

    tensor = torch.from_numpy(array)
    return tensor.view(torch.bfloat16) if dtype == "bfloat16" else tensor


class MemoryPlan(Protocol):
    """What is to lie in memory that processes share; parent and children compute the same offsets from it."""

    @property
    def nbytes(self) -> int:
        """How large it is."""

    @property
    def has_objects(self) -> bool:
        """Whether there are leaves that are no tensors, which go through pipes."""

    def shared(self, fd: int) -> Any:
        """This plan laid over a memory file."""


@dataclass(frozen=True, slots=True)
class ArenaPlan:
    """How many blocks of which layout. Parent and children compute the same offsets from it."""

    layout: BlockLayout
    num_blocks: int

    @property
    def has_objects(self) -> bool:
        """Whether there are leaves that are no tensors."""
        return bool(self.layout.objects)

    def shared(self, fd: int) -> SharedArena:
        """The arena in a memory file."""
        return SharedArena(self, fd)

    @property
    def nbytes(self) -> int:
        """Bytes of the whole arena."""
        return self.layout.nbytes * self.num_blocks + carry_layout(self.layout).nbytes


class Arena:
    """`blocks` to fill in turn, and `carry`: the observation that the next step of each environment starts from."""

    def __init__(self, plan: ArenaPlan, memory: np.ndarray[Any, np.dtype[np.uint8]]) -> None:
        self.plan = plan
        size = plan.layout.nbytes
        self.blocks: Sequence[Block] = tuple(
            Block(index, plan.layout, memory[index * size : (index + 1) * size])
            for index in range(plan.num_blocks)
        )
        self.carry = Block(-1, carry_layout(plan.layout), memory[plan.num_blocks * size :])


class LocalArena(Arena):
    """An arena in this process alone."""

    def __init__(self, plan: ArenaPlan) -> None:
        super().__init__(plan, _aligned_zeros(plan.nbytes))


class SharedArena(Arena):
    """An arena in a memory file; `fd` is handed to the children, who map the same plan."""

    def __init__(self, plan: ArenaPlan, fd: int) -> None:
        super().__init__(plan, mapped(fd, plan.nbytes))

    @staticmethod
    def create(plan: ArenaPlan, *, directory: Path | None = None) -> tuple[SharedArena, int]:
        """A new arena and the descriptor of its memory, which the caller closes once the children have mapped
        it.

        `directory` asks for an unlinked file there instead of an anonymous one.
        Raises ConfigurationError, naming the bytes needed and available, where the memory is not there.
        """
        fd = memory_file(plan.nbytes, purpose=_purpose(plan), directory=directory)
        try:
            return SharedArena(plan, fd), fd
        except BaseException:
            os.close(fd)
            raise


def _purpose(plan: ArenaPlan) -> str:
    layout = plan.layout
    return f"{plan.num_blocks} blocks of {layout.num_envs} environments x {layout.num_steps} steps"


def _aligned_zeros(nbytes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    raw = np.zeros(nbytes + ALIGNMENT, dtype=np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + nbytes]


class ControlPage:
    """The words through which parent and children speak: commands, replies, progress, and the arguments of a
    reset.

    Rows of `command`, `reply` and `progress` belong to one child each and fill a cache line; all else has one element
    per environment: `seeds`, `has_seed` and `mask` are a command's arguments, `restarts` counts, `first_seeds` are the seeds
    that each was given (where `was_seeded`), and `lost` marks those whose process is gone, until that has been said. Its
    size depends on the counts alone, so it exists before any environment does.
    """

    WORDS = 8

    def __init__(self, num_envs: int, num_processes: int, fd: int | None = None) -> None:
        leaves = [
            Leaf(("command",), "int64", (num_processes, self.WORDS)),
            Leaf(("reply",), "int64", (num_processes, self.WORDS)),
            Leaf(("progress",), "int64", (num_processes, self.WORDS)),
            Leaf(("seeds",), "uint64", (num_envs,)),
            Leaf(("has_seed",), "bool", (num_envs,)),
            Leaf(("mask",), "bool", (num_envs,)),
            Leaf(("restarts",), "int64", (num_envs,)),
            Leaf(("first_seeds",), "uint64", (num_envs,)),
            Leaf(("was_seeded",), "bool", (num_envs,)),
            Leaf(("lost",), "bool", (num_envs,)),
        ]
        placed, self.nbytes = place(leaves, lead=())
        self.nbytes = align(self.nbytes)
        memory = _aligned_zeros(self.nbytes) if fd is None else mapped(fd, self.nbytes)
        arrays = [view_of(memory, leaf) for leaf in placed]
        self.command, self.reply, self.progress, self.seeds, self.has_seed, self.mask = arrays[:6]
        self.restarts, self.first_seeds, self.was_seeded, self.lost = arrays[6:]
