"""What all steppers share: their rules, how they gather failures, seed, close, and are made.

A stepper owns the sessions of a slice of the environments. Called by the steppers alone, and by `stepping`.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import numpy as np

from rollout_contract.errors import EntrypointError
from rollout_worker.envs.arena import ControlPage
from rollout_worker.envs.faults import EnvFault, fault_of
from rollout_worker.envs.progress import Doing, Progress

if TYPE_CHECKING:
    from rollout_worker.envs.restarts import Restarts


@dataclass(frozen=True, slots=True)
class StepRules:
    """What a stepper does beside stepping.

    `max_frames_per_traj` truncates a trajectory at that many frames (None: never). `check_finite` refuses NaN
    and infinity in float observations and rewards. `seed_globals` seeds Python's, numpy's and (where loaded)
    torch's global generators with the first environment's seed, for environments that draw from those: right
    in a child, a side effect in a user's own process. `restarts` replaces environments that fail, and processes that are
    lost, at most `max_restarts` times each (None: as often as it helps).
    """

    max_frames_per_traj: int | None = None
    check_finite: bool = True
    seed_globals: bool = False
    restarts: bool = False
    max_restarts: int | None = None


class StepFailed(Exception):
    """Environments failed; `faults` names each, `cause` is the first one's exception. Never leaves the vector env."""

    def __init__(self, faults: Sequence[EnvFault], cause: BaseException | None = None) -> None:
        super().__init__("; ".join(map(str, faults)))
        self.faults = tuple(faults)
        self.cause = cause


class Faults:
    """Gathers what fails in one call; rows are counted within the stepper."""

    def __init__(self, first_env: int) -> None:
        self.found: list[EnvFault] = []
        self._first_env = first_env
        self._cause: BaseException | None = None

    def add(self, error: BaseException, row: int, call: str) -> None:
        """One environment raised."""
        self._cause = self._cause or error
        self.found.append(fault_of(error, env_index=self._first_env + row, pid=os.getpid(), call=call))

    def raise_if_any(self) -> None:
        """Raise StepFailed for all of them."""
        if self.found:
            raise StepFailed(self.found, self._cause)


class Seat(Protocol):
    """What a stepper needs of a session to seed and to close it."""

    def seed(self, seed: int) -> None:
        """Rewind the environment's generator."""

    def close(self) -> None:
        """Give back what the environment holds."""


S = TypeVar("S", bound=Seat)


class SessionStepper(Generic[S]):
    """Environments `first_env`, `first_env + 1`, … of a group, in one process."""

    def __init__(
        self,
        sessions: Sequence[S],
        *,
        first_env: int,
        control: ControlPage,
        progress: Progress,
        rules: StepRules,
    ) -> None:
        self.sessions = list(sessions)
        self.first_env = first_env
        self.rules = rules
        self._progress = progress
        self._slice = slice(first_env, first_env + len(self.sessions))
        self._seeds, self._has_seed = control.seeds[self._slice], control.has_seed[self._slice]
        self._mask, self._lost = control.mask[self._slice], control.lost[self._slice]
        self.restarts: Restarts[S] | None = None

    def seed(self) -> None:
        """Give the environments their seeds; they act on them at once or at their next reset."""
        if self.rules.seed_globals and self._has_seed[0]:
            seed_globals(int(self._seeds[0]))
        faults = Faults(self.first_env)
        for index in np.flatnonzero(self._has_seed).tolist():
            if self.restarts is not None:
                self.restarts.note_seed(index, int(self._seeds[index]))
            self._progress.note(Doing.SET_SEED, index)
            try:
                self.sessions[index].seed(int(self._seeds[index]))
            except (Exception, SystemExit) as error:
                faults.add(error, index, "set_seed")
        faults.raise_if_any()

    def seed_anew(self) -> None:
        """Seed environments whose process took another's place: each goes on with a seed of its own."""
        if self.restarts is not None:
            self.restarts.seed_all_anew(self.sessions, with_globals=self.rules.seed_globals)

    def close(self) -> None:
        """Close every environment. All are tried; failures leave together."""
        faults = Faults(self.first_env)
        for index, session in enumerate(self.sessions):
            self._progress.note(Doing.CLOSE, index)
            try:
                session.close()
            except (Exception, SystemExit) as error:
                faults.add(error, index, "close")
        faults.raise_if_any()


def seed_globals(seed: int) -> None:
    """Seed the global generators of Python, numpy and, where it is loaded, torch."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(seed)


def built(open_one: Callable[[int], S], indices: range, progress: Progress) -> list[S]:
    """Make the sessions of these environments; all are tried, and where some fail the others are closed again."""
    sessions: list[S] = []
    faults = Faults(indices.start)
    for row, env_index in enumerate(indices):
        progress.note(Doing.CONSTRUCTOR, row)
        try:
            sessions.append(open_one(env_index))
        except (Exception, SystemExit) as error:
            faults.add(error, row, "constructor")
            if isinstance(error, EntrypointError):
                break
    if faults.found:
        for session in sessions:
            _close_quietly(session)
    faults.raise_if_any()
    return sessions


def _close_quietly(session: Seat) -> None:
    try:
        session.close()
    except Exception as error:
        print(f"closing an environment failed: {type(error).__name__}: {error}", file=sys.stderr)
