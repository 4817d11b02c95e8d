"""The crew: all child processes of one vector env, and the one place that waits for them.

Gives out commands (one wake-up per process), waits for all replies, deaths and silences at once, and gives
everything back: processes, descriptors, memory. Knows what a fault is; knows nothing of specs, blocks or
tensors.

A child answers a command in this order: its reply word (outcome, then the command's number), if it is the
last one a count on the shared event descriptor, and only then what it has to send on its socket. So nobody
waits for a message that was not announced.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, NoReturn

from rollout_worker.envs.arena import ControlPage, MemoryPlan
from rollout_worker.envs.calls import PREFIXES
from rollout_worker.envs.child import FIRST, Answer, Failed, Hello, send_arena
from rollout_worker.envs.commands import (
    NO_WORDS,
    Call,
    Close,
    Command,
    Outcome,
    Remap,
    Request,
    RowOp,
    RowWork,
    Seat,
    Words,
    encode,
)
from rollout_worker.envs.crew_births import Births, Share
from rollout_worker.envs.crew_findings import Findings
from rollout_worker.envs.crew_parts import WATCH_S, Child, CrewSettings, Task, Watch, close_all, readable
from rollout_worker.envs.crew_rescue import ObjectsOf, Rescue
from rollout_worker.envs.faults import EnvFault, error_of
from rollout_worker.envs.lookout import Lookout
from rollout_worker.envs.memory import memory_file
from rollout_worker.envs.stepping import SteppedBy
from rollout_worker.envs.transfer import send, send_plain

GATHER_LOOK_S = 0.02
"""Children that are waited for one by one do not all signal: look at their words this often."""

GATHER_S = 0.5
"""After a failure, the others get this long to report theirs of the same call, and again to close their environments."""

ROW_CALLS = {RowOp.RESET: "reset", RowOp.STEP: "step", RowOp.STEP_AND_RESET: "step"}

Say = Callable[[Connection], None]


class Crew:
    """Running children. Made by `Crew.start`; ends with `close` or `kill`, after which nothing of it is left."""

    def __init__(self, settings: CrewSettings, share: Share) -> None:
        num_envs = len(share.recipes)
        self.settings = settings
        self.control_fd = memory_file(
            ControlPage(num_envs, settings.num_processes).nbytes, purpose="the control page"
        )
        self.children: list[Child] = []
        self._number = FIRST
        self._call = "start"
        self.waited_s = 0.0
        """Seconds that the caller has spent waiting for children."""
        self._last_command: Command | None = None
        self._last_words: Words = NO_WORDS
        self._lookout = Lookout(settings.look_s)
        self._next_look = 0.0
        self._awaited: Sequence[Child] = self.children
        self._rescue: Rescue | None = None
        self._done = -1
        self._epoll: select.epoll | None = None
        try:
            self.control = ControlPage(num_envs, settings.num_processes, self.control_fd)
            self._replies = self.control.reply[:, 0]
            self._commands = [memoryview(row) for row in self.control.command]
            self._findings = Findings(self.control, settings)
            self._watch = Watch(self.control, settings.step_timeout_s, settings.start_timeout_s)
            self._done = os.eventfd(0, os.EFD_CLOEXEC)
            self._epoll = select.epoll()
            self._epoll.register(self._done, select.EPOLLIN)
        except BaseException:
            self.kill()
            raise

    @staticmethod
    def start(share: Share, settings: CrewSettings) -> tuple[Crew, list[Hello]]:
        """Start the children and wait until each has made its environments.

        Raises EnvError, ChildLost, StepTimeout or EntrypointError; then nothing is left running.
        """
        crew = Crew(settings, share)
        try:
            births = Births(share, settings, control_fd=crew.control_fd, done_fd=crew._done)
            for child in births.planned():
                crew.children.append(child)
                births.give(child, crew.children)
                crew._look_at(child)
            hellos = crew.wait(settings.start_timeout_s)
            if share.rules.restarts:
                crew._rescue = Rescue(
                    births,
                    crew.control,
                    max_restarts=share.rules.max_restarts,
                    close_timeout_s=settings.close_timeout_s,
                )
            return crew, hellos
        except BaseException:
            crew.kill()
            raise

    def _look_at(self, child: Child) -> None:
        assert self._epoll is not None
        self._epoll.register(child.pidfd, select.EPOLLIN)

    def _look_away_from(self, pidfd: int) -> None:
        assert self._epoll is not None
        with suppress(FileNotFoundError):
            self._epoll.unregister(pidfd)

    def fetch_objects_from(self, objects_of: ObjectsOf) -> None:
        """Say where leaves that are no tensors are known, for processes that are replaced."""
        if self._rescue is not None:
            self._rescue.objects_of = objects_of

    # -- orders ----------------------------------------------------------------------------------------------------

    def order(
        self,
        command: Command,
        *,
        call: str,
        to: Sequence[Child] | None = None,
        saying: Mapping[int, Say] | None = None,
        request: Request | None = None,
    ) -> None:
        """Give a command to every child, or to some. `call` is what errors name it, `saying` sends each (by position) what
        does not fit words."""
        self._number += 1
        self._call = call
        self._awaited = self.children if to is None else to
        words, is_alone = self._words_of(command), to is not None
        for child in self._awaited:
            if self._rescue is not None:
                say = None if saying is None else saying[child.position]
                self._rescue.note(child, Task(command, self._number, call, is_alone, say, request))
            self._tell(child, self._number, words, is_alone=is_alone)
        if saying is not None:
            for child in self._awaited:
                with suppress(OSError):  # a dead child is found while waiting
                    saying[child.position](child.conn)

    def _words_of(self, command: Command) -> Words:
        if command is not self._last_command:  # the same object is ordered again and again
            self._last_command, self._last_words = command, encode(command)
        return self._last_words

    def _tell(self, child: Child, number: int, words: Words, *, is_alone: bool) -> None:
        child.number = number
        row = self._commands[child.position]
        if words != child.words:  # a step is mostly the same as the one before
            row[1], row[2], row[3], row[4], row[5] = child.words = words
        row[6] = is_alone
        row[0] = number
        os.eventfd_write(child.wake, 1)

    def wait(self, limit_s: float | None = None) -> list[Any]:
        """Wait until every child has done the command that it was given; gives what each of them sent beside the block
        (nothing sent by any: empty).

        A child that does not get on for `limit_s` (by default the step's limit) counts as stuck. Raises the
        error of whatever failed, after everything has been taken down.
        """
        awaited, begin = self._awaited, time.perf_counter()
        self._await_replies(self.settings.step_timeout_s if limit_s is None else limit_s)
        self.waited_s += time.perf_counter() - begin
        outcomes = [int(self.control.reply[child.position, 1]) for child in awaited]
        if Outcome.FAILED in outcomes:
            self._fail([])
        if Outcome.ANSWERED not in outcomes:
            return []
        return [self._answer_of(child) for child in awaited]

    def seat(self, stepped_by: SteppedBy) -> list[Any]:
        """Have environments that were made to be looked at stepped like that; gives what each child says of its own."""
        if self._rescue is not None:
            self._rescue.step_by(stepped_by)
        self.order(Seat(as_rows=stepped_by is SteppedBy.ROWS), call="start")
        return self.wait(self.settings.start_timeout_s)

    def remap(self, plan: MemoryPlan, fd: int) -> None:
        """Have every child map other memory."""
        if self._rescue is not None:
            self._rescue.keep_memory(plan, fd)

        def say(conn: Connection) -> None:
            send_arena(conn, plan, fd)

        self.order(Remap(), call="start", saying={child.position: say for child in self.children})
        self.wait()

    def call(self, request: Request) -> list[Any]:
        """Have the children do a request with those of its environments that it names."""
        chosen = self._those_with(request.indices)
        if not chosen:
            return []

        def say(conn: Connection) -> None:
            send(conn, request)

        self.order(
            Call(),
            call=request.name.lstrip(PREFIXES),
            to=None if len(chosen) == len(self.children) else chosen,
            saying={child.position: say for child in chosen},
            request=request,
        )
        return self.wait()

    def share_out(self, work: RowWork) -> list[Any]:
        """Have the children do rows, each its own; only those that have some are woken."""
        parts = self.parts_of(work)
        if not parts:
            return []
        chosen = [child for child, _ in parts]
        self.order(
            Call(),
            call=ROW_CALLS[work.op],
            to=None if len(chosen) == len(self.children) else chosen,
            saying={child.position: _sayer(part) for child, part in parts},
        )
        return self.wait()

    def begin(self, child: Child, command: Command, work: RowWork | None, *, call: str) -> None:
        """Give one child something to do, whatever the others are doing. `take` gets its answer."""
        self._watch.begin(child)
        saying = None if work is None else {child.position: _sayer(work)}
        self.order(command, call=call, to=[child], saying=saying)

    def first_ready(self, busy: Sequence[Child], timeout_s: float | None) -> list[Child]:
        """Wait until at least one of these children has replied; gives those that have (none: the time is over)."""
        self._awaited, begin = busy, time.perf_counter()
        self._look_after(busy)
        self._await_replies(self.settings.step_timeout_s, count=1, timeout_s=timeout_s)
        self.waited_s += time.perf_counter() - begin
        return [child for child in busy if self._has_replied(child)]

    def _look_after(self, busy: Sequence[Child]) -> None:
        """Find children that died or are stuck while others, which do well, keep the caller from waiting."""
        assert self._epoll is not None
        gone = {fd for fd, _ in self._epoll.poll(0)} - {self._done}
        if gone:
            self._take_deaths(gone)
        self._go_on()
        now = time.monotonic()
        if now >= self._next_look:
            self._next_look = now + WATCH_S
            self._take_silence(self._watch, busy)

    def take(self, child: Child) -> Any:
        """What a child that has replied sent beside the block. Raises the error of a failure."""
        if int(self.control.reply[child.position, 1]) == Outcome.FAILED:
            self._fail([])
        return self._answer_of(child)

    def parts_of(self, work: RowWork) -> list[tuple[Child, RowWork]]:
        """The rows of each child, for those that have some."""
        chosen = self._those_with([index for index, _ in work.rows])
        return [
            (child, RowWork(work.op, tuple(row for row in work.rows if row[0] in child.indices)))
            for child in chosen
        ]

    def _those_with(self, indices: Iterable[int]) -> list[Child]:
        wanted = set(indices)
        return [child for child in self.children if not wanted.isdisjoint(child.indices)]

    # -- the end ---------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the environments in order, end the children, give everything back. Bounded by
        `close_timeout_s`.

        Raises EnvError where an environment failed to close; everything is given back all the same.
        """
        faults: list[EnvFault] = []
        try:
            if self.children:
                self._end_rescue()
                for child in self.children:
                    if child.ahead:  # its environments are new, and hold nothing
                        child.kill()
                self.order(Close(), call="close")
                silent = self._gather(self.settings.close_timeout_s)
                faults = self._reported()
                limit_s = self.settings.close_timeout_s
                faults += [self._findings.silence_of(child, self._call, limit_s) for child in silent]
        finally:
            self.kill()
        if faults:
            raise error_of(faults)

    def kill(self) -> None:
        """End every child now and give everything back. Safe at any point of a start, and twice."""
        children, self.children = self.children, []
        for child in children:
            child.kill()
        for child in children:
            child.end(self.settings.close_timeout_s)
        self._end_rescue()
        if self._epoll is not None:
            self._epoll.close()
            self._epoll = None
        close_all(self._done, self.control_fd)
        self._done = self.control_fd = -1

    # -- waiting ---------------------------------------------------------------------------------------------------

    def _await_replies(
        self, limit_s: float, *, count: int | None = None, timeout_s: float | None = None
    ) -> None:
        """Wait until `count` of the awaited children (None: all) have replied, at most for `timeout_s`.

        A failure, a death, or a silence of `limit_s` ends in the error of it, or in a new process.
        """
        wanted = len(self._awaited) if count is None else count
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        assert self._epoll is not None
        if self._lookout.sees(lambda: self._num_replied() >= wanted):
            return
        poll, done = self._epoll.poll, self._done
        watch: Watch | None = None
        while self._num_replied() < wanted:
            if self._rescue is not None:
                self._replace_those_gone()
                self._go_on()
            left = WATCH_S if deadline is None else min(WATCH_S, deadline - time.monotonic())
            if left < 0:
                return
            events = {fd for fd, _ in poll(left)}
            if done in events:
                os.eventfd_read(done)
            if self._num_replied() >= wanted:
                return
            if events - {done}:
                self._take_deaths(events - {done})
            elif events and self._any_failed():
                self._fail([])
            if not events:
                watch = watch or Watch(self.control, limit_s, self.settings.start_timeout_s)
                self._take_silence(watch, self._awaited)

    def _take_deaths(self, pidfds: set[int]) -> None:
        """Processes have ended. Where they are not replaced, that is the end; else those that owe something are replaced,
        the others when they are needed."""
        if self._rescue is None:
            self._fail([])
        for fd in pidfds:
            self._look_away_from(fd)  # it would be told again and again
        self._replace_those_gone()

    def _replace_those_gone(self) -> None:
        for child in self._awaited:
            if not self._has_replied(child) and child.is_dead():
                self._replace(child, self._findings.death_of(child, self._call))

    def _take_silence(self, watch: Watch, children: Sequence[Child]) -> None:
        silent = watch.look(child for child in children if not self._has_replied(child))
        faults = [self._findings.silence_of(child, self._call, watch.limit_of(child)) for child in silent]
        if faults and self._rescue is None:
            self._fail(faults)
        for child, fault in zip(silent, faults, strict=True):
            self._replace(child, fault)
            watch.begin(child)

    def _replace(self, child: Child, fault: EnvFault) -> None:
        """Start another process in a child's place. Raises the error of the first loss where that does not help."""
        assert self._rescue is not None
        refused = self._rescue.refusal(child, fault)
        if refused is not None:
            self._fail([refused], found=[child])
        self._look_away_from(child.pidfd)  # closing it is not enough: forked processes hold it too
        self._rescue.begin(child, self.children, fault)
        self._watch.begin(child)
        self._look_at(child)

    def _go_on(self) -> None:
        """Give processes that are catching up what they have to do next."""
        for child in self._awaited:
            while child.ahead and self._is_answered(child):
                if self._said_it_failed(child):
                    self._fail([])
                if int(self.control.reply[child.position, 1]) == Outcome.ANSWERED:
                    try:
                        self._findings.receive(child)
                    except (EOFError, OSError):
                        return  # it has died again
                task = child.ahead.popleft()
                self._tell(child, task.number, encode(task.command), is_alone=True)
                if task.say is not None:
                    with suppress(OSError):
                        task.say(child.conn)

    def _num_replied(self) -> int:
        """How many of the awaited children have done what they were given last."""
        if self._awaited is self.children:
            numbers: list[int] = self._replies.tolist()
            return numbers.count(self._number)
        return sum(map(self._has_replied, self._awaited))

    def _any_failed(self) -> bool:
        return any(map(self._said_it_failed, self.children))

    def _said_it_failed(self, child: Child) -> bool:
        return self._is_answered(child) and int(self.control.reply[child.position, 1]) == Outcome.FAILED

    def _is_answered(self, child: Child) -> bool:
        return int(self.control.reply[child.position, 0]) == child.number

    def _has_replied(self, child: Child) -> bool:
        return self._is_answered(child) and not child.ahead

    def _gather(self, limit_s: float) -> list[Child]:
        """Give children the time to reply; gives those that neither did nor died."""
        deadline = time.monotonic() + limit_s
        pending = self.children
        while True:
            pending = [child for child in pending if not self._is_answered(child) and not child.is_dead()]
            left = deadline - time.monotonic()
            if not pending or left <= 0:
                return pending
            if self._done in readable(
                [self._done, *(child.pidfd for child in pending)], min(left, GATHER_LOOK_S)
            ):
                os.eventfd_read(self._done)

    # -- failures and answers --------------------------------------------------------------------------------------

    def _fail(self, faults: list[EnvFault], *, found: Sequence[Child] = ()) -> NoReturn:
        """Find all that failed in this call, take everything down, raise the error of it. `found` are children that
        `faults` speak of already."""
        try:
            pids = {fault.pid for fault in faults}
            stuck = [child for child in self.children if child in found or child.pid in pids]
            for child in stuck:
                child.kill()
            self._gather(GATHER_S)
            lost = [
                child for child in self.children if child not in stuck and not self._said_it_failed(child)
            ]
            faults = [
                *faults,
                *self._reported(),
                *(self._findings.death_of(child, self._call) for child in lost if child.is_dead()),
            ]
            self._end_rescue()
            self.order(Close(), call="close")
            self._gather(GATHER_S)
        finally:
            self.kill()
        raise error_of(faults)

    def _end_rescue(self) -> None:
        """From now on nobody is replaced."""
        rescue, self._rescue = self._rescue, None
        if rescue is not None:
            rescue.close()

    def _reported(self) -> list[EnvFault]:
        """The faults of all children that replied that they failed."""
        faults: list[EnvFault] = []
        for child in self.children:
            if self._said_it_failed(child):
                try:
                    message = self._findings.receive(child)
                    faults.extend(message.faults if isinstance(message, Failed) else ())
                except (EOFError, OSError):
                    faults.append(self._findings.death_of(child, self._call))
        return faults

    def _answer_of(self, child: Child) -> Any:
        """What a child that has replied sent beside its words; None where that is nothing."""
        while int(self.control.reply[child.position, 1]) == Outcome.ANSWERED:
            try:
                message = self._findings.receive(child)
            except (EOFError, OSError):
                self._answer_is_lost(child)
                continue
            assert isinstance(message, Answer)
            instead, child.instead = child.instead, None
            return message.payload if instead is None else instead
        return None

    def _answer_is_lost(self, child: Child) -> None:
        """A child died, or stopped, with a message half sent: have its work done by another."""
        fault = self._findings.death_of(child, self._call)
        if self._rescue is None:
            self._fail([fault])
        self._replace(child, fault)
        self._awaited = [child]
        self._await_replies(self.settings.step_timeout_s)
        if self._said_it_failed(child):
            self._fail([])


def _sayer(work: RowWork) -> Say:
    return lambda conn: send_plain(conn, work)
