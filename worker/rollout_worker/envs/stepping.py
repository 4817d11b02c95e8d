"""Makes what steps a slice of the environments, in whatever process that is: over blocks, or over tensordicts.

Called by the serial host and by the child; keeps torch out of processes that need none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeAlias

from rollout_worker.envs.arena import ControlPage
from rollout_worker.envs.describe import EnvDescription
from rollout_worker.envs.factory import Recipe
from rollout_worker.envs.native import Makers
from rollout_worker.envs.progress import Progress
from rollout_worker.envs.stepper import Stepper
from rollout_worker.envs.stepper_base import StepRules, built

if TYPE_CHECKING:
    from rollout_worker.envs.row_stepper import RowStepper

AnyStepper: TypeAlias = "Stepper | RowStepper"


class SteppedBy(StrEnum):
    """What steps the environments of a group."""

    BLOCK = "block"
    ROWS = "rows"


@dataclass(frozen=True, slots=True)
class Slice:
    """Which environments of a group are stepped in one process. `first_env_index` is what factories count from."""

    recipes: Sequence[Recipe]
    indices: range
    first_env_index: int


def stepper_of(
    stepped_by: SteppedBy, part: Slice, *, control: ControlPage, progress: Progress, rules: StepRules
) -> AnyStepper:
    """Make the environments of a slice and what steps them. Raises StepFailed naming each that could not be made."""
    makers = Makers()

    def recipe_of(index: int) -> Recipe:
        return part.recipes[index - part.indices.start]

    if stepped_by is SteppedBy.BLOCK:
        sessions = built(
            lambda index: makers.open_session(recipe_of(index), part.first_env_index + index),
            part.indices,
            progress,
        )
        return Stepper(
            sessions, first_env=part.indices.start, control=control, progress=progress, rules=rules
        )
    from rollout_worker.envs.row_sessions import RowSession
    from rollout_worker.envs.row_stepper import RowStepper

    rows = built(
        lambda index: RowSession(makers.make(recipe_of(index), part.first_env_index + index)),
        part.indices,
        progress,
    )
    return RowStepper(rows, first_env=part.indices.start, control=control, progress=progress, rules=rules)


def seated(
    sessions: Sequence[Any], *, control: ControlPage, progress: Progress, rules: StepRules
) -> AnyStepper:
    """What steps sessions that exist already: all of a group, in one process."""
    if all(isinstance(getattr(session, "description", None), EnvDescription) for session in sessions):
        return Stepper(sessions, first_env=0, control=control, progress=progress, rules=rules)
    from rollout_worker.envs.row_stepper import RowStepper

    return RowStepper(sessions, first_env=0, control=control, progress=progress, rules=rules)
