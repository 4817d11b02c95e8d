"""Environments that are made before it is known how they will be stepped: they say what they are, and wait to hear it.

So a batch can be planned by what its own environments are, without one more that is made to look at.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from rollout_worker.envs.arena import ControlPage
from rollout_worker.envs.describe import EnvDescription
from rollout_worker.envs.native import Makers, close_made, is_gymnasium, session_of
from rollout_worker.envs.progress import Progress
from rollout_worker.envs.stepper_base import SessionStepper, StepRules, built
from rollout_worker.envs.stepping import AnyStepper, Slice, SteppedBy, seated, session_over, stepper_of

if TYPE_CHECKING:
    from rollout_worker.envs.metadata import EnvMetaData

Looked: TypeAlias = "EnvDescription | EnvMetaData"
"""What an environment is that was looked at: a gymnasium environment is known by its description."""


class Unseated:
    """One environment as its factory made it."""

    def __init__(self, made: Any) -> None:
        self.env = made

    def look(self) -> Looked:
        """What it is. Loads torch for what is no gymnasium environment."""
        if is_gymnasium(self.env):
            return session_of(self.env).description
        from rollout_worker.envs.metadata import meta_of_made

        return meta_of_made(self.env)

    def seed(self, seed: int) -> None:
        """Never asked for: a batch is seeded when it runs."""
        raise TypeError(f"an environment that waits takes no seed ({seed})")

    def close(self) -> None:
        """Close the environment."""
        close_made(self.env)


class Waiting(SessionStepper[Unseated]):
    """The environments of one process, which wait to hear how they are stepped."""

    def look(self) -> list[Looked]:
        """What they are."""
        return [session.look() for session in self.sessions]

    def seat(self, stepped_by: SteppedBy, part: Slice, *, control: ControlPage) -> AnyStepper:
        """What steps them from now on. Raises StepFailed naming each that cannot be stepped like that."""
        sessions = built(
            lambda index: session_over(self.sessions[index - self.first_env].env, stepped_by),
            part.indices,
            self._progress,
        )
        return seated(sessions, stepped_by, part, control=control, progress=self._progress, rules=self.rules)


def begun(
    stepped_by: SteppedBy, part: Slice, *, control: ControlPage, progress: Progress, rules: StepRules
) -> AnyStepper | Waiting:
    """Make the environments of a slice, and what steps them, if that is known. Raises StepFailed naming each that could
    not be made."""
    if stepped_by is not SteppedBy.UNDECIDED:
        return stepper_of(stepped_by, part, control=control, progress=progress, rules=rules)
    makers = Makers()
    sessions = built(
        lambda index: Unseated(
            makers.make(part.recipes[index - part.indices.start], part.first_env_index + index)
        ),
        part.indices,
        progress,
    )
    return Waiting(sessions, first_env=part.indices.start, control=control, progress=progress, rules=rules)
