"""Puts a new environment in the place of one that failed.

Asked by the steppers where the rules want that. A restarted environment gets a seed of its own, which follows from
the one that its place was given and from the number of restarts, so that a run can be repeated.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar

from rollout_worker.envs.arena import ControlPage
from rollout_worker.envs.seeding import successor
from rollout_worker.envs.stepper_base import Seat, seed_globals

S = TypeVar("S", bound=Seat)

IN_A_ROW = 3
"""What fails so often without a single good step in between is not replaced again."""


class Restarts(Generic[S]):
    """Remakes the environments of one stepper. Counts and seeds lie on the control page, and outlive the process."""

    def __init__(
        self,
        remake: Callable[[int], S],
        control: ControlPage,
        indices: range,
        *,
        max_restarts: int | None,
    ) -> None:
        part = slice(indices.start, indices.stop)
        self._remake = remake
        self._counts = control.restarts[part]
        self._seeds, self._was_seeded = control.first_seeds[part], control.was_seeded[part]
        self._first_env = indices.start
        self._most = max_restarts
        self._in_a_row: dict[int, list[BaseException]] = {}

    def note_seed(self, position: int, seed: int) -> None:
        """Remember the seed that a place was given."""
        self._seeds[position], self._was_seeded[position] = seed, True

    def seed_anew(self, made: S, position: int) -> int | None:
        """Give a new environment the seed that its place has after so many restarts; None where it never had one."""
        if not self._was_seeded[position]:
            return None
        seed = int(self._seeds[position])
        for _ in range(int(self._counts[position])):
            seed = successor(seed)
        made.seed(seed)
        return seed

    def seed_all_anew(self, sessions: list[S], *, with_globals: bool) -> None:
        """The same for all environments of a process that took another's place."""
        seeds = [self.seed_anew(session, position) for position, session in enumerate(sessions)]
        if with_globals and seeds[0] is not None:
            seed_globals(seeds[0])

    def refusal(self, position: int, error: BaseException, *, had_good_steps: bool) -> BaseException | None:
        """The error of a place that is not given another environment: the first of a row of failures that is too long, or
        `error` where there were too many in all. None: it is to be replaced."""
        row = [] if had_good_steps else self._in_a_row.get(position, [])
        self._in_a_row[position] = [*row, error]
        if len(row) == IN_A_ROW:
            row[0].add_note(f"it failed {IN_A_ROW + 1} times in a row, each time with a new environment")
            return row[0]
        if self._most is not None and self._counts[position] >= self._most:
            error.add_note(f"it was replaced {self._most} times already, and max_restarts allows no more")
            return error
        return None

    def instead_of(self, failed: S, position: int, error: BaseException) -> S:
        """A new environment for this place; the failed one is closed. Raises whatever the factory raises."""
        with suppress(Exception):
            failed.close()
        made = self._remake(position)
        self._counts[position] += 1
        self.seed_anew(made, position)
        print(
            f"environment {self._first_env + position} was replaced: {type(error).__name__}: {error}",
            file=sys.stderr,
        )
        return made
