"""Makes what steps a slice of the environments, in whatever process that is: over blocks, or over tensordicts.

Called by the serial host and by the child; keeps torch out of processes that need none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeAlias

from rollout_worker.envs.arena import ControlPage
from rollout_worker.envs.factory import Recipe
from rollout_worker.envs.native import Makers, session_of
from rollout_worker.envs.progress import Progress
from rollout_worker.envs.reports import Reported
from rollout_worker.envs.restarts import Restarts
from rollout_worker.envs.stepper import Stepper
from rollout_worker.envs.stepper_base import StepRules, built

if TYPE_CHECKING:
    from rollout_worker.envs.row_stepper import RowStepper

AnyStepper: TypeAlias = "Stepper | RowStepper"


class SteppedBy(StrEnum):
    """What steps the environments of a group."""

    BLOCK = "block"
    ROWS = "rows"
    UNDECIDED = "undecided"
    """By nothing yet: the environments are made to be looked at; see `looking`."""


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
    sessions = built(lambda index: opened(stepped_by, part, index, makers), part.indices, progress)
    return seated(sessions, stepped_by, part, control=control, progress=progress, rules=rules)


def opened(stepped_by: SteppedBy, part: Slice, index: int, makers: Makers) -> Any:
    """Make environment `index` of the group, as a session of the kind that is stepped."""
    recipe, counted = part.recipes[index - part.indices.start], part.first_env_index + index
    return session_over(makers.make(recipe, counted), stepped_by)


def session_over(made: Any, stepped_by: SteppedBy) -> Any:
    """What a factory made, as a session of the kind that is stepped."""
    if stepped_by is SteppedBy.BLOCK:
        return session_of(made)
    from rollout_worker.envs.row_sessions import RowSession

    return RowSession(made)


def reports_of(stepper: AnyStepper) -> list[Reported]:
    """What the environments of a stepper say they are. Equal ones are one object."""
    seen: dict[Reported, Reported] = {}
    if isinstance(stepper, Stepper):
        return [seen.setdefault(each.description, each.description) for each in stepper.sessions]
    return [seen.setdefault(report, report) for report in stepper.reports()]


def seated(
    sessions: Sequence[Any],
    stepped_by: SteppedBy,
    part: Slice,
    *,
    control: ControlPage,
    progress: Progress,
    rules: StepRules,
) -> AnyStepper:
    """What steps sessions that exist already."""
    first = part.indices.start
    made: AnyStepper
    if stepped_by is SteppedBy.BLOCK:
        made = Stepper(sessions, first_env=first, control=control, progress=progress, rules=rules)
    else:
        from rollout_worker.envs.row_stepper import RowStepper

        made = RowStepper(sessions, first_env=first, control=control, progress=progress, rules=rules)
    if rules.restarts:
        made.restarts = Restarts(
            lambda position: opened(stepped_by, part, first + position, Makers()),
            control,
            part.indices,
            max_restarts=rules.max_restarts,
        )
        if control.lost[first]:  # this process takes the place of one that is gone
            made.seed_anew()
    return made
