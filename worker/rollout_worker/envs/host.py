"""Where the environments of a group live: the caller's process (`host_serial`), or children (`host_crew`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from rollout_worker.envs.arena import Arena, ArenaPlan, ControlPage
from rollout_worker.envs.calls import Result
from rollout_worker.envs.commands import Request, RowOp, Rows, RowWork, Simple
from rollout_worker.envs.factory import Recipe
from rollout_worker.envs.looking import Looked
from rollout_worker.envs.reports import Reported
from rollout_worker.envs.stepping import SteppedBy
from rollout_worker.envs.vector_parts import Effort, VectorSettings

if TYPE_CHECKING:
    from rollout_worker.envs.row_memory import RowMemory, RowPlan


class Host(Protocol):
    """Where environments live. Every method but `order` returns when the environments are done, or raises EnvError."""

    @property
    def control(self) -> ControlPage:
        """Seeds and masks for the environments."""

    @property
    def pids(self) -> list[int]:
        """Processes that step environments beside the caller's, in the order of their environments."""

    def look(self, recipes: Sequence[Recipe], settings: VectorSettings) -> list[Looked]:
        """Make the environments, and tell what they are; `open` has them stepped then."""

    def open(
        self, recipes: Sequence[Recipe], settings: VectorSettings, stepped_by: SteppedBy
    ) -> list[Reported]:
        """Make the environments, where `look` has not; gives what each says it is."""

    def map(self, plan: ArenaPlan) -> Arena:
        """Make memory, and have the environments stepped into it from now on."""

    def map_rows(self, plan: RowPlan) -> RowMemory:
        """Make memory for rows, and have them stepped through it where a command says so."""

    def order(self, command: Simple, *, call: str) -> None:
        """Have a command done by all; `wait` waits for it."""

    def wait(self, arena: Arena | None) -> None:
        """Wait for the command that was ordered; leaves that are no tensors are put into the arena."""

    def ask(self, request: Request) -> list[Result]:
        """Have something rare done with some environments."""

    def packed(self, op: RowOp, rows: Rows) -> Rows:
        """Rows in the form in which they are taken here. Raises RuntimeError for what cannot be brought into it."""

    def do_rows(self, work: RowWork) -> dict[int, Any]:
        """Have some rows stepped or reset as tensordicts; gives what each came to, by environment."""

    def begin(self, work: RowWork) -> None:
        """Have some rows stepped, whatever the others are doing. Where rows are stepped in a block, their work is empty."""

    def finished(self, at_least: int, timeout_s: float | None, arena: Arena | None) -> dict[int, Any]:
        """Wait until that many rows that were begun are done, or the time is over; gives what each came to."""

    def effort(self) -> Effort:
        """What processes, and waiting for them, have taken since the start."""

    def close(self) -> None:
        """Close the environments in order. Raises EnvError where one fails to; all are tried."""

    def release(self) -> None:
        """Give back everything at once, whatever state it is in. Safe at any time, and twice."""
