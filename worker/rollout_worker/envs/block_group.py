"""The memory of a vector env: blocks of frames, the carry between them, and what is laid out there.

`VectorEnv` steps environments through it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from rollout_contract.errors import EnvError, LayoutMismatch
from rollout_worker.envs.arena import Arena, ArenaPlan, Block
from rollout_worker.envs.describe import EnvDescription, differences
from rollout_worker.envs.factory import Recipe
from rollout_worker.envs.group import EnvGroup
from rollout_worker.envs.host import Host
from rollout_worker.envs.layout import VALID, BlockLayout, Leaf, block_layout
from rollout_worker.envs.reports import Known
from rollout_worker.envs.stepping import SteppedBy
from rollout_worker.envs.vector_parts import VectorSettings

if TYPE_CHECKING:
    from rollout_worker.envs.specs import Composite, EnvSpecs, Spec


class BlockGroup(EnvGroup):
    """A group whose environments are stepped into blocks. See `VectorEnv`."""

    _stepped_by = SteppedBy.BLOCK

    def __init__(
        self,
        recipes: Sequence[Recipe],
        settings: VectorSettings,
        host: Host,
        *,
        known: Known | None = None,
    ) -> None:
        super().__init__(recipes, settings, host, known=known)
        self._arena: Arena | None = None
        self._description: EnvDescription | None = None
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

    def _opened_with(self, said: list[Any]) -> None:
        self._roots_at = None
        self._adopt(said)
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

    def _settle(self) -> None:
        """Bring roots that wait inside a block, because it was not filled to its end, into the carry."""
        if self._roots_at is None:
            return
        (block, frame), self._roots_at = self._roots_at, None
        arena = self._opened()
        for key in arena.carry.layout.root_keys:
            arena.carry.arrays[key][:, 0] = arena.blocks[block].arrays[key][:, frame]

    def _release(self) -> None:
        super()._release()
        self._arena = None

    def _adopt(self, descriptions: Sequence[EnvDescription]) -> None:
        """Take the environments' common description. Raises LayoutMismatch naming the one that differs, EnvError for what no
        block can hold."""
        first = descriptions[0]
        for index, each in enumerate(descriptions):
            if each.batch_size or each.state:
                what = f"the batch size {list(each.batch_size)}" if each.batch_size else "states"
                raise EnvError(
                    f"environment {index}, {each.name}, has {what}: a row of a block must be a single environment without",
                    env_index=index,
                    call="constructor",
                )
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
