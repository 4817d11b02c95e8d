"""What children have replied, as their words on the control page say it."""

from __future__ import annotations

from collections.abc import Sequence

from rollout_worker.envs.arena import ControlPage
from rollout_worker.envs.commands import Outcome
from rollout_worker.envs.crew.children import Child


class Replies:
    """Reads the reply words of one crew. `crew` is the list of all its children."""

    def __init__(self, control: ControlPage, crew: Sequence[Child]) -> None:
        self._crew = crew
        self._numbers, self._outcomes = control.reply[:, 0], control.reply[:, 1]

    def is_answered(self, child: Child) -> bool:
        """Whether its process has done the command that it was given last."""
        return int(self._numbers[child.position]) == child.number

    def is_done(self, child: Child) -> bool:
        """The same, and there is nothing more that the process has to catch up with."""
        return self.is_answered(child) and not child.ahead

    def has_failed(self, child: Child) -> bool:
        """Whether it has answered that it failed."""
        return self.is_answered(child) and self.outcome_of(child) == Outcome.FAILED

    def outcome_of(self, child: Child) -> int:
        """The outcome of what it has answered last."""
        return int(self._outcomes[child.position])

    def outcomes_of(self, children: Sequence[Child]) -> list[int]:
        """The same of several."""
        outcomes: list[int] = self._outcomes.tolist()
        return outcomes if children is self._crew else [outcomes[child.position] for child in children]

    def num_done(self, children: Sequence[Child], number: int) -> int:
        """How many of these children are done; `number` is that of the command, where the whole crew was given one."""
        if children is self._crew:
            numbers: list[int] = self._numbers.tolist()
            return numbers.count(number)
        return sum(map(self.is_done, children))
