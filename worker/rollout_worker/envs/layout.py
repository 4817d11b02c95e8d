"""Where each leaf of a block lies: pure arithmetic over keys, dtypes and shapes.

A block holds one batch: every data leaf is a C-contiguous array `[num_envs, num_steps, *shape]` that starts
at a multiple of 64 bytes, and the data leaves follow one another without anything between them but that
padding, so that a block's data is one run of named raw buffers. Notes that are not part of the batch
(finished episodes) come last.

Called by the arena, which gives the arithmetic a memory, and by the collector, which adds leaves of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from rollout_worker.envs.describe import FLAGS, OBJECT, EnvDescription, Key, spelled

ALIGNMENT = 64
"""Bytes; a cache line, and what the stream's frame keeps."""

EPISODE_RETURN: Key = ("episode_return",)
EPISODE_LENGTH: Key = ("episode_length",)

VALID: Key = ("next", "valid")
"""Leaf of environments that are restarted: False on the frame in which one failed, where nothing was observed."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """A leaf to place: `shape` is what follows `[num_envs, num_steps]`; `dtype` as numpy spells it, or `bfloat16`."""

    key: Key
    dtype: str
    shape: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Placed:
    """A leaf with its place: `shape` is the whole one, `offset` and `nbytes` are bytes from the start of its block."""

    key: Key
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int

    @property
    def storage(self) -> np.dtype[Any]:
        """The numpy dtype of the bytes. numpy has no bfloat16: it lies there as uint16."""
        return np.dtype("uint16" if self.dtype == "bfloat16" else self.dtype)


@dataclass(frozen=True, slots=True)
class BlockLayout:
    """The plan of one block of `nbytes` bytes.

    `data` are the leaves of the batch, in order, together `data_bytes` long; `notes` lie behind them;
    `objects` are the keys of leaves that are no tensors and have no bytes here. `root_keys` are the
    observation's leaves, which also stand under `next`; `done_groups` the levels that have flags.
    """

    num_envs: int
    num_steps: int
    data: tuple[Placed, ...]
    notes: tuple[Placed, ...]
    objects: tuple[Key, ...]
    root_keys: tuple[Key, ...]
    action_keys: tuple[Key, ...]
    reward_keys: tuple[Key, ...]
    done_groups: tuple[Key, ...]
    nbytes: int

    @property
    def data_bytes(self) -> int:
        """Length of the run of data leaves, padding between them included."""
        last = self.data[-1]
        return last.offset + last.nbytes

    def find(self, key: Key) -> Placed:
        """The placed data leaf of a key. Raises KeyError that names the keys there are."""
        for leaf in self.data:
            if leaf.key == key:
                return leaf
        raise KeyError(
            f"no leaf {spelled(key)}; the block has {', '.join(spelled(leaf.key) for leaf in self.data)}"
        )


def align(offset: int) -> int:
    """The next multiple of 64."""
    return -(-offset // ALIGNMENT) * ALIGNMENT


def place(
    leaves: Iterable[Leaf], *, lead: tuple[int, ...], offset: int = 0
) -> tuple[tuple[Placed, ...], int]:
    """Lay leaves one after the other behind `offset`; also gives the first free aligned byte after them."""
    placed: list[Placed] = []
    for leaf in leaves:
        offset = align(offset)
        shape = (*lead, *leaf.shape)
        item = Placed(leaf.key, leaf.dtype, shape, offset, 0)
        nbytes = prod(shape) * item.storage.itemsize
        placed.append(Placed(leaf.key, leaf.dtype, shape, offset, nbytes))
        offset += nbytes
    return tuple(placed), align(offset)


def block_layout(
    description: EnvDescription, *, num_envs: int, num_steps: int, extra: Iterable[Leaf] = ()
) -> BlockLayout:
    """The layout of a batch of `num_steps` frames of each of `num_envs` environments.

    `extra` leaves (a policy's outputs, trajectory ids) are placed with the root's; nobody here writes them,
    but `("step_count",)` with `("next", "step_count")`, which the stepper fills where both are asked for.
    Raises ValueError where a key comes twice, or one is a prefix of another.
    """
    root = [Leaf(key, spec.dtype, spec.shape) for key, spec in description.observation]
    action = [Leaf(key, spec.dtype, spec.shape) for key, spec in description.action]
    reward = [Leaf(key, spec.dtype, spec.shape) for key, spec in description.reward]
    done = [Leaf(key, spec.dtype, spec.shape) for key, spec in description.done]
    extra = list(extra)
    inner = [*root, *action, *done, *(leaf for leaf in extra if leaf.key[0] != "next")]
    after = [
        *(Leaf(("next", *leaf.key), leaf.dtype, leaf.shape) for leaf in [*root, *reward, *done]),
        *(leaf for leaf in extra if leaf.key[0] == "next"),
    ]
    everything = [*inner, *after]
    _refuse_clashes([leaf.key for leaf in everything])
    lead = (num_envs, num_steps)
    data, free = place((leaf for leaf in everything if leaf.dtype != OBJECT), lead=lead)
    notes, free = place(
        [Leaf(EPISODE_RETURN, "float64"), Leaf(EPISODE_LENGTH, "int64")], lead=lead, offset=free
    )
    return BlockLayout(
        num_envs=num_envs,
        num_steps=num_steps,
        data=data,
        notes=notes,
        objects=tuple(leaf.key for leaf in everything if leaf.dtype == OBJECT),
        root_keys=tuple(leaf.key for leaf in root),
        action_keys=tuple(leaf.key for leaf in action),
        reward_keys=tuple(leaf.key for leaf in reward),
        done_groups=description.done_groups,
        nbytes=free,
    )


def carry_layout(layout: BlockLayout) -> BlockLayout:
    """The layout of the carry: the observation that each environment will act on next, one frame long."""
    roots = [leaf for leaf in layout.data if leaf.key in set(layout.root_keys)]
    leaves = [Leaf(leaf.key, leaf.dtype, leaf.shape[2:]) for leaf in roots]
    data, free = place(leaves, lead=(layout.num_envs, 1))
    return BlockLayout(
        num_envs=layout.num_envs,
        num_steps=1,
        data=data,
        notes=(),
        objects=tuple(key for key in layout.objects if key in set(layout.root_keys)),
        root_keys=layout.root_keys,
        action_keys=(),
        reward_keys=(),
        done_groups=(),
        nbytes=free,
    )


def flag_keys(done_groups: Iterable[Key]) -> list[Key]:
    """The keys of all flags at all levels."""
    return [(*group, flag) for group in done_groups for flag in FLAGS]


def _refuse_clashes(keys: list[Key]) -> None:
    seen: set[Key] = set()
    for key in keys:
        if key in seen:
            raise ValueError(f"the key {spelled(key)} is placed twice")
        seen.add(key)
    for key in keys:
        for length in range(1, len(key)):
            if key[:length] in seen:
                raise ValueError(
                    f"the key {spelled(key[:length])} is a leaf and cannot also hold {spelled(key)}"
                )
