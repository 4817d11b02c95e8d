"""The vector env: `num_envs` environments stepped at once, straight into the blocks of an arena. The
collector's interface.

`opening.open_envs` gives one. Where its environments live, in the caller's process or in children, is its host's
business; the same stepper does the work. Tensordicts are not known here: `batched` puts them on top.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rollout_worker.envs.block_group import BlockGroup
from rollout_worker.envs.commands import Cut, Reset, RowOp, Simple, Step
from rollout_worker.envs.layout import EPISODE_LENGTH, EPISODE_RETURN, flag_keys
from rollout_worker.envs.vector_parts import Array, Episodes


class VectorEnv(BlockGroup):
    """`num_envs` environments and the blocks that they are stepped into.

    The order of use: `start` (done by `open_envs`), `reset`, then for each batch `begin`, `step`… or
    `step_range`, and at the end `close`. Ended environments are reset at once: `next` of that frame holds the
    terminal observation, the following root the new one. After the last frame of a block, the following roots
    wait in the carry until `begin` puts them at frame 0 of a block, so a finished block is never written to
    again until its index is used again.

    Whatever fails raises EnvError (or ChildLost, StepTimeout, EntrypointError) naming environment, process
    and call; the vector env is closed by then, says so to every further call with an error of the same class,
    and can be started again.
    """

    _has_begun_step = False

    def reset(
        self, seeds: Sequence[int | None] | None = None, *, mask: Sequence[bool] | Array | None = None
    ) -> None:
        """Reset the environments (those that `mask` marks); their roots go to the carry.

        `seeds` holds one seed or None per environment: a seed rewinds the environment's generator, None goes
        on with its stream.
        """
        self._check_ready()
        self._settle()
        self._put_seeds(seeds, mask)
        self._run(Reset(), call="reset")

    def begin(self, block: int) -> None:
        """Begin a batch in a block: forget its ends, and put the roots that the environments act on next at frame 0."""
        self._settle()
        arena = self._opened()
        target, carry = arena.blocks[block], arena.carry
        for key in target.layout.root_keys:
            target.arrays[key][:, 0] = carry.arrays[key][:, 0]
        for flag in flag_keys(target.layout.done_groups):
            target.arrays[flag][...] = False
            target.arrays["next", *flag][...] = False
        target.arrays[EPISODE_LENGTH][...] = 0

    def step(self, block: int, step: int) -> None:
        """Advance every environment by frame `step` of a block, with the actions that lie there."""
        self._check_ready()
        self._step(Step(block, step, step + 1))

    def step_range(self, block: int, start: int, stop: int) -> None:
        """Advance through frames `start` to `stop` (excluded) with actions that lie there already: one wake-up for all."""
        self._check_ready()
        self._check_range(start, stop)
        start = self._step_one_by_one(block, start, stop)
        self._step(Step(block, start, stop))

    def _step_one_by_one(self, block: int, start: int, stop: int) -> int:
        """Advance to the last frame of a range where a lost process would take along leaves that are no tensors."""
        if self.settings.rules.restarts and self.layout.objects:
            for step in range(start, stop - 1):
                self._step(Step(block, step, step + 1))
            return stop - 1
        return start

    def begin_step(self, block: int, start: int, stop: int) -> None:
        """Like `step_range`, but return at once; `finish_step` waits. Meanwhile only other blocks may be touched."""
        self._check_ready()
        self._check_range(start, stop)
        start = self._step_one_by_one(block, start, stop)
        self._note_step(Step(block, start, stop))
        self._host.order(Step(block, start, stop), call="step")
        self._has_begun_step = True

    def finish_step(self) -> None:
        """Wait for the frames that `begin_step` asked for."""
        if not self._has_begun_step:
            self._check_ready()
            raise RuntimeError("finish_step without begin_step")
        self._has_begun_step = False
        self._wait()

    def advance(self, command: Step, *, mask: Sequence[bool] | Array | None = None) -> None:
        """Do a step command as it is. A masked one steps those that `mask` marks; the others stay where they are."""
        self._check_ready()
        if mask is not None:
            self._host.control.mask[:] = mask
        self._keep_roots(slice(None))
        self._step(command)

    def begin_rows(self, op: RowOp, rows: Sequence[tuple[int, Any]]) -> None:
        """Have some environments stepped by one frame, whatever the others are doing; see `EnvGroup.begin_rows`."""
        if not self.is_closed:
            self._keep_roots(sorted({index for index, _ in rows} - self._under_way))
        super().begin_rows(op, rows)

    def _keep_roots(self, rows: slice | list[int]) -> None:
        """Keep the roots of a step that begins in the carry: a frame that is lost repeats them."""
        if not self.settings.rules.restarts:
            return
        arena = self._opened()
        for key in arena.carry.layout.root_keys:
            arena.blocks[0].arrays[key][rows, 0] = arena.carry.arrays[key][rows, 0]

    def cut(self, block: int, step: int, seeds: Sequence[int | None] | None = None) -> None:
        """End every running trajectory at a frame of a block as truncated, then reset all environments with
        `seeds`.

        For a new seed epoch: called between batches with the last frame of the block in hand.
        """
        self._check_ready()
        self._settle()
        self._put_seeds(seeds, None)
        self._run(Cut(block, step), call="reset")

    def episodes(self, block: int) -> Episodes:
        """The episodes that ended inside a block."""
        arrays = self._opened().blocks[block].arrays
        lengths = arrays[EPISODE_LENGTH].T
        step, env_index = np.nonzero(lengths)
        return Episodes(env_index, step, arrays[EPISODE_RETURN].T[step, env_index], lengths[step, env_index])

    # -- shared ----------------------------------------------------------------------------------------------------

    def _step(self, command: Step) -> None:
        self._note_step(command)
        self._run(command, call="step")

    def _note_step(self, command: Step) -> None:
        """Remember where the roots are that follow a step: in its block, or, behind the last frame, in the carry."""
        inside = command.autoreset and command.stop < self._opened().plan.layout.num_steps
        self._roots_at = (command.block, command.stop) if inside else None

    def _run(self, command: Simple, *, call: str) -> None:
        self._host.order(command, call=call)
        self._wait()

    def _wait(self) -> None:
        try:
            self._host.wait(self._arena)
        except BaseException as error:
            self._fail_with(error)
            raise

    def _release(self) -> None:
        super()._release()
        self._has_begun_step = False

    def _check_ready(self) -> None:
        super()._check_ready()
        if self._has_begun_step:
            raise RuntimeError("a step is under way: call finish_step first")

    def _check_range(self, start: int, stop: int) -> None:
        if not 0 <= start < stop <= self.settings.num_steps:
            raise ValueError(
                f"frames {start} to {stop} are not within a block of {self.settings.num_steps} steps"
            )
