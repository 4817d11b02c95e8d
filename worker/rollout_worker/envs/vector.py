"""The vector env: `num_envs` environments stepped at once, straight into the blocks of an arena. The
collector's interface.

`opening.open_envs` gives one. `SerialVector` steps in the caller's process, `ParallelVector` in children; both
follow one contract, written at `VectorEnv`, and the same stepper does the work. Tensordicts are not known
here: `batched` puts them on top.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from rollout_contract.errors import LayoutMismatch
from rollout_worker.envs.arena import Arena, ArenaPlan, Block, ControlPage
from rollout_worker.envs.calls import GET_ATTRIBUTE, IS_CALLABLE, SET_ATTRIBUTE, Result
from rollout_worker.envs.commands import Cut, Request, Reset, Seed, Step
from rollout_worker.envs.describe import EnvDescription, differences
from rollout_worker.envs.factory import Recipe
from rollout_worker.envs.launch import refuse_import_of_main
from rollout_worker.envs.layout import (
    EPISODE_LENGTH,
    EPISODE_RETURN,
    BlockLayout,
    Leaf,
    block_layout,
    flag_keys,
)
from rollout_worker.envs.vector_parts import MAX_SEED, Array, Episodes, Failure, Simple, VectorSettings

if TYPE_CHECKING:
    from rollout_worker.envs.specs import Composite, EnvSpecs, Spec


class VectorEnv(ABC):
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

    def __init__(self, recipes: Sequence[Recipe], settings: VectorSettings) -> None:
        self.num_envs = len(recipes)
        self.settings = settings
        self._recipes = tuple(recipes)
        self._arena: Arena | None = None
        self._description: EnvDescription | None = None
        self._failure: Failure | None = None
        self._has_begun_step = False
        self._roots_at: tuple[int, int] | None = None

    def start(self) -> Self:
        """Make the environments and the memory. Raises RuntimeError if they run already."""
        if not self.is_closed:
            raise RuntimeError("the environments have been started already; close them first")
        self._failure = None
        self._roots_at = None
        refuse_import_of_main()
        try:
            self._open()
        except BaseException as error:
            self._failure = Failure.of(error)
            self._release()
            raise
        return self

    @property
    def is_closed(self) -> bool:
        """True before `start` and after `close` or a failure."""
        return self._arena is None

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
        self._step(Step(block, start, stop))

    def begin_step(self, block: int, start: int, stop: int) -> None:
        """Like `step_range`, but return at once; `finish_step` waits. Meanwhile only other blocks may be touched."""
        self._check_ready()
        self._check_range(start, stop)
        self._note_step(Step(block, start, stop))
        self._order(Step(block, start, stop), call="step")
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
            self._control.mask[:] = mask
        self._step(command)

    def set_seed(self, seeds: Sequence[int | None]) -> None:
        """Seed environments without resetting them (a gymnasium environment takes its seed at its next reset)."""
        self._check_ready()
        self._put_seeds(seeds, None)
        self._run(Seed(), call="set_seed")

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

    def call(self, name: str, *args: Any, indices: Sequence[int] | None = None, **kwargs: Any) -> list[Any]:
        """The attribute `name` of each environment (or of those in `indices`), called if it can be; one
        result per environment.

        An exception raised by an environment is raised here, of its own class, with the environment's index
        in a note.
        """
        self._check_ready()
        chosen = tuple(range(self.num_envs)) if indices is None else tuple(indices)
        answers = self._call(Request(name, chosen, args, tuple(kwargs.items())))
        results = {result.env_index: result for result in answers}
        for index in chosen:
            if results[index].error is not None:
                raise _noted(results[index])
        return [results[index].value for index in chosen]

    def get_attr(self, name: str, *, indices: Sequence[int] | None = None) -> list[Any]:
        """The attribute `name` of each environment, methods too as far as they can be sent."""
        return self.call(GET_ATTRIBUTE + name, indices=indices)

    def has_method(self, name: str) -> bool:
        """Whether `name` is something to call in the environments. Raises AttributeError where they lack it."""
        return bool(self.call(IS_CALLABLE + name, indices=[0])[0])

    def set_attr(self, name: str, value: Any, *, indices: Sequence[int] | None = None) -> None:
        """Set an attribute of each environment (or of those in `indices`)."""
        self.call(SET_ATTRIBUTE + name, value, indices=indices)

    def remap(self, *, num_steps: int, num_blocks: int = 1, extra_leaves: Iterable[Leaf] = ()) -> None:
        """Go on with other blocks. Waiting roots move along; arrays of the old blocks keep their memory and content."""
        self._check_ready()
        self._settle()
        before = self._opened()
        self.settings = replace(
            self.settings, num_steps=num_steps, num_blocks=num_blocks, extra_leaves=tuple(extra_leaves)
        )
        self._arena = self._mapped(self._plan())
        for key, array in before.carry.arrays.items():
            self._arena.carry.arrays[key][...] = array

    def close(self) -> None:
        """Close the environments and give everything back. Nothing happens where nothing is open."""
        if self.is_closed:
            return
        try:
            self._close()
        finally:
            self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- what the two kinds do differently -------------------------------------------------------------------------

    _control: ControlPage

    @abstractmethod
    def _open(self) -> None: ...

    @abstractmethod
    def _mapped(self, plan: ArenaPlan) -> Arena: ...

    @abstractmethod
    def _order(self, command: Simple, *, call: str) -> None: ...

    @abstractmethod
    def _wait(self) -> None: ...

    @abstractmethod
    def _call(self, request: Request) -> list[Result]: ...

    @abstractmethod
    def _close(self) -> None: ...

    @abstractmethod
    def _release(self) -> None: ...

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
        self._order(command, call=call)
        self._wait()

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

    def _plan(self) -> ArenaPlan:
        settings = self.settings
        layout = block_layout(
            self.description,
            num_envs=self.num_envs,
            num_steps=settings.num_steps,
            extra=settings.extra_leaves,
        )
        return ArenaPlan(layout, settings.num_blocks)

    def _opened(self) -> Arena:
        if self._arena is None:
            raise self._closed_error()
        return self._arena

    def _check_ready(self) -> None:
        if self._arena is None:
            raise self._closed_error()
        if self._has_begun_step:
            raise RuntimeError("a step is under way: call finish_step first")

    def _closed_error(self) -> BaseException:
        if self._failure is None:
            return RuntimeError("the environments are closed; start them first")
        return self._failure.again()

    def _check_range(self, start: int, stop: int) -> None:
        if not 0 <= start < stop <= self.settings.num_steps:
            raise ValueError(
                f"frames {start} to {stop} are not within a block of {self.settings.num_steps} steps"
            )

    def _put_seeds(self, seeds: Sequence[int | None] | None, mask: Sequence[bool] | Array | None) -> None:
        control = self._control
        if seeds is not None and len(seeds) != self.num_envs:
            raise ValueError(f"{len(seeds)} seeds for {self.num_envs} environments")
        for seed in seeds or ():
            if seed is not None and not 0 <= seed <= MAX_SEED:
                raise ValueError(f"a seed is {seed}; allowed is 0 to {MAX_SEED}")
        control.mask[:] = True if mask is None else np.asarray(mask, dtype=bool)
        control.has_seed[:] = [seed is not None for seed in seeds] if seeds is not None else False
        if seeds is not None:
            control.seeds[:] = [seed or 0 for seed in seeds]


def _noted(result: Result) -> BaseException:
    assert result.error is not None
    assert result.fault is not None
    result.error.add_note(f"raised by {result.fault}\n{result.fault.details}")
    return result.error
