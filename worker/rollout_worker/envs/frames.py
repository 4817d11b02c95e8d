"""Views of a block by what they are for, made once: what a stepper writes in a step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rollout_worker.envs.arena import Block
from rollout_worker.envs.describe import FLAGS, Key
from rollout_worker.envs.layout import EPISODE_LENGTH, EPISODE_RETURN, VALID

Array = np.ndarray[Any, Any]


class BlockRows:
    """The stepper's rows of one block, by what they are for."""

    def __init__(self, block: Block, rows: slice) -> None:
        layout = block.layout
        self.arrays: dict[Key, Array] = {key: array[rows] for key, array in block.arrays.items()}
        self.root = [self.arrays[key] for key in layout.root_keys]
        self.frames: dict[int, Frame] = {}
        self.num_steps = layout.num_steps
        if block.index < 0:
            return
        self.next = [self.arrays["next", *key] for key in layout.root_keys]
        self.reward = self.arrays["next", *layout.reward_keys[0]]
        self.by_flag = {
            flag: [self.arrays["next", *group, flag] for group in layout.done_groups] for flag in FLAGS
        }
        self.returns, self.lengths = self.arrays[EPISODE_RETURN], self.arrays[EPISODE_LENGTH]
        self.valid = self.arrays.get(VALID)
        self.counts = (self.arrays.get(("step_count",)), self.arrays.get(("next", "step_count")))
        floats = [*layout.root_keys, *layout.reward_keys]
        self.floats = [
            (key, self.arrays["next", *key]) for key in floats if self.arrays["next", *key].dtype.kind in "fc"
        ]

    def frame_at(self, step: int, carry: BlockRows) -> Frame:
        """The views of one frame; the roots that follow a block's last one are the carry's."""
        frame = self.frames.get(step)
        if frame is None:
            following, at = (self.root, step + 1) if step + 1 < self.num_steps else (carry.root, 0)
            frame = self.frames[step] = Frame(self, step, [array[:, at] for array in following])
        return frame

    def floats_of(self, start: int, stop: int) -> list[tuple[Key, Array]]:
        """The leaves that could hold NaN or infinity, over some frames."""
        return [(key, array[:, start:stop]) for key, array in self.floats]


class Frame:
    """One frame's views of a block, made once: what is written in a step."""

    def __init__(self, rows: BlockRows, step: int, roots: list[Array]) -> None:
        self.step = step
        self.next = [array[:, step] for array in rows.next]
        self.roots = roots
        self.rewards = rows.reward.reshape(*rows.reward.shape[:2], -1)[:, step]
        self.reward = self.rewards[:, 0]
        self.by_flag = {flag: [array[:, step] for array in arrays] for flag, arrays in rows.by_flag.items()}
        self.returns, self.lengths = rows.returns[:, step], rows.lengths[:, step]
        self.counts = [None if array is None else array[:, step] for array in rows.counts]
        self.valid = None if rows.valid is None else rows.valid[:, step]
        self.floats = [(key, array[:, step]) for key, array in rows.floats]
        self.has_ends = True  # whatever a process before this one left there

    def forget_ends(self) -> None:
        """Take back what an earlier use of this frame said about ends. `begin` does so for a whole block."""
        for arrays in self.by_flag.values():
            for array in arrays:
                array[...] = False
        self.lengths[...] = 0
        self.has_ends = False

    def note_ends(self, ended: Mapping[int, tuple[bool, bool]], returns: Array, lengths: Array) -> None:
        """Say which rows ended here, (terminated, truncated) each, and what their episodes came to."""
        self.has_ends = True
        for index, (terminated, truncated) in ended.items():
            for flag, value in (("terminated", terminated), ("truncated", truncated), ("done", True)):
                if value:
                    for flags in self.by_flag[flag]:
                        flags[index] = True
            self.returns[index] = returns[index]
            self.lengths[index] = lengths[index]
