"""The host in the caller's own process: environments are stepped one after the other, and nothing is waited for.

A step that never returns cannot be ended here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from rollout_worker.envs.arena import Arena, ArenaPlan, ControlPage, LocalArena
from rollout_worker.envs.calls import Result, answer
from rollout_worker.envs.commands import Cut, Request, Reset, RowOp, Rows, RowWork, Seed, Simple, Step
from rollout_worker.envs.factory import Recipe
from rollout_worker.envs.faults import error_of
from rollout_worker.envs.looking import Looked, Waiting, begun
from rollout_worker.envs.progress import Progress
from rollout_worker.envs.reports import Reported
from rollout_worker.envs.stepper import Stepper
from rollout_worker.envs.stepper_base import StepFailed
from rollout_worker.envs.stepping import AnyStepper, Slice, SteppedBy, reports_of, seated
from rollout_worker.envs.vector_parts import Effort, VectorSettings

if TYPE_CHECKING:
    from rollout_worker.envs.row_memory import RowMemory, RowPlan

T = TypeVar("T")


class SerialHost:
    """One stepper over all environments, called directly."""

    control: ControlPage

    def __init__(self) -> None:
        self.pids: list[int] = []
        self._stepper: AnyStepper | None = None
        self._waiting: Waiting | None = None
        self._pending: Simple | None = None
        self._begun: deque[tuple[RowOp, int, Any]] = deque()

    def __getstate__(self) -> dict[str, Any]:
        """The sessions with their environments, and what the stepper knows of their episodes; memory is mapped anew."""
        stepper = self._stepper
        if stepper is None:
            return {"sessions": None}
        return {
            "sessions": stepper.sessions,
            "part": self._part,
            "stepped_by": self._stepped_by,
            "rules": stepper.rules,
            "tallies": stepper.tallies if isinstance(stepper, Stepper) else None,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        SerialHost.__init__(self)
        sessions = state["sessions"]
        if sessions is None:
            return
        self.control = ControlPage(len(sessions), 1)
        self._part, self._stepped_by = state["part"], state["stepped_by"]
        self._stepper = seated(
            sessions,
            self._stepped_by,
            self._part,
            control=self.control,
            progress=Progress(memoryview(self.control.progress[0])),
            rules=state["rules"],
        )
        if isinstance(self._stepper, Stepper):
            self._stepper.tallies = state["tallies"]

    def look(self, recipes: Sequence[Recipe], settings: VectorSettings) -> list[Looked]:
        """Make the environments, and tell what they are."""
        waiting = self._begun_as(SteppedBy.UNDECIDED, recipes, settings)
        assert isinstance(waiting, Waiting)
        self._waiting = waiting
        return waiting.look()

    def open(
        self, recipes: Sequence[Recipe], settings: VectorSettings, stepped_by: SteppedBy
    ) -> list[Reported]:
        """Make the environments, or go on with those that have been looked at."""
        waiting = self._waiting
        if waiting is None:
            made = self._begun_as(stepped_by, recipes, settings)
        else:
            made = _translated(lambda: waiting.seat(stepped_by, self._part, control=self.control))
        assert not isinstance(made, Waiting)
        self._stepper, self._waiting, self._stepped_by = made, None, stepped_by
        return reports_of(made)

    def _begun_as(
        self, stepped_by: SteppedBy, recipes: Sequence[Recipe], settings: VectorSettings
    ) -> AnyStepper | Waiting:
        self.control = ControlPage(len(recipes), 1)
        self._part = Slice(recipes, range(len(recipes)), settings.first_env_index)
        progress = Progress(memoryview(self.control.progress[0]))
        return _translated(
            lambda: begun(
                stepped_by, self._part, control=self.control, progress=progress, rules=settings.rules
            )
        )

    def map(self, plan: ArenaPlan) -> Arena:
        """Memory of this process alone."""
        assert isinstance(self._stepper, Stepper)
        arena = LocalArena(plan)
        self._stepper.map(arena)
        return arena

    def map_rows(self, plan: RowPlan) -> RowMemory:
        """Never asked for: rows in the caller's own process are handed over as they are."""
        raise TypeError(f"{plan.num_rows} rows in this process need no memory")

    def order(self, command: Simple, *, call: str) -> None:
        """Keep the command: it is done while it is waited for."""
        self._pending = command

    def wait(self, arena: Arena | None) -> None:
        """Do the command that was ordered."""
        stepper, command = self._stepper, self._pending
        assert stepper is not None
        try:
            if isinstance(command, Step):
                stepper.step(command)
            elif isinstance(command, Reset):
                stepper.reset()  # type: ignore[union-attr]
            elif isinstance(command, Seed):
                stepper.seed()
            elif isinstance(command, Cut):
                stepper.cut(command)  # type: ignore[union-attr]
        except StepFailed as failure:
            raise error_of(failure.faults) from failure.cause

    def ask(self, request: Request) -> list[Result]:
        """Ask the environments."""
        assert self._stepper is not None
        return answer(request, self._stepper.sessions, 0)

    def do_rows(self, work: RowWork) -> dict[int, Any]:
        """Step or reset rows; tensordicts go in and out as they are."""
        stepper = self._stepper
        assert stepper is not None
        assert not isinstance(stepper, Stepper)
        return dict(_translated(lambda: stepper.do(work)))

    def begin(self, work: RowWork) -> None:
        """Keep the rows; they are stepped when somebody waits for them."""
        self._begun.extend((work.op, index, given) for index, given in work.rows)

    def finished(self, at_least: int, timeout_s: float | None, arena: Arena | None) -> dict[int, Any]:
        """Step as many rows as are waited for, in the order in which they were begun."""
        stepper = self._stepper
        assert stepper is not None
        found: dict[int, Any] = {}
        while len(found) < at_least:
            op, index, given = self._begun.popleft()
            if isinstance(stepper, Stepper):
                self.control.mask[:] = False
                self.control.mask[index] = True
                self.order(Step(0, 0, 1, masked=True), call="step")
                self.wait(arena)
                found[index] = None
            else:
                found.update(self.do_rows(RowWork(op, ((index, given),))))
        return found

    def effort(self) -> Effort:
        """There are no processes."""
        return Effort(restarts=tuple(map(int, self.control.restarts)))

    def packed(self, op: RowOp, rows: Rows) -> Rows:
        """Rows in the caller's own process are taken as they are."""
        return rows

    def close(self) -> None:
        """Close the environments."""
        self._begun.clear()
        stepper, self._stepper = self._stepper, None
        if stepper is not None:
            _translated(stepper.close)

    def release(self) -> None:
        """Close what is open still; what fails in that is not heard of any more."""
        self._begun.clear()
        held, self._stepper, self._waiting = (self._stepper, self._waiting), None, None
        for each in held:
            if each is not None:
                with suppress(StepFailed):
                    each.close()


def _translated(action: Callable[[], T]) -> T:
    try:
        return action()
    except StepFailed as failure:
        raise error_of(failure.faults) from failure.cause
