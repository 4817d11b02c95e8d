"""The vector env that steps its environments in the caller's process."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from rollout_contract.errors import EnvError
from rollout_worker.envs.arena import Arena, ArenaPlan, ControlPage, LocalArena
from rollout_worker.envs.calls import Result, answer
from rollout_worker.envs.commands import Cut, Request, Reset, Seed, Step
from rollout_worker.envs.factory import Recipe
from rollout_worker.envs.faults import error_of
from rollout_worker.envs.native import open_session
from rollout_worker.envs.stepper import Progress, StepFailed, Stepper, built
from rollout_worker.envs.vector import VectorEnv
from rollout_worker.envs.vector_parts import Failure, Simple, VectorSettings


class SerialVector(VectorEnv):
    """Environments in the caller's process, one after the other. A step that never returns cannot be ended here."""

    def __init__(self, recipes: Sequence[Recipe], settings: VectorSettings) -> None:
        super().__init__(recipes, settings)
        self._stepper: Stepper | None = None
        self._pending: Simple | None = None

    def _open(self) -> None:
        self._control = ControlPage(self.num_envs, 1)
        progress = Progress(memoryview(self._control.progress[0]))
        first = self.settings.first_env_index
        try:
            sessions = built(
                lambda index: open_session(self._recipes[index], first + index),
                range(self.num_envs),
                progress,
            )
        except StepFailed as failure:
            raise error_of(failure.faults) from failure.cause
        self._stepper = Stepper(
            sessions, first_env=0, control=self._control, progress=progress, rules=self.settings.rules
        )
        self._adopt([session.description for session in sessions])
        self._arena = self._mapped(self._plan())

    def _mapped(self, plan: ArenaPlan) -> Arena:
        assert self._stepper is not None
        arena = LocalArena(plan)
        self._stepper.map(arena)
        return arena

    def _order(self, command: Simple, *, call: str) -> None:
        self._pending = command

    def _wait(self) -> None:
        assert self._stepper is not None
        try:
            match self._pending:
                case Step() as command:
                    self._stepper.step(command)
                case Reset():
                    self._stepper.reset()
                case Seed():
                    self._stepper.seed()
                case Cut() as command:
                    self._stepper.cut(command)
        except StepFailed as failure:
            error = error_of(failure.faults)
            self._failure = Failure.of(error)
            with suppress(EnvError):
                self.close()
            raise error from failure.cause

    def _call(self, request: Request) -> list[Result]:
        assert self._stepper is not None
        return answer(request, self._stepper.sessions, 0)

    def _close(self) -> None:
        assert self._stepper is not None
        try:
            self._stepper.close()
        except StepFailed as failure:
            raise error_of(failure.faults) from failure.cause

    def _release(self) -> None:
        self._stepper = None
        self._arena = None
        self._has_begun_step = False
