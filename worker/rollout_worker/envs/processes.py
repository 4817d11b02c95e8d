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
import signal
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from multiprocessing import Pipe
from typing import Any, NoReturn

from rollout_worker.envs.arena import ArenaPlan, ControlPage
from rollout_worker.envs.batch_settings import PIPE_TIMEOUT
from rollout_worker.envs.calls import PREFIXES
from rollout_worker.envs.child import FIRST, Answer, ChildSetup, Failed, Hello, run, send_arena
from rollout_worker.envs.commands import Call, Close, Command, Outcome, Remap, Request, RowOp, RowWork, encode
from rollout_worker.envs.crew_parts import (
    WATCH_S,
    Child,
    CrewSettings,
    Watch,
    close_all,
    readable,
    shares,
    span,
)
from rollout_worker.envs.factory import Entrypoint, Recipe
from rollout_worker.envs.faults import Cause, EnvFault, ending_of, error_of
from rollout_worker.envs.launch import MAIN_GUARD, NO_MAIN_GUARD, PROCESS_PREFIX, Descriptor, Launcher
from rollout_worker.envs.lookout import Lookout
from rollout_worker.envs.memory import memory_file
from rollout_worker.envs.progress import Doing, read_progress
from rollout_worker.envs.stepper_base import StepRules
from rollout_worker.envs.stepping import SteppedBy
from rollout_worker.envs.transfer import receive, send, send_plain

GATHER_LOOK_S = 0.02
"""Children that are waited for one by one do not all signal: look at their words this often."""

GATHER_S = 0.5
"""After a failure, the others get this long to report theirs of the same call, and again to close their environments."""

ROW_CALLS = {RowOp.RESET: "reset", RowOp.STEP: "step", RowOp.STEP_AND_RESET: "step"}

MESSAGE_S = 10.0
"""A message that a child has announced must arrive within this."""


class Crew:
    """Running children. Made by `Crew.start`; ends with `close` or `kill`, after which nothing of it is left."""

    def __init__(self, settings: CrewSettings, num_envs: int) -> None:
        self.settings = settings
        self.control_fd = memory_file(
            ControlPage(num_envs, settings.num_processes).nbytes, purpose="the control page"
        )
        self.children: list[Child] = []
        self._number = FIRST
        self._call = "start"
        self._lookout = Lookout(settings.look_s)
        self._watch: Watch | None = None
        self._next_look = 0.0
        self._awaited: Sequence[Child] = self.children
        self._done = -1
        self._epoll: select.epoll | None = None
        try:
            self.control = ControlPage(num_envs, settings.num_processes, self.control_fd)
            self._replies = self.control.reply[:, 0]
            self._done = os.eventfd(0, os.EFD_CLOEXEC)
            self._epoll = select.epoll()
            self._epoll.register(self._done, select.EPOLLIN)
        except BaseException:
            self.kill()
            raise

    @staticmethod
    def start(
        recipes: Sequence[Recipe],
        settings: CrewSettings,
        rules: StepRules,
        *,
        stepped_by: SteppedBy,
        first_env_index: int = 0,
    ) -> tuple[Crew, list[Hello]]:
        """Start the children and wait until each has made its environments.

        Raises EnvError, ChildLost, StepTimeout or EntrypointError; then nothing is left running.
        """
        crew = Crew(settings, len(recipes))
        try:
            crew._launch(recipes, rules, stepped_by, first_env_index)
            return crew, crew.wait(settings.start_timeout_s)
        except BaseException:
            crew.kill()
            raise

    def order(self, command: Command, *, call: str, to: Sequence[Child] | None = None) -> None:
        """Give a command to every child, or to some. `call` is what errors name it."""
        self._number += 1
        self._call = call
        self._awaited = self.children if to is None else to
        words, is_alone = encode(command), to is not None
        rows = self.control.command
        for child in self._awaited:
            child.number = self._number
            row = rows[child.position]
            row[1:6] = words
            row[6] = is_alone
            row[0] = self._number
            os.eventfd_write(child.wake, 1)

    def wait(self, limit_s: float | None = None) -> list[Any]:
        """Wait until every child has done the command that it was given; gives what each of them sent beside the block
        (nothing sent by any: empty).

        A child that does not get on for `limit_s` (by default the step's limit) counts as stuck. Raises the
        error of whatever failed, after everything has been taken down.
        """
        self._await_replies(self.settings.step_timeout_s if limit_s is None else limit_s)
        outcomes = [int(self.control.reply[child.position, 1]) for child in self._awaited]
        if Outcome.FAILED in outcomes:
            self._fail([])
        if Outcome.ANSWERED not in outcomes:
            return []
        return [
            self._message(child).payload if outcome == Outcome.ANSWERED else None
            for child, outcome in zip(self._awaited, outcomes, strict=True)
        ]

    def remap(self, plan: ArenaPlan, fd: int) -> None:
        """Have every child map another arena."""
        self.order(Remap(), call="start")
        for child in self.children:
            with suppress(OSError):  # a dead child is found while waiting
                send_arena(child.conn, plan, fd)
        self.wait()

    def call(self, request: Request) -> list[Any]:
        """Have the children do a request with those of its environments that it names."""
        chosen = self._those_with(request.indices)
        if not chosen:
            return []
        self.order(
            Call(),
            call=request.name.lstrip(PREFIXES),
            to=None if len(chosen) == len(self.children) else chosen,
        )
        for child in chosen:
            with suppress(OSError):  # a dead child is found while waiting
                send(child.conn, request)
        return self.wait()

    def share_out(self, work: RowWork) -> list[Any]:
        """Have the children do rows, each its own; only those that have some are woken."""
        chosen = self._those_with([index for index, _ in work.rows])
        if not chosen:
            return []
        self.order(Call(), call=ROW_CALLS[work.op], to=None if len(chosen) == len(self.children) else chosen)
        for child in chosen:
            ours = tuple(row for row in work.rows if row[0] in child.indices)
            with suppress(OSError):  # a dead child is found while waiting
                send_plain(child.conn, RowWork(work.op, ours))
        return self.wait()

    def begin(self, child: Child, command: Command, work: RowWork | None, *, call: str) -> None:
        """Give one child something to do, whatever the others are doing. `take` gets its answer."""
        self._watch = self._watch or Watch(self.control, self.settings.step_timeout_s)
        self._watch.begin(child)
        self.order(command, call=call, to=[child])
        if work is not None:
            with suppress(OSError):  # a dead child is found while waiting
                send_plain(child.conn, work)

    def first_ready(self, busy: Sequence[Child], timeout_s: float | None) -> list[Child]:
        """Wait until at least one of these children has replied; gives those that have (none: the time is over)."""
        self._awaited = busy
        self._look_after(busy)
        self._await_replies(self.settings.step_timeout_s, count=1, timeout_s=timeout_s)
        return [child for child in busy if self._has_replied(child)]

    def _look_after(self, busy: Sequence[Child]) -> None:
        """Raise the error of children that died or are stuck while others, which do well, keep the caller from waiting."""
        assert self._epoll is not None
        if any(fd != self._done for fd, _ in self._epoll.poll(0)):
            self._fail([])
        now = time.monotonic()
        if self._watch is not None and now >= self._next_look:
            self._next_look = now + WATCH_S
            silent = self._watch.look(child for child in busy if not self._has_replied(child))
            if silent:
                limit_s = self.settings.step_timeout_s
                self._fail([self._silence_of(child, limit_s) for child in silent])

    def take(self, child: Child) -> Any:
        """What a child that has replied sent beside the block. Raises the error of a failure."""
        outcome = int(self.control.reply[child.position, 1])
        if outcome == Outcome.FAILED:
            self._fail([])
        return self._message(child).payload if outcome == Outcome.ANSWERED else None

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

    def close(self) -> None:
        """Close the environments in order, end the children, give everything back. Bounded by
        `close_timeout_s`.

        Raises EnvError where an environment failed to close; everything is given back all the same.
        """
        faults: list[EnvFault] = []
        try:
            if self.children:
                self.order(Close(), call="close")
                silent = self._gather(self.settings.close_timeout_s)
                faults = self._reported()
                faults += [self._silence_of(child, self.settings.close_timeout_s) for child in silent]
        finally:
            self.kill()
        if faults:
            raise error_of(faults)

    def kill(self) -> None:
        """End every child now and give everything back. Safe at any point of a start, and twice."""
        children, self.children = self.children, []
        for child in children:
            if child.pidfd >= 0:
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(child.pidfd, signal.SIGKILL)
        for child in children:
            if child.process is not None:
                self._reap(child, self.settings.close_timeout_s)
                with suppress(ValueError):
                    child.process.close()
            child.conn.close()
            close_all(child.wake, child.pidfd, child.lifeline)
        if self._epoll is not None:
            self._epoll.close()
            self._epoll = None
        close_all(self._done, self.control_fd)
        self._done = self.control_fd = -1

    def _reap(self, child: Child, limit_s: float) -> None:
        """Wait for the end of a process that is ending.

        multiprocessing waits for the end of a pipe, which processes that an environment has forked hold open.
        """
        is_ours = child.pidfd >= 0 and self.settings.start_method != "forkserver"
        if is_ours and readable([child.pidfd], limit_s):
            child.process.join()
        else:
            child.process.join(limit_s)

    def _launch(
        self, recipes: Sequence[Recipe], rules: StepRules, stepped_by: SteppedBy, first_env_index: int
    ) -> None:
        settings = self.settings
        launcher = Launcher(
            settings.start_method,
            imports_main=not all(isinstance(recipe, Entrypoint) for recipe in recipes),
            daemon=settings.daemon,
            num_threads=settings.num_threads,
        )
        assert self._epoll is not None
        for position, indices in enumerate(shares(len(recipes), settings.num_processes)):
            ours, theirs = Pipe(duplex=True)
            child = Child(position, indices, ours, os.eventfd(0, os.EFD_CLOEXEC))
            self.children.append(child)
            held = -1
            if launcher.needs_lifeline:
                held, child.lifeline = os.pipe2(os.O_CLOEXEC)
            lifelines = tuple(each.lifeline for each in self.children if each.lifeline >= 0)
            setup = ChildSetup(
                position=position,
                num_processes=settings.num_processes,
                num_envs=len(recipes),
                indices=indices,
                recipes=tuple(recipes[indices.start : indices.stop]),
                first_env_index=first_env_index,
                stepped_by=stepped_by,
                rules=rules,
                num_threads=settings.num_threads,
                look_s=settings.look_s,
                parent_pid=os.getpid(),
                lifeline=Descriptor(held) if held >= 0 else None,
                parents_lifelines=lifelines if launcher.is_inherited else (),
                control=Descriptor(self.control_fd),
                wake=Descriptor(child.wake),
                done=Descriptor(self._done),
                conn=theirs,
            )
            try:
                name = f"{PROCESS_PREFIX}-{indices.start}..{indices.stop - 1}"
                child.process = launcher.start(run, setup, name=name)
            finally:
                theirs.close()
                close_all(held)
            child.pidfd = os.pidfd_open(child.pid)
            self._epoll.register(child.pidfd, select.EPOLLIN)
        os.close(self.control_fd)
        self.control_fd = -1

    def _await_replies(
        self, limit_s: float, *, count: int | None = None, timeout_s: float | None = None
    ) -> None:
        """Wait until `count` of the awaited children (None: all) have replied, at most for `timeout_s`.

        A failure, a death, or a silence of `limit_s` ends in the error of it.
        """
        wanted = len(self._awaited) if count is None else count
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        assert self._epoll is not None
        if self._lookout.sees(lambda: self._num_replied() >= wanted):
            return
        poll, done = self._epoll.poll, self._done
        watch: Watch | None = None
        while self._num_replied() < wanted:
            left = WATCH_S if deadline is None else min(WATCH_S, deadline - time.monotonic())
            if left < 0:
                return
            events = poll(left)
            has_death = False
            for fd, _ in events:
                if fd == done:
                    os.eventfd_read(done)
                else:
                    has_death = True
            if self._num_replied() >= wanted:
                return
            if has_death or (events and self._any_failed()):
                self._fail([])
            if not events:
                watch = watch or Watch(self.control, limit_s)
                silent = watch.look(child for child in self._awaited if not self._has_replied(child))
                if silent:
                    self._fail([self._silence_of(child, limit_s) for child in silent])

    def _num_replied(self) -> int:
        """How many of the awaited children have done what they were given last."""
        if self._awaited is self.children:
            numbers: list[int] = self._replies.tolist()
            return numbers.count(self._number)
        return sum(map(self._has_replied, self._awaited))

    def _any_failed(self) -> bool:
        return any(map(self._said_it_failed, self.children))

    def _said_it_failed(self, child: Child) -> bool:
        return self._has_replied(child) and int(self.control.reply[child.position, 1]) == Outcome.FAILED

    def _has_replied(self, child: Child) -> bool:
        return int(self.control.reply[child.position, 0]) == child.number

    def _gather(self, limit_s: float) -> list[Child]:
        """Give children the time to reply; gives those that neither did nor died."""
        deadline = time.monotonic() + limit_s
        pending = self.children
        while True:
            pending = [child for child in pending if not self._has_replied(child) and not child.is_dead()]
            left = deadline - time.monotonic()
            if not pending or left <= 0:
                return pending
            if self._done in readable(
                [self._done, *(child.pidfd for child in pending)], min(left, GATHER_LOOK_S)
            ):
                os.eventfd_read(self._done)

    def _fail(self, faults: list[EnvFault]) -> NoReturn:
        """Find all that failed in this call, take everything down, raise the error of it."""
        try:
            pids = {fault.pid for fault in faults}
            stuck = [child for child in self.children if child.pid in pids]
            for child in stuck:
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(child.pidfd, signal.SIGKILL)
            self._gather(GATHER_S)
            lost = [
                child for child in self.children if child not in stuck and not self._said_it_failed(child)
            ]
            faults = [
                *faults,
                *self._reported(),
                *(self._death_of(child) for child in lost if child.is_dead()),
            ]
            self.order(Close(), call="close")
            self._gather(GATHER_S)
        finally:
            self.kill()
        raise error_of(faults)

    def _reported(self) -> list[EnvFault]:
        """The faults of all children that replied that they failed."""
        faults: list[EnvFault] = []
        for child in self.children:
            if self._said_it_failed(child):
                try:
                    message = self._receive(child)
                    faults.extend(message.faults if isinstance(message, Failed) else ())
                except (EOFError, OSError):
                    faults.append(self._death_of(child))
        return faults

    def _message(self, child: Child) -> Answer:
        try:
            message = self._receive(child)
        except (EOFError, OSError):
            self._fail([self._death_of(child)])
        assert isinstance(message, Answer)
        return message

    def _receive(self, child: Child) -> Any:
        """An announced message. Raises EOFError where it does not come: the child died, or stopped in the middle."""
        if child.conn.fileno() not in readable([child.conn.fileno(), child.pidfd], MESSAGE_S):
            raise EOFError
        return receive(child.conn)

    def _death_of(self, child: Child) -> EnvFault:
        self._reap(child, 1.0)
        exitcode = child.process.exitcode
        if exitcode == NO_MAIN_GUARD:
            raise RuntimeError(MAIN_GUARD)
        index, call = self._busy(child)
        text = f"the process that steps {span(child.indices)} {ending_of(exitcode)}"
        return EnvFault(Cause.LOST, index, child.pid, call, text)

    def _silence_of(self, child: Child, limit_s: float) -> EnvFault:
        index, call = self._busy(child)
        text = f"no answer within {limit_s:g} s; its process was killed"
        if limit_s == self.settings.step_timeout_s:
            text += f" (the limit is step_timeout_s, or the variable {PIPE_TIMEOUT})"
        return EnvFault(Cause.TIMEOUT, index, child.pid, call, text)

    def _busy(self, child: Child) -> tuple[int | None, str]:
        """Which environment a child was busy with, and the call."""
        doing, row = read_progress(int(self.control.progress[child.position, 0]))
        if doing is Doing.IDLE:
            return (child.indices.start if len(child.indices) == 1 else None), self._call
        return child.indices.start + row, self._call if doing is Doing.CALL else doing.name.lower()
