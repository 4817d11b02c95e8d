"""A group of environments that is stepped through tensordicts, one row each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rollout_worker.envs.commands import RowOp, RowWork, Simple, Step
from rollout_worker.envs.factory import Recipe
from rollout_worker.envs.group import EnvGroup
from rollout_worker.envs.host import Host
from rollout_worker.envs.reports import Known
from rollout_worker.envs.stepping import SteppedBy
from rollout_worker.envs.vector_parts import Array, VectorSettings

if TYPE_CHECKING:
    from rollout_worker.envs.row_memory import RowMemory, RowPlan


class RowGroup(EnvGroup):
    """Environments of any batch size and with any specs. With a `plan` they can also be stepped through memory."""

    _stepped_by = SteppedBy.ROWS

    def __init__(
        self,
        recipes: Sequence[Recipe],
        settings: VectorSettings,
        host: Host,
        *,
        plan: RowPlan | None = None,
        known: Known | None = None,
    ) -> None:
        super().__init__(recipes, settings, host, known=known)
        self._plan = plan
        self.memory: RowMemory | None = None
        """Through which rows can be stepped (None: through pipes alone)."""

    def _opened_with(self, said: list[Any]) -> None:
        if self._plan is not None:
            self.memory = self._host.map_rows(self._plan)

    def _release(self) -> None:
        super()._release()
        self.memory = None

    def advance(self, command: Step, mask: Array | None) -> None:
        """Step rows through the memory: those that `mask` marks, where the command is masked."""
        self._check_ready()
        if mask is not None:
            self._host.control.mask[:] = mask
        self._run(command, call="step")

    def _run(self, command: Simple, *, call: str) -> None:
        def run() -> None:
            self._host.order(command, call=call)
            self._host.wait(None)

        self._guarded(run)

    def do(self, op: RowOp, rows: Sequence[tuple[int, Any]]) -> dict[int, Any]:
        """Step or reset these rows (see `RowStepper.do`); gives what each came to."""
        self._check_ready()
        work = RowWork(op, tuple(self._host.packed(op, rows)))
        return self._guarded(lambda: self._host.do_rows(work))
