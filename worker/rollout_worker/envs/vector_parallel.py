"""The vector env whose environments are stepped by child processes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing.util import Finalize
from typing import Any

from rollout_worker.envs.arena import Arena, ArenaPlan, SharedArena
from rollout_worker.envs.calls import Result
from rollout_worker.envs.commands import Request
from rollout_worker.envs.factory import Recipe
from rollout_worker.envs.processes import Crew, CrewSettings
from rollout_worker.envs.vector import VectorEnv
from rollout_worker.envs.vector_parts import Failure, Simple, VectorSettings


class ParallelVector(VectorEnv):
    """Environments in child processes, which write into memory that they share with the caller."""

    def __init__(
        self, recipes: Sequence[Recipe], settings: VectorSettings, crew_settings: CrewSettings
    ) -> None:
        super().__init__(recipes, settings)
        self.crew_settings = crew_settings
        self._crew: Crew | None = None
        self._at_exit: Finalize | None = None

    def _open(self) -> None:
        rules = replace(self.settings.rules, seed_globals=True)
        first = self.settings.first_env_index
        self._crew, hellos = Crew.start(self._recipes, self.crew_settings, rules, first_env_index=first)
        self._at_exit = Finalize(self, self._crew.kill, exitpriority=100)
        self._control = self._crew.control
        self._adopt([description for hello in hellos for description in hello.descriptions])
        self._arena = self._mapped(self._plan())

    @property
    def pids(self) -> list[int]:
        """The children's process ids, in the order of their environments."""
        return [child.pid for child in self._crew.children] if self._crew is not None else []

    def _mapped(self, plan: ArenaPlan) -> Arena:
        assert self._crew is not None
        arena, fd = SharedArena.create(plan)
        try:
            self._crew.remap(plan, fd)
        except BaseException as error:
            self._failure = Failure.of(error)
            self._release()
            raise
        finally:
            os.close(fd)
        return arena

    def _order(self, command: Simple, *, call: str) -> None:
        assert self._crew is not None
        self._crew.order(command, call=call)

    def _wait(self) -> None:
        assert self._crew is not None
        try:
            answers = self._crew.wait()
        except (
            BaseException
        ) as error:  # an interrupted wait leaves a reply under way: nothing but closing is safe
            self._failure = Failure.of(error)
            self._release()
            raise
        if answers:
            self._take_objects(answers)

    def _take_objects(self, answers: list[Any]) -> None:
        """Put leaves that are no tensors, which came on the sockets, into the blocks."""
        assert self._crew is not None
        arena = self._opened()
        for child, found in zip(self._crew.children, answers, strict=True):
            rows = slice(child.indices.start, child.indices.stop)
            for block, key, first, values in found or ():
                target = arena.carry if block < 0 else arena.blocks[block]
                target.arrays[key][rows, first : first + values.shape[1]] = values

    def _call(self, request: Request) -> list[Result]:
        assert self._crew is not None
        try:
            return [result for answers in self._crew.call(request) for result in answers or ()]
        except BaseException as error:
            self._failure = Failure.of(error)
            self._release()
            raise

    def _close(self) -> None:
        assert self._crew is not None
        self._crew.close()

    def _release(self) -> None:
        if self._at_exit is not None:
            self._at_exit.cancel()
            self._at_exit = None
        if self._crew is not None:
            self._crew.kill()
            self._crew = None
        self.__dict__.pop("_control", None)
        self._arena = None
        self._has_begun_step = False
