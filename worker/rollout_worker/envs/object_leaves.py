"""Leaves of a block that are no tensors: they have no bytes there, and are sent beside it, as far as they have changed.

Every process has arrays of its own for them. The child tells its parent's from its own: what was sent lies in the same cell
there, so that a constant that is what it was when the cell was last sent is not sent again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from rollout_worker.envs.arena import Arena
from rollout_worker.envs.commands import Step
from rollout_worker.envs.describe import Key, spelled
from rollout_worker.envs.transfer import refusal_of
from rollout_worker.envs.unchanged import Memory


class Cells(NamedTuple):
    """Values of one leaf, on their way between processes: value i lies at row `rows[i]` (counted within the process' own)
    and frame `frames[i]` of a block, or, where `block` is below 0, of the carry."""

    block: int
    key: Key
    rows: list[int]
    frames: list[int]
    values: list[Any]


def cells_of(block: int, key: Key, first: int, values: np.ndarray[Any, Any]) -> Cells:
    """All of `values[rows, frames]`, from frame `first` on."""
    num_rows, num_frames = values.shape
    rows = [row for row in range(num_rows) for _ in range(num_frames)]
    frames = list(range(first, first + num_frames)) * num_rows
    return Cells(block, key, rows, frames, values.ravel().tolist())


def put_cells(arena: Arena, rows: slice, found: Iterable[Cells]) -> None:
    """Put what came from the process of these rows where it belongs."""
    for block, key, own, frames, values in found:
        target = (arena.carry if block < 0 else arena.blocks[block]).arrays[key][rows]
        for row, frame, value in zip(own, frames, values, strict=True):
            target[row, frame] = value


class ObjectLeaves:
    """The child's part: finds what has changed in its rows."""

    def __init__(self, arena: Arena, rows: slice) -> None:
        self._arena, self._rows = arena, rows
        self._sent = Memory()
        carry = arena.carry
        self._carried = [(key, carry.arrays[key][rows]) for key in carry.layout.objects]

    def of_carry(self) -> list[Cells] | None:
        """What the environments will act on next; None where nothing has changed."""
        return list(self._changed_in_carry()) or None

    def after_step(self, command: Step) -> list[Cells] | None:
        """What a step has written, and what the environments will act on next; None where nothing has changed."""
        block, start, stop = self._arena.blocks[command.block], command.start, command.stop
        layout = block.layout
        if command.autoreset and stop < layout.num_steps:
            for key, carried in self._carried:
                carried[:, 0] = block.arrays[key][self._rows, stop]
        found: list[Cells] = []
        for key, _ in self._carried:
            found += self._changed(block.index, key, block.arrays[key][self._rows], start + 1, stop + 1)
            following: Key = ("next", *key)
            found += self._changed(block.index, following, block.arrays[following][self._rows], start, stop)
        found += self._changed_in_carry()
        return found or None

    def _changed_in_carry(self) -> Iterator[Cells]:
        for key, carried in self._carried:
            yield from self._changed(-1, key, carried, 0, 1)

    def _changed(
        self, block: int, key: Key, array: np.ndarray[Any, Any], start: int, stop: int
    ) -> Iterator[Cells]:
        sent, rows, frames, values = self._sent, [], [], []
        for frame in range(start, min(stop, array.shape[1])):
            for row, value in enumerate(array[:, frame].tolist()):
                if not sent.holds((block, key, row, frame), value):
                    rows.append(row)
                    frames.append(frame)
                    values.append(value)
        if values:
            yield Cells(block, key, rows, frames, values)


def unsendable(payload: Any, first_env: int) -> tuple[int, str] | None:
    """Of an answer: which environment gave what cannot be sent, and what that is; None where all can be."""
    for part in payload if isinstance(payload, list) else ():
        places = (
            zip(part.rows, part.values, strict=True)
            if isinstance(part, Cells)
            else [(part[0] - first_env, part[1])]
        )
        for row, value in places:
            refusal = refusal_of(value)
            if refusal is not None:
                what = f" ({type(value).__name__} at {spelled(part.key)})" if isinstance(part, Cells) else ""
                return (
                    first_env + row,
                    f"it gave a value that cannot be sent to the caller's process{what}: {refusal}",
                )
    return None
