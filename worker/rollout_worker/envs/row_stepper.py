"""Steps a slice of the environments as rows: the one place where tensordicts are handed to them.

A serial group is one row stepper over all rows; a child is one over its slice. Failures of several environments in
one call are gathered and leave together as `StepFailed`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from rollout_contract.errors import LayoutMismatch
from rollout_worker.envs.arena import ControlPage
from rollout_worker.envs.commands import Broken, RowOp, RowWork, Step
from rollout_worker.envs.layout import VALID
from rollout_worker.envs.metadata import specs_of
from rollout_worker.envs.progress import Doing, Progress
from rollout_worker.envs.reports import Report
from rollout_worker.envs.row_codec import decoded, encoded
from rollout_worker.envs.row_memory import RowMemory, leaves_of_row, put_row, rows_of_memory, unlike
from rollout_worker.envs.row_sessions import RowSession
from rollout_worker.envs.stepper_base import Faults, SessionStepper, StepRules
from rollout_worker.envs.transitions import RESET
from rollout_worker.envs.unchanged import Memory

_CALLS = {
    RowOp.RESET: (Doing.RESET, "reset"),
    RowOp.STEP: (Doing.STEP, "step"),
    RowOp.STEP_AND_RESET: (Doing.STEP, "step"),
}


class RowStepper(SessionStepper[RowSession]):
    """Environments that are stepped with tensordicts."""

    _memory: RowMemory

    def __init__(
        self,
        sessions: Sequence[RowSession],
        *,
        first_env: int,
        control: ControlPage,
        progress: Progress,
        rules: StepRules,
    ) -> None:
        super().__init__(sessions, first_env=first_env, control=control, progress=progress, rules=rules)
        self._sent = [Memory() for _ in sessions]

    def reports(self) -> list[Report]:
        """What the environments say they are."""
        return [session.report() for session in self.sessions]

    def do(self, work: RowWork) -> list[tuple[int, Any]]:
        """Do the rows in order. A reset's input is its row (or None) and its keywords, a step's its row."""
        doing, call = _CALLS[work.op]
        faults = Faults(self.first_env)
        found: list[tuple[int, Any]] = []
        for index, given in work.rows:
            position = index - self.first_env
            self._progress.note(doing, position)
            try:
                found.append((index, self._one(work.op, position, given)))
            except (Exception, SystemExit) as error:
                faults.add(error, position, call)
        faults.raise_if_any()
        return found

    def map(self, memory: RowMemory) -> None:
        """Step rows through this memory from now on, where a command says so. Raises StepFailed where environments are not
        as the caller's process, which has made the plan, knows them."""
        faults = Faults(self.first_env)
        for position, session in enumerate(self.sessions):
            lines = unlike(memory.plan, leaves_of_row(specs_of(session.owner), session.owner.batch_size))
            if lines:
                error = LayoutMismatch(f"environment {self.first_env + position}'s", lines)
                faults.add(error, position, "constructor")
        faults.raise_if_any()
        self._memory = memory

    def step(self, command: Step) -> None:
        """Step the rows that the control page's mask marks (all, where the command is not masked) through the memory."""
        memory = self._memory
        op = RowOp.STEP_AND_RESET if command.autoreset else RowOp.STEP
        rows = np.flatnonzero(self._mask).tolist() if command.masked else range(len(self.sessions))
        faults = Faults(self.first_env)
        for position in rows:
            index = self.first_env + position
            stepped = memory.stepped[index] if command.masked else None
            self._progress.note(Doing.STEP, position)
            try:
                given = self.sessions[position].acting(rows_of_memory(memory.taken, index), stepped)
                self._put(index, position, self._one(op, position, given))
            except (Exception, SystemExit) as error:
                faults.add(error, position, "step")
        faults.raise_if_any()

    def _put(self, index: int, position: int, result: Any) -> None:
        """Write what came of a row into the memory."""
        memory = self._memory
        memory.broken[index] = isinstance(result, Broken)
        if not isinstance(result, Broken):
            put_row(memory.next, index, result[0] if isinstance(result, tuple) else result)
        root = self.sessions[position].root
        assert root is not None
        put_row(memory.root, index, root)

    def do_encoded(self, work: RowWork) -> list[tuple[int, Any]]:
        """The same with rows that came through a pipe, and go back through it in the same form."""
        packs = True
        plain: list[tuple[int, Any]] = []
        for index, given in work.rows:
            if work.op is RowOp.RESET:
                row, kwargs = given
                plain.append((index, (decoded(row), kwargs)))
            else:
                packs = given.buffer is not None
                plain.append((index, decoded(given, known=self._sent_of(index))))
        results = self.do(RowWork(work.op, tuple(plain)))
        return [(index, _back(result, packs, self._sent_of(index))) for index, result in results]

    def _sent_of(self, index: int) -> Memory:
        """What the caller's process has been sent of a row."""
        return self._sent[index - self.first_env]

    def _one(self, op: RowOp, position: int, given: Any) -> Any:
        if self.restarts is None:
            return self._done(op, self.sessions[position], given)
        session = self.sessions[position]
        if self._lost[position]:
            return self._of_new(op, position, given)
        try:
            return self._marked(op, self._done(op, session, given))
        except (Exception, SystemExit) as error:
            had_good_steps = op is not RowOp.RESET and session.num_steps > 0
            refused = self.restarts.refusal(position, error, had_good_steps=had_good_steps)
            if refused is not None:
                raise refused from None
            self.sessions[position] = made = self.restarts.instead_of(session, position, error)
            fresh = made.reset(None, {})
            return fresh if op is RowOp.RESET else Broken(fresh)

    def _of_new(self, op: RowOp, position: int, given: Any) -> Any:
        """What comes of a row whose environment is gone with its process: all of the new one is reset. What of the row was
        not to be reset is said to be lost at the next step."""
        row, kwargs = given if op is RowOp.RESET else (None, {})
        mask = None if row is None else row.get(RESET, None)
        is_whole = mask is None or bool(mask.all())
        fresh = self.sessions[position].reset(row if is_whole else None, kwargs)
        self._lost[position] = op is RowOp.RESET and not is_whole
        return fresh if op is RowOp.RESET else Broken(fresh)

    @staticmethod
    def _done(op: RowOp, session: RowSession, given: Any) -> Any:
        if op is RowOp.RESET:
            return session.reset(*given)
        return session.step(given) if op is RowOp.STEP else session.step_and_reset(given)

    @staticmethod
    def _marked(op: RowOp, result: Any) -> Any:
        """What a good step gave, marked as valid."""
        if op is RowOp.RESET:
            return result
        following = result[0] if op is RowOp.STEP_AND_RESET else result
        shape = (*following.batch_size, 1)
        following.set(VALID[-1], torch.ones(shape, dtype=torch.bool, device=following.device))
        return result


def _back(result: Any, packs: bool, sent: Memory) -> Any:
    """What came of a row in the form in which it goes through a pipe."""
    if isinstance(result, Broken):
        return Broken(encoded(result.fresh, consolidate=packs, sent=sent))
    if isinstance(result, tuple):
        return tuple(encoded(row, consolidate=packs, sent=sent) for row in result)
    return encoded(result, consolidate=packs, sent=sent)
