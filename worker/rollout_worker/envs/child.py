"""The child process: a stepper over a slice of the environments, driven by the words of the control page.

Started by `crew.births`; makes its environments, says what they are, maps the arena it is handed, and then
does one command after another until it is told to close, or its parent is gone. It loads numpy and what the
environments load, never torch by itself.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, assert_never

from rollout_worker.envs.arena import ControlPage
from rollout_worker.envs.calls import answer, sendable
from rollout_worker.envs.child_messages import Answer, Failed, Hello
from rollout_worker.envs.commands import (
    FIRST,
    NO_WORDS,
    Call,
    Close,
    Command,
    Cut,
    Outcome,
    Remap,
    Request,
    Reset,
    RowWork,
    Seat,
    Seed,
    Step,
    decode,
)
from rollout_worker.envs.factory import Recipe
from rollout_worker.envs.faults import EnvFault, fault_of
from rollout_worker.envs.launch import THREAD_VARIABLES, Descriptor
from rollout_worker.envs.looking import Looked, Waiting, begun
from rollout_worker.envs.lookout import Lookout
from rollout_worker.envs.object_leaves import ObjectLeaves, put_cells, unsendable
from rollout_worker.envs.orphans import die_with_parent
from rollout_worker.envs.progress import Doing, Progress, read_progress
from rollout_worker.envs.remapping import receive_memory
from rollout_worker.envs.reports import Reported
from rollout_worker.envs.stepper import Stepper
from rollout_worker.envs.stepper_base import StepFailed, StepRules
from rollout_worker.envs.stepping import AnyStepper, Slice, SteppedBy, reports_of
from rollout_worker.envs.transfer import Pickled, in_bytes, in_plain_bytes, receive, send, send_plain


@dataclass(frozen=True, slots=True)
class ChildSetup:
    """Everything a child is born with. `indices` are its environments, counted over the vector env.

    `parents_lifelines` are ends of pipes that a forked child has inherited and that its parent alone may hold.
    """

    position: int
    num_processes: int
    num_envs: int
    indices: range
    recipes: tuple[Recipe, ...]
    first_env_index: int
    stepped_by: SteppedBy
    rules: StepRules
    num_threads: int
    look_s: float
    parent_pid: int
    lifeline: Descriptor | None
    parents_lifelines: tuple[int, ...]
    control: Descriptor
    wake: Descriptor
    done: Descriptor
    conn: Connection


def run(setup: ChildSetup) -> None:
    """The target of the process."""
    _settle(setup)
    control = ControlPage(setup.num_envs, setup.num_processes, setup.control.fd)
    os.close(setup.control.fd)
    progress = Progress(memoryview(control.progress[setup.position]))
    try:
        stepper = begun(
            setup.stepped_by,
            Slice(setup.recipes, setup.indices, setup.first_env_index),
            control=control,
            progress=progress,
            rules=setup.rules,
        )
    except BaseException as error:
        _reply(setup, control, Outcome.FAILED)
        send(setup.conn, Failed(_faults_of(error, progress, setup.indices, otherwise="constructor")))
        return
    _limit_threads(setup.num_threads)
    progress.rest()
    _reply(setup, control, Outcome.ANSWERED)
    send_plain(setup.conn, Answer(Hello(_said_by(stepper), os.getpid())))
    _Listener(setup, control, progress, stepper).listen()


def _faults_of(
    error: BaseException, progress: Progress, indices: range, *, otherwise: str
) -> tuple[EnvFault, ...]:
    """What a command failed of. Whatever an environment raises, KeyboardInterrupt too, is the parent's to hear: a process
    of ours that dies of it would take the traceback along. `otherwise` names the command where no environment was busy.
    """
    if isinstance(error, StepFailed):
        return error.faults
    doing, row = read_progress(progress.word[0])
    index = indices.start + row if doing not in (Doing.IDLE, Doing.CALL) else None
    call = otherwise if doing is Doing.IDLE else doing.name.lower()
    return (fault_of(error, env_index=index, pid=os.getpid(), call=call),)


def _said_by(stepper: AnyStepper | Waiting) -> tuple[Reported | Looked, ...]:
    return tuple(stepper.look() if isinstance(stepper, Waiting) else reports_of(stepper))


def _reply(setup: ChildSetup, control: ControlPage, outcome: Outcome) -> None:
    """Answer the unspoken first command: to make the environments."""
    words = control.reply[setup.position]
    words[1] = outcome
    words[0] = FIRST
    os.eventfd_write(setup.done.fd, 1)


def _settle(setup: ChildSetup) -> None:
    """Ctrl-C is the parent's business; SIGTERM ends us; a dead parent ends us too."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for fd in setup.parents_lifelines:
        os.close(fd)
    die_with_parent(setup.parent_pid, lifeline=setup.lifeline.fd if setup.lifeline else None)
    _limit_threads(setup.num_threads)


def _limit_threads(num_threads: int) -> None:
    """Also of libraries that are loaded later: a process that forkserver gives has the variables of its server."""
    os.environ.update(dict.fromkeys(THREAD_VARIABLES, str(num_threads)))
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(num_threads)


class _Listener:
    """The loop: wait for a command's number, do it, write the reply, wake the parent."""

    _stepper: AnyStepper
    """There is one as soon as it is known how environments are stepped."""

    def __init__(
        self, setup: ChildSetup, control: ControlPage, progress: Progress, stepper: AnyStepper | Waiting
    ) -> None:
        self._setup, self._control = setup, control
        self._command = memoryview(control.command[setup.position])
        self._reply = memoryview(control.reply[setup.position])
        self._replies = control.reply[:, 0]
        self._fence = threading.Lock()
        self._progress = progress
        self._waiting = stepper if isinstance(stepper, Waiting) else None
        if not isinstance(stepper, Waiting):
            self._stepper = stepper
        self._conn = setup.conn
        self._objects: ObjectLeaves | None = None

    def listen(self) -> None:
        wake, done = self._setup.wake.fd, self._setup.done.fd
        command_words, reply = self._command, self._reply
        number, words = FIRST, NO_WORDS
        command: Command = Call()
        lookout = Lookout(self._setup.look_s)
        while True:
            lookout.sees(lambda: command_words[0] != number)  # noqa: B023 (looked at before it changes)
            os.eventfd_read(wake)
            number = command_words[0]
            given: Any = tuple(command_words[1:6])
            if given != words:  # a step is mostly the same as the one before
                words, command = given, decode(given)
            begin = time.perf_counter_ns()
            outcome, message = self._do(command)
            self._progress.rest()
            self._progress.worked(time.perf_counter_ns() - begin)
            reply[1] = outcome
            reply[0] = number
            if command_words[6] or self._is_last(number) or outcome is Outcome.FAILED:
                os.eventfd_write(done, 1)
            if message is not None:
                self._conn.send_bytes(message)
            if isinstance(command, Close):
                return

    def _is_last(self, number: int) -> bool:
        """Whether all children have replied, so that the parent is woken once for all of them.

        Two that finish together may both say yes, which does no harm. They must not both say no: taking a lock keeps the
        processor from reading the others' words before it has written ours. (Should that ever fail, the parent's own
        regular look finds the replies.)
        """
        with self._fence:
            replies: list[int] = self._replies.tolist()
        return replies.count(number) == len(replies)

    def _do(self, command: Command) -> tuple[Outcome, bytes | None]:
        """Do a command; gives the message that is to be sent, if any. It is pickled here, where that may fail."""
        try:
            payload = self._perform(command)
            if payload is None:
                return Outcome.DONE, None
            return Outcome.ANSWERED, self._answer_in_bytes(payload)
        except BaseException as error:
            otherwise = type(command).__name__.lower()
            faults = _faults_of(error, self._progress, self._setup.indices, otherwise=otherwise)
            return Outcome.FAILED, in_bytes(Failed(faults))

    def _answer_in_bytes(self, payload: Any) -> bytes:
        """An answer to be sent. Raises TypeError naming what an environment gave that cannot be."""
        try:
            return in_plain_bytes(Answer(payload))
        except Exception:
            found = unsendable(payload, self._setup.indices.start)
            if found is None:
                raise
            index, what = found
            self._progress.note(Doing.STEP, index - self._setup.indices.start)
            raise TypeError(what) from None

    def _perform(self, command: Command) -> Any:
        match command:
            case Seed():
                self._stepper.seed()
            case Remap():
                self._remap()
            case Seat(as_rows):
                return self._seat(SteppedBy.ROWS if as_rows else SteppedBy.BLOCK)
            case Call():
                return self._answer(receive(self._conn))
            case Close():
                (self._waiting or self._stepper).close()
            case Step():
                self._stepper.step(command)
                return self._objects.after_step(command) if self._objects else None
            case Reset():
                self._of_blocks().reset()
                return self._objects.of_carry() if self._objects else None
            case Cut():
                self._of_blocks().cut(command)
                return self._objects.of_carry() if self._objects else None
            case _:
                assert_never(command)
        return None

    def _seat(self, stepped_by: SteppedBy) -> tuple[Reported | Looked, ...]:
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            part = Slice(self._setup.recipes, self._setup.indices, self._setup.first_env_index)
            self._stepper = waiting.seat(stepped_by, part, control=self._control)
        return _said_by(self._stepper)

    def _of_blocks(self) -> Stepper:
        assert isinstance(self._stepper, Stepper)
        return self._stepper

    def _answer(self, asked: Request | RowWork) -> Any:
        if isinstance(asked, RowWork):
            assert not isinstance(self._stepper, Stepper)
            return self._stepper.do_encoded(asked)
        self._progress.note(Doing.CALL, 0)
        found = answer(asked, self._stepper.sessions, self._stepper.first_env)
        return Pickled(sendable(found, asked))

    def _remap(self) -> None:
        plan, memory, objects = receive_memory(self._conn)
        self._stepper.map(memory)
        rows = slice(self._setup.indices.start, self._setup.indices.stop)
        put_cells(memory, rows, objects)
        self._objects = ObjectLeaves(memory, rows) if plan.has_objects else None
