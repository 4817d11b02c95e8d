"""The crew itself: what callers ask of all children, or of some, and its start and end."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from multiprocessing.connection import Connection
from typing import Any

from rollout_worker.envs.arena import ControlPage, MemoryPlan
from rollout_worker.envs.calls import PREFIXES
from rollout_worker.envs.child_messages import Answer, Hello
from rollout_worker.envs.commands import Call, Command, Outcome, Remap, Request, RowOp, RowWork, Seat
from rollout_worker.envs.crew.births import Births, Share
from rollout_worker.envs.crew.children import Child, Say
from rollout_worker.envs.crew.descriptors import close_all
from rollout_worker.envs.crew.ending import Ending
from rollout_worker.envs.crew.links import Links
from rollout_worker.envs.crew.losses import CrewFailed, EndCrew, Losses, ReplaceProcess
from rollout_worker.envs.crew.rescue import ObjectsOf, Rescue
from rollout_worker.envs.crew.settings import CrewSettings
from rollout_worker.envs.crew.waiting import Waiter
from rollout_worker.envs.faults import EnvFault, error_of
from rollout_worker.envs.memory import memory_file
from rollout_worker.envs.remapping import send_memory
from rollout_worker.envs.stepping import SteppedBy
from rollout_worker.envs.transfer import send, send_plain

ROW_CALLS = {RowOp.RESET: "reset", RowOp.STEP: "step", RowOp.STEP_AND_RESET: "step"}


class Crew:
    """Running children. Made by `Crew.start`; ends with `close` or `kill`, after which nothing of it is left.

    Whatever waits raises the error of all that failed, after everything has been taken down.
    """

    def __init__(self, settings: CrewSettings, num_envs: int) -> None:
        self.settings = settings
        self.children: list[Child] = []
        self.waited_s = 0.0
        """Seconds that the caller has spent waiting for children."""
        self._control_fd = memory_file(
            ControlPage(num_envs, settings.num_processes).nbytes, purpose="the control page"
        )
        try:
            self.control = ControlPage(num_envs, settings.num_processes, self._control_fd)
            self._links = Links.to(self.children, self.control, settings)
        except BaseException:
            close_all(self._control_fd)
            raise
        self._orders, self._replies = self._links.orders, self._links.replies
        self._waiter = Waiter(self._links)
        self._ending = Ending(self._links, self._waiter)
        self.order = self._orders.give

    @staticmethod
    def start(share: Share, settings: CrewSettings) -> tuple[Crew, list[Hello]]:
        """Start the children and wait until each has made its environments.

        Raises EnvError, ChildLost, StepTimeout or EntrypointError; then nothing is left running.
        """
        crew = Crew(settings, len(share.recipes))
        try:
            wakeups = crew._links.wakeups
            births = Births(share, settings, control_fd=crew._control_fd, done_fd=wakeups.event)
            for child in births.planned():
                crew.children.append(child)
                births.give(child, crew.children)
                wakeups.look_at(child)
            hellos = crew.wait(settings.start_timeout_s)
            if share.rules.restarts:
                rescue = Rescue(births, crew.control, settings, max_restarts=share.rules.max_restarts)
                crew._deal_with(ReplaceProcess(crew._links, rescue, has_begun=crew._waiter.begin))
            return crew, hellos
        except BaseException:
            crew.kill()
            raise

    def fetch_objects_from(self, objects_of: ObjectsOf) -> None:
        """Say where leaves that are no tensors are known, for processes that are replaced."""
        self._waiter.losses.fetch_objects_from(objects_of)

    # -- all children ----------------------------------------------------------------------------------------------

    def wait(self, limit_s: float | None = None) -> list[Any]:
        """Wait until every child has done the command that it was given; gives what each of them sent beside the block
        (nothing sent by any: empty).

        A child that does not get on for `limit_s` (by default the step's limit) counts as stuck.
        """
        awaited, begin = self._orders.awaited, time.perf_counter()
        try:
            self._waiter.wait(awaited, limit_s=self.settings.step_timeout_s if limit_s is None else limit_s)
            self.waited_s += time.perf_counter() - begin
            outcomes = self._replies.outcomes_of(awaited)
            if Outcome.FAILED in outcomes:
                raise CrewFailed
            if Outcome.ANSWERED not in outcomes:
                return []
            return [self._answer_of(child) for child in awaited]
        except CrewFailed as failure:
            faults = self._take_down(failure)
        raise error_of(faults)

    def seat(self, stepped_by: SteppedBy) -> list[Any]:
        """Have environments that were made to be looked at stepped like that; gives what each child says of its own."""
        self._waiter.losses.step_by(stepped_by)
        self.order(Seat(as_rows=stepped_by is SteppedBy.ROWS), call="start")
        return self.wait(self.settings.start_timeout_s)

    def remap(self, plan: MemoryPlan, fd: int) -> None:
        """Have every child map other memory."""
        self._waiter.losses.keep_memory(plan, fd)

        def say(conn: Connection) -> None:
            send_memory(conn, plan, fd)

        self.order(Remap(), call="start", saying={child.position: say for child in self.children})
        self.wait()

    # -- some children ---------------------------------------------------------------------------------------------

    def call(self, request: Request) -> list[Any]:
        """Have the children do a request with those of its environments that it names."""
        chosen = self._those_with(request.indices)
        if not chosen:
            return []

        def say(conn: Connection) -> None:
            send(conn, request)

        saying = {child.position: say for child in chosen}
        self.order(
            Call(),
            call=request.name.lstrip(PREFIXES),
            to=self._all_or(chosen),
            saying=saying,
            request=request,
        )
        return self.wait()

    def share_out(self, work: RowWork) -> list[Any]:
        """Have the children do rows, each its own; only those that have some are woken."""
        parts = self.parts_of(work)
        if not parts:
            return []
        saying = {child.position: _sayer(part) for child, part in parts}
        self.order(
            Call(), call=ROW_CALLS[work.op], to=self._all_or([child for child, _ in parts]), saying=saying
        )
        return self.wait()

    def parts_of(self, work: RowWork) -> list[tuple[Child, RowWork]]:
        """The rows of each child, for those that have some."""
        chosen = self._those_with([index for index, _ in work.rows])
        return [
            (child, RowWork(work.op, tuple(row for row in work.rows if row[0] in child.indices)))
            for child in chosen
        ]

    def begin(self, child: Child, command: Command, work: RowWork | None, *, call: str) -> None:
        """Give one child something to do, whatever the others are doing. `take` gets its answer."""
        self._waiter.begin(child)
        saying = None if work is None else {child.position: _sayer(work)}
        self.order(command, call=call, to=[child], saying=saying)

    def first_ready(self, busy: Sequence[Child], timeout_s: float | None) -> list[Child]:
        """Wait until at least one of these children has replied; gives those that have (none: the time is over)."""
        begin = time.perf_counter()
        try:
            self._waiter.look_after(busy)
            self._waiter.wait(busy, limit_s=self.settings.step_timeout_s, count=1, timeout_s=timeout_s)
            self.waited_s += time.perf_counter() - begin
            return [child for child in busy if self._replies.is_done(child)]
        except CrewFailed as failure:
            faults = self._take_down(failure)
        raise error_of(faults)

    def take(self, child: Child) -> Any:
        """What a child that has replied sent beside the block."""
        try:
            if self._replies.has_failed(child):
                raise CrewFailed
            return self._answer_of(child)
        except CrewFailed as failure:
            faults = self._take_down(failure)
        raise error_of(faults)

    def _those_with(self, indices: Iterable[int]) -> list[Child]:
        wanted = set(indices)
        return [child for child in self.children if not wanted.isdisjoint(child.indices)]

    def _all_or(self, chosen: list[Child]) -> list[Child] | None:
        return None if len(chosen) == len(self.children) else chosen

    def _answer_of(self, child: Child) -> Any:
        """What a child that has replied sent beside its words; None where that is nothing."""
        while self._replies.outcome_of(child) == Outcome.ANSWERED:
            try:
                message = self._links.findings.receive(child)
            except (EOFError, OSError):
                self._answer_is_lost(child)
                continue
            assert isinstance(message, Answer)
            instead, child.instead = child.instead, None
            return message.payload if instead is None else instead
        return None

    def _answer_is_lost(self, child: Child) -> None:
        """A child died, or stopped, with a message half sent: have its work done by another."""
        self._waiter.losses.take([(child, self._links.findings.death_of(child, self._orders.call))])
        self._waiter.wait([child], limit_s=self.settings.step_timeout_s)
        if self._replies.has_failed(child):
            raise CrewFailed

    # -- the end ---------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the environments in order, end the children, give everything back. Bounded by
        `close_timeout_s`.

        Raises EnvError where an environment failed to close; everything is given back all the same.
        """
        faults: list[EnvFault] = []
        try:
            if self.children:
                self._deal_with(EndCrew())
                faults = self._ending.in_order(self.settings.close_timeout_s)
        finally:
            self.kill()
        if faults:
            raise error_of(faults)

    def kill(self) -> None:
        """End every child now and give everything back. Safe at any point of a start, and twice."""
        children = self.children.copy()
        self.children.clear()
        for child in children:
            child.kill()
        for child in children:
            child.end(self.settings.close_timeout_s)
        self._deal_with(EndCrew())
        self._links.wakeups.close()
        close_all(self._control_fd)
        self._control_fd = -1

    def _take_down(self, failure: CrewFailed) -> list[EnvFault]:
        """Find all that failed in this call, and end everything. The error of it is raised without a context: that would
        keep frames, and with them the memory, as long as somebody keeps the error."""
        try:
            self._deal_with(EndCrew())
            return self._ending.after(failure)
        finally:
            self.kill()

    def _deal_with(self, losses: Losses) -> None:
        """Do this about children that are lost from now on."""
        self._waiter.losses.close()
        self._waiter.losses = losses
        self._orders.note = losses.note


def _sayer(work: RowWork) -> Say:
    return lambda conn: send_plain(conn, work)
