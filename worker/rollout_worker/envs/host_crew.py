"""The host of child processes, which write into memory that they share with the caller."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing.util import Finalize
from typing import Any

from rollout_worker.envs.arena import Arena, ArenaPlan, ControlPage, SharedArena
from rollout_worker.envs.calls import Result
from rollout_worker.envs.commands import Request, RowOp, RowWork, Simple
from rollout_worker.envs.describe import EnvDescription
from rollout_worker.envs.factory import Recipe
from rollout_worker.envs.processes import Crew, CrewSettings
from rollout_worker.envs.stepping import SteppedBy
from rollout_worker.envs.vector_parts import VectorSettings


class CrewHost:
    """A crew of children. They end with this object, if nobody closed it."""

    def __init__(self, settings: CrewSettings) -> None:
        self.settings = settings
        self._crew: Crew | None = None
        self._at_exit: Finalize | None = None

    @property
    def control(self) -> ControlPage:
        """The page that the children read."""
        return self._running().control

    @property
    def pids(self) -> list[int]:
        """The children's process ids, in the order of their environments."""
        return [child.pid for child in self._crew.children] if self._crew is not None else []

    def open(
        self, recipes: Sequence[Recipe], settings: VectorSettings, stepped_by: SteppedBy
    ) -> list[EnvDescription]:
        """Start the children."""
        rules = replace(settings.rules, seed_globals=True)
        self._crew, hellos = Crew.start(
            recipes,
            self.settings,
            rules,
            stepped_by=stepped_by,
            first_env_index=settings.first_env_index,
        )
        self._at_exit = Finalize(self, self._crew.kill, exitpriority=100)
        return [description for hello in hellos for description in hello.descriptions]

    def map(self, plan: ArenaPlan) -> Arena:
        """Memory that the children map too."""
        arena, fd = SharedArena.create(plan, directory=self.settings.memory_directory)
        try:
            self._running().remap(plan, fd)
        finally:
            os.close(fd)
        return arena

    def order(self, command: Simple, *, call: str) -> None:
        """Give all children a command."""
        self._running().order(command, call=call)

    def wait(self, arena: Arena | None) -> None:
        """Wait for all children."""
        answers = self._running().wait()
        if answers and arena is not None:
            self._take_objects(answers, arena)

    def _take_objects(self, answers: list[Any], arena: Arena) -> None:
        """Put leaves that are no tensors, which came on the sockets, into the blocks."""
        for child, found in zip(self._running().children, answers, strict=True):
            rows = slice(child.indices.start, child.indices.stop)
            for block, key, first, values in found or ():
                target = arena.carry if block < 0 else arena.blocks[block]
                target.arrays[key][rows, first : first + values.shape[1]] = values

    def ask(self, request: Request) -> list[Result]:
        """Ask the environments, each in its process."""
        crew = self._running()
        return [result for answers in crew.call(request) for result in answers or ()]

    def do_rows(self, work: RowWork) -> dict[int, Any]:
        """Send each child its rows, and only those children that have some; gives what came back, decoded."""
        from rollout_worker.envs.row_codec import decoded

        found = self._running().share_out(work)
        if work.op is RowOp.STEP_AND_RESET:
            return {
                index: tuple(decoded(each) for each in pair) for pairs in found for index, pair in pairs or ()
            }
        return {index: decoded(row) for rows in found for index, row in rows or ()}

    def close(self) -> None:
        """Close the environments in order, end the children."""
        if self._crew is not None:
            self._crew.close()

    def release(self) -> None:
        """End the children at once."""
        if self._at_exit is not None:
            self._at_exit.cancel()
            self._at_exit = None
        if self._crew is not None:
            self._crew.kill()
            self._crew = None

    def _running(self) -> Crew:
        assert self._crew is not None
        return self._crew
