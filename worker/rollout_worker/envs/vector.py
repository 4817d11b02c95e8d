"""The vector env: `num_envs` environments stepped at once, straight into the blocks of an arena. The
collector's interface.

`opening.open_envs` gives one. Where its environments live, in the caller's process or in children, is its host's
business; the same stepper does the work. Tensordicts are not known here: `batched` puts them on top.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from rollout_contract.errors import LayoutMismatch
from rollout_worker.envs.arena import Arena, ArenaPlan, Block
from rollout_worker.envs.commands import Cut, Reset, RowOp, Simple, Step
from rollout_worker.envs.describe import EnvDescription, differences
from rollout_worker.envs.factory import Recipe
from rollout_worker.envs.group import EnvGroup, Host
from rollout_worker.envs.layout import (
    EPISODE_LENGTH,
    EPISODE_RETURN,
    VALID,
    BlockLayout,
    Leaf,
    block_layout,
    flag_keys,
)
from rollout_worker.envs.stepping import SteppedBy
from rollout_worker.envs.vector_parts import Array, Episodes, VectorSettings

if TYPE_CHECKING:
    from rollout_worker.envs.specs import Composite, EnvSpecs, Spec


class VectorEnv(EnvGroup):
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

    _stepped_by = SteppedBy.BLOCK

    def __init__(self, recipes: Sequence[Recipe], settings: VectorSettings, host: Host) -> None:
        super().__init__(recipes, settings, host)
        self._arena: Arena | None = None
        self._description: EnvDescription | None = None
        self._has_begun_step = False
        self._roots_at: tuple[int, int] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """With the content of the blocks; a copy gets memory of its own for it."""
        arena = self._arena
        content = (
            None if arena is None else (arena.plan, [block.arrays for block in (*arena.blocks, arena.carry)])
        )
        return {**self.__dict__, "_arena": None, "content": content}

    def __setstate__(self, state: dict[str, Any]) -> None:
        content = state.pop("content")
        self.__dict__.update(state)
        if content is None:
            return
        plan, blocks = content
        self._arena = self._host.map(plan)
        for block, arrays in zip((*self._arena.blocks, self._arena.carry), blocks, strict=True):
            for key, array in arrays.items():
                block.arrays[key][...] = array

    def _opened_with(self, descriptions: list[EnvDescription]) -> None:
        self._roots_at = None
        self._adopt(descriptions)
        self._arena = self._host.map(self._plan(self.settings))

    @property
    def layout(self) -> BlockLayout:
        """The layout of every block."""
        return self._opened().plan.layout

    @property
    def blocks(self) -> Sequence[Block]:
        """The blocks, by index."""
        return self._opened().blocks

    @property
    def carry(self) -> Block:
        """Root observations `[num_envs, 1, …]` that the environments will act on next."""
        self._settle()
        return self._opened().carry

    @property
    def description(self) -> EnvDescription:
        """What one environment takes and gives."""
        if self._description is None:
            raise RuntimeError("the environments have not been started")
        return self._description

    @cached_property
    def specs(self) -> EnvSpecs:
        """The specs of one environment, without any batch dimension. Loads torch."""
        from rollout_worker.envs.specs import EnvSpecs

        return EnvSpecs.of(self.description)

    @property
    def observation_spec(self) -> Composite:
        """The spec of one environment's observation."""
        return self.specs.observation

    @property
    def action_spec(self) -> Spec:
        """The spec of one environment's action: the leaf where there is one, a composite where there are several."""
        return self.specs.action

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

    def bytes_of(self, *, num_steps: int, num_blocks: int = 1, extra_leaves: Iterable[Leaf] = ()) -> int:
        """Memory that such blocks would take."""
        settings = replace(
            self.settings, num_steps=num_steps, num_blocks=num_blocks, extra_leaves=tuple(extra_leaves)
        )
        return self._plan(settings).nbytes

    def remap(self, *, num_steps: int, num_blocks: int = 1, extra_leaves: Iterable[Leaf] = ()) -> None:
        """Go on with other blocks. Waiting roots move along; arrays of the old blocks keep their memory and content."""
        self._check_ready()
        self._settle()
        before = self._opened()
        self.settings = replace(
            self.settings, num_steps=num_steps, num_blocks=num_blocks, extra_leaves=tuple(extra_leaves)
        )
        self._arena = self._guarded(lambda: self._host.map(self._plan(self.settings)))
        for key, array in before.carry.arrays.items():
            self._arena.carry.arrays[key][...] = array

    # -- shared ----------------------------------------------------------------------------------------------------

    def _step(self, command: Step) -> None:
        self._note_step(command)
        self._run(command, call="step")

    def _note_step(self, command: Step) -> None:
        """Remember where the roots are that follow a step: in its block, or, behind the last frame, in the carry."""
        inside = command.autoreset and command.stop < self._opened().plan.layout.num_steps
        self._roots_at = (command.block, command.stop) if inside else None

    def _settle(self) -> None:
        """Bring roots that wait inside a block, because it was not filled to its end, into the carry."""
        if self._roots_at is None:
            return
        (block, frame), self._roots_at = self._roots_at, None
        arena = self._opened()
        for key in arena.carry.layout.root_keys:
            arena.carry.arrays[key][:, 0] = arena.blocks[block].arrays[key][:, frame]

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
        self._arena = None
        self._has_begun_step = False

    def _adopt(self, descriptions: Sequence[EnvDescription]) -> None:
        """Take the environments' common description. Raises LayoutMismatch naming the one that differs."""
        first = descriptions[0]
        for index, each in enumerate(descriptions):
            found = differences(first, each)
            if found:
                raise LayoutMismatch(
                    f"environment {index}'s", [f"{line} (environment 0 against {index})" for line in found]
                )
        self.__dict__.pop("specs", None)
        self._description = first

    def _plan(self, settings: VectorSettings) -> ArenaPlan:
        valid = (Leaf(VALID, "bool", (1,)),) if settings.rules.restarts else ()
        layout = block_layout(
            self.description,
            num_envs=self.num_envs,
            num_steps=settings.num_steps,
            extra=(*settings.extra_leaves, *valid),
        )
        return ArenaPlan(layout, settings.num_blocks)

    def _memory(self) -> Arena | None:
        return self._arena

    def _opened(self) -> Arena:
        if self._arena is None:
            raise self._closed_error()
        return self._arena

    def _check_ready(self) -> None:
        super()._check_ready()
        if self._has_begun_step:
            raise RuntimeError("a step is under way: call finish_step first")

    def _check_range(self, start: int, stop: int) -> None:
        if not 0 <= start < stop <= self.settings.num_steps:
            raise ValueError(
                f"frames {start} to {stop} are not within a block of {self.settings.num_steps} steps"
            )
