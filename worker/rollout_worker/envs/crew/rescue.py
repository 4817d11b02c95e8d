"""Gives a lost child a new process, in its place, and has that go on with what the lost one was doing.

The environments of a lost process are gone, with those that were not even being stepped. Each is marked on the control
page, and its next frame says so: it repeats the root, is truncated, and not valid. Until the new process has caught up
the child counts as busy: who waits for it waits on, who waits for others does not.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection

from rollout_worker.envs.arena import ControlPage, MemoryPlan
from rollout_worker.envs.calls import PREFIXES, STAGE, Result
from rollout_worker.envs.commands import FIRST, NO_WORDS, Call, Command, Remap, Request, Reset, Step
from rollout_worker.envs.crew.births import Births
from rollout_worker.envs.crew.children import Child, Say, Task
from rollout_worker.envs.crew.descriptors import close_all
from rollout_worker.envs.crew.settings import CrewSettings, span
from rollout_worker.envs.faults import EnvFault, error_of
from rollout_worker.envs.object_leaves import Cells
from rollout_worker.envs.progress import FRAME
from rollout_worker.envs.remapping import send_memory
from rollout_worker.envs.restarts import IN_A_ROW
from rollout_worker.envs.stepping import SteppedBy
from rollout_worker.envs.transfer import send

ObjectsOf = Callable[[range, Command], Sequence[Cells]]
"""Gives the leaves of some rows that are no tensors, as they stood before a command."""


class Rescue:
    """Replaces the processes of one crew."""

    def __init__(
        self, births: Births, control: ControlPage, settings: CrewSettings, *, max_restarts: int | None
    ) -> None:
        self._births, self._control = births, control
        self._most, self._close_timeout_s = max_restarts, settings.close_timeout_s
        self._number = 0
        self._plan: MemoryPlan | None = None
        self._fd = -1
        self._staged: dict[int, Task] = {}
        self.objects_of: ObjectsOf | None = None

    def step_by(self, stepped_by: SteppedBy) -> None:
        """New processes step their environments like that."""
        self._births.step_by(stepped_by)

    def keep_memory(self, plan: MemoryPlan, fd: int) -> None:
        """New processes map this memory."""
        close_all(self._fd)
        self._plan, self._fd = plan, os.dup(fd)

    def close(self) -> None:
        """Give back the memory."""
        close_all(self._fd)
        self._fd = -1

    def note(self, child: Child, task: Task) -> None:
        """Remember what a child is given to do."""
        if child.task is not None and isinstance(child.task.command, Reset):
            self._staged.pop(child.position, None)  # that reset took it
        if task.request is not None and task.request.name == STAGE:
            self._staged[child.position] = task
        if isinstance(task.command, Step):
            self._control.progress[child.position, FRAME] = task.command.start
        child.task = task
        child.steps += task.call == "step"

    def refusal(self, child: Child, fault: EnvFault) -> EnvFault | None:
        """The fault to end with, where a lost child is not given another process; None: it is."""
        if self._had_good_steps(child):
            child.faults.clear()
        child.faults.append(fault)
        first = child.faults[0]
        if len(child.faults) > IN_A_ROW:
            return replace(
                first,
                summary=f"{first.summary}; lost {len(child.faults)} times in a row, and this was the first",
            )
        counts = self._control.restarts[child.indices.start : child.indices.stop]
        if self._most is not None and int(counts.max()) >= self._most:
            return replace(
                fault,
                summary=f"{fault.summary}; replaced {self._most} times already, and max_restarts allows no more",
            )
        return None

    def _had_good_steps(self, child: Child) -> bool:
        """Whether the lost process stepped its environments at least once; the frame that says what was lost is no such
        step."""
        frames = 0
        if child.task is not None and isinstance(child.task.command, Step):
            frames = int(self._control.progress[child.position, FRAME]) - child.task.command.start
        return child.steps - 1 + frames >= 1

    def begin(self, child: Child, crew: Sequence[Child], fault: EnvFault) -> None:
        """Start a process in a lost child's place. Nothing of the old one is left when this returns; `next_task` tells what
        the new one is to do."""
        child.end(self._close_timeout_s)
        rows = slice(child.indices.start, child.indices.stop)
        self._control.lost[rows] = True
        self._control.restarts[rows] += 1
        self._control.reply[child.position] = 0
        self._control.command[child.position] = FIRST
        print(f"{span(child.indices)}: the process is replaced. {fault}", file=sys.stderr)
        child.ahead.clear()
        child.number, child.words, child.steps = FIRST, NO_WORDS, 0
        task = child.task = self._rest_of(child, fault)
        if self._plan is not None:
            child.ahead.append(self._own(Remap(), self._saying_memory(child.indices, task.command)))
        staged = self._staged.get(child.position)
        if staged is not None and staged is not task:
            child.ahead.append(self._own(Call(), staged.say))
        child.ahead.append(task)
        self._births.give(child, crew)

    def _rest_of(self, child: Child, fault: EnvFault) -> Task:
        """What is left of the task that the lost process had."""
        task = child.task
        assert task is not None
        command = task.command
        if isinstance(command, Step):
            frame = int(self._control.progress[child.position, FRAME])
            command = replace(command, start=frame)
        elif task.request is not None and task.request.name != STAGE:
            # what a method has done by then is not known: it is not called twice
            child.instead = _lost_answers(task.request, child.indices, fault)
            return Task(command, task.number, task.call, True, _saying_nothing_asked)
        return replace(task, command=command, is_alone=True)

    def _own(self, command: Command, say: Say | None) -> Task:
        self._number -= 1  # the crew's own numbers are positive
        return Task(command, self._number, "start", True, say)

    def _saying_memory(self, indices: range, command: Command) -> Say:
        plan, fd = self._plan, self._fd
        assert plan is not None
        needs = plan.has_objects and self.objects_of is not None
        objects = self.objects_of(indices, command) if needs and self.objects_of is not None else ()
        return lambda conn: send_memory(conn, plan, fd, objects)


def _saying_nothing_asked(conn: Connection) -> None:
    send(conn, Request(name="", indices=()))


def _lost_answers(request: Request, indices: range, fault: EnvFault) -> list[Result]:
    call = request.name.lstrip(PREFIXES)
    found = replace(fault, call=call)
    return [
        Result(index, error=error_of([found]), fault=found) for index in request.indices if index in indices
    ]
