"""Puts a new environment in the place of one that failed.

Asked by the steppers where the rules want that. A restarted environment gets a seed of its own, which follows from
the one that its place was given and from the number of restarts, so that a run can be repeated.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic, TypeVar

import numpy as np

from rollout_worker.envs.seeding import successor
from rollout_worker.envs.stepper_base import Seat

S = TypeVar("S", bound=Seat)

IN_A_ROW = 3
"""An environment that fails so often without a single good step in between is not replaced again."""


class Restarts(Generic[S]):
    """Remakes the environments of one stepper. `counts` is shared memory: restarts so far of each environment."""

    def __init__(
        self, remake: Callable[[int], S], counts: np.ndarray[Any, np.dtype[np.int64]], first_env: int
    ) -> None:
        self._remake = remake
        self._counts = counts
        self._first_env = first_env
        self._in_a_row: dict[int, int] = {}
        self._seeds: dict[int, int] = {}

    def note_seed(self, position: int, seed: int) -> None:
        """Remember the seed that a place was given."""
        self._seeds[position] = seed

    def instead_of(self, failed: S, position: int, error: BaseException, *, had_good_steps: bool) -> S:
        """A new environment for this place; the failed one is closed. Raises `error` if it has failed too often in a
        row, and whatever the factory raises."""
        failures = 1 if had_good_steps else self._in_a_row.get(position, 0) + 1
        if failures > IN_A_ROW:
            raise error
        self._in_a_row[position] = failures
        with suppress(Exception):
            failed.close()
        made = self._remake(position)
        self._counts[position] += 1
        seed = self._seeds.get(position)
        if seed is not None:
            for _ in range(int(self._counts[position])):
                seed = successor(seed)
            made.seed(seed)
        print(
            f"environment {self._first_env + position} was replaced: {type(error).__name__}: {error}",
            file=sys.stderr,
        )
        return made
