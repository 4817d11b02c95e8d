"""What is done about children that died or fell silent: the whole crew ends, or their processes are replaced."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from rollout_worker.envs.arena import MemoryPlan
from rollout_worker.envs.commands import Outcome
from rollout_worker.envs.crew.children import Child
from rollout_worker.envs.crew.links import Links
from rollout_worker.envs.crew.orders import Note
from rollout_worker.envs.crew.rescue import ObjectsOf, Rescue
from rollout_worker.envs.faults import EnvFault
from rollout_worker.envs.stepping import SteppedBy

Lost = tuple[Child, EnvFault]
"""A child whose process is lost, and how."""


class CrewFailed(Exception):
    """The crew has to end. `faults` are those that are known so far, `found` children that they speak of although another
    process fills their place by now. Never leaves the crew."""

    def __init__(self, faults: Sequence[EnvFault] = (), *, found: Sequence[Child] = ()) -> None:
        super().__init__("; ".join(map(str, faults)))
        self.faults, self.found = tuple(faults), tuple(found)


class Losses(Protocol):
    """Asked by whoever waits for children."""

    @property
    def note(self) -> Note | None:
        """Is told what each child is given to do (None: that does not matter)."""

    def step_by(self, stepped_by: SteppedBy) -> None:
        """Children step their environments like that now."""

    def keep_memory(self, plan: MemoryPlan, fd: int) -> None:
        """Children map this memory now."""

    def fetch_objects_from(self, objects_of: ObjectsOf) -> None:
        """Leaves that are no tensors are known here."""

    def go_on(self, awaited: Sequence[Child]) -> None:
        """Before every sleep: do what is to be done for children that are waited for."""

    def take_ends(self, pidfds: Iterable[int], awaited: Sequence[Child]) -> None:
        """Processes have ended. Raises CrewFailed where the crew cannot go on."""

    def take(self, lost: Sequence[Lost]) -> None:
        """These children are lost. Raises CrewFailed where the crew cannot go on."""

    def close(self) -> None:
        """Give back what is held."""


class EndCrew:
    """Whoever is lost, the crew ends."""

    note = None

    def step_by(self, stepped_by: SteppedBy) -> None:
        """No other process will have to."""

    def keep_memory(self, plan: MemoryPlan, fd: int) -> None:
        """No other process will want it."""

    def fetch_objects_from(self, objects_of: ObjectsOf) -> None:
        """No other process will want them."""

    def go_on(self, awaited: Sequence[Child]) -> None:
        """There is nobody to go on with."""

    def take_ends(self, pidfds: Iterable[int], awaited: Sequence[Child]) -> None:
        """Who they were is found out at the end."""
        raise CrewFailed

    def take(self, lost: Sequence[Lost]) -> None:
        """Their faults end the crew."""
        raise CrewFailed([fault for _, fault in lost])

    def close(self) -> None:
        """Nothing is held."""


class ReplaceProcess:
    """Whoever is lost gets a new process, which catches up while others are waited for."""

    def __init__(self, links: Links, rescue: Rescue, *, has_begun: Callable[[Child], None]) -> None:
        self.note = rescue.note
        self._links, self._rescue, self._has_begun = links, rescue, has_begun

    def step_by(self, stepped_by: SteppedBy) -> None:
        """New processes step their environments like that."""
        self._rescue.step_by(stepped_by)

    def keep_memory(self, plan: MemoryPlan, fd: int) -> None:
        """New processes map this memory."""
        self._rescue.keep_memory(plan, fd)

    def fetch_objects_from(self, objects_of: ObjectsOf) -> None:
        """New processes are handed these."""
        self._rescue.objects_of = objects_of

    def go_on(self, awaited: Sequence[Child]) -> None:
        """Replace those that have ended, and give the new ones what they have to do next."""
        self._replace_those_gone(awaited)
        for child in awaited:
            self._catch_up(child)

    def take_ends(self, pidfds: Iterable[int], awaited: Sequence[Child]) -> None:
        """Those that owe something are replaced now, the others when they are needed."""
        for fd in pidfds:
            self._links.wakeups.look_away_from(fd)  # it would be told again and again
        self._replace_those_gone(awaited)

    def take(self, lost: Sequence[Lost]) -> None:
        """Replace each."""
        for child, fault in lost:
            self._replace(child, fault)

    def close(self) -> None:
        """Give back the memory that was kept for new processes."""
        self._rescue.close()

    def _replace_those_gone(self, awaited: Sequence[Child]) -> None:
        links = self._links
        for child in awaited:
            if not links.replies.is_done(child) and child.is_dead():
                self._replace(child, links.findings.death_of(child, links.orders.call))

    def _replace(self, child: Child, fault: EnvFault) -> None:
        """Start another process in a child's place. Raises the error of the first loss where that does not help."""
        refused = self._rescue.refusal(child, fault)
        if refused is not None:
            raise CrewFailed([refused], found=[child])
        self._links.wakeups.look_away_from(child.pidfd)
        self._rescue.begin(child, self._links.children, fault)
        self._has_begun(child)
        self._links.wakeups.look_at(child)

    def _catch_up(self, child: Child) -> None:
        """Give a new process what comes next, as soon as it has done what came before."""
        replies = self._links.replies
        while child.ahead and replies.is_answered(child):
            if replies.has_failed(child):
                raise CrewFailed
            if replies.outcome_of(child) == Outcome.ANSWERED:
                try:
                    self._links.findings.receive(child)
                except (EOFError, OSError):
                    return  # it has died again
            self._links.orders.give_next(child)
