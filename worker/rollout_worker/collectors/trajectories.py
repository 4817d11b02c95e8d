"""Numbers trajectories after the fact: from a batch's done flags to an id per frame.

An id is drawn for every environment at the start, and for each environment at the frame after its episode ended, in the
order of frames and, within a frame, of environments. Pure arithmetic on whole batches; called once per batch.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Ids = np.ndarray[Any, np.dtype[np.int64]]
Flags = np.ndarray[Any, np.dtype[np.bool_]]


class TrajectoryIds:
    """The ids of one collector's environments, counted up from `base`.

    `current[i]` is the id of the frame that environment i makes next.
    """

    def __init__(self, num_envs: int, *, base: int = 0) -> None:
        self._next = base
        self.current: Ids = np.zeros(num_envs, dtype=np.int64)
        self._is_used: Flags = np.ones(num_envs, dtype=bool)
        self.renew()

    def renew(self, envs: Flags | None = None) -> None:
        """Fresh ids for the marked environments (None: all), because they were reset from outside.

        An id that no frame has is kept.
        """
        chosen = self._is_used.copy() if envs is None else self._is_used & envs
        self._is_used[chosen] = False
        count = int(chosen.sum())
        self.current[chosen] = np.arange(self._next, self._next + count)
        self._next += count

    def number(self, done: Flags, out: Ids) -> None:
        """Write the id of every frame, and move on.

        `done` is bool `[num_envs, num_steps]`, the flag of each frame's end; `out` int64 of the same shape. Fewer rows than
        environments are the first ones.
        """
        num_envs, num_steps = done.shape
        by_frame = done.T
        drawn = self._next - 1 + np.cumsum(by_frame.ravel()).reshape(num_steps, num_envs)
        starts = np.where(by_frame, drawn, -1)
        ids = np.empty((num_steps + 1, num_envs), dtype=np.int64)
        ids[0] = self.current[:num_envs]
        ids[1:] = starts
        # Ids only grow, so the newest start of an environment is the largest so far.
        np.maximum.accumulate(ids, axis=0, out=ids)
        out[...] = ids[:-1].T
        self.current[:num_envs] = ids[-1]
        self._is_used[:num_envs] = ~by_frame[-1]
        self._next += int(by_frame.sum())
