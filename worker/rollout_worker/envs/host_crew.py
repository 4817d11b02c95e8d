"""The host of child processes, which write into memory that they share with the caller."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from multiprocessing.util import Finalize
from typing import TYPE_CHECKING, Any

from rollout_worker.envs.arena import Arena, ArenaPlan, ControlPage, SharedArena
from rollout_worker.envs.calls import Result
from rollout_worker.envs.commands import Broken, Call, Command, Request, RowOp, Rows, RowWork, Simple, Step
from rollout_worker.envs.crew.births import Share
from rollout_worker.envs.crew.crew import Crew
from rollout_worker.envs.crew.settings import CrewSettings
from rollout_worker.envs.factory import Recipe
from rollout_worker.envs.looking import Looked
from rollout_worker.envs.memory import memory_file
from rollout_worker.envs.object_leaves import Cells, cells_of, put_cells
from rollout_worker.envs.progress import BUSY_NS, COMMANDS
from rollout_worker.envs.reports import Reported
from rollout_worker.envs.stepping import SteppedBy
from rollout_worker.envs.unchanged import Memory
from rollout_worker.envs.use import Use, end_with, over
from rollout_worker.envs.vector_parts import Effort, VectorSettings

if TYPE_CHECKING:
    from rollout_worker.envs.row_memory import RowMemory, RowPlan


class CrewHost:
    """A crew of children. They end with this object, if nobody closed it. `consolidate`: rows are sent in one piece."""

    def __init__(self, settings: CrewSettings, *, consolidate: bool = True) -> None:
        self.settings = settings
        self._consolidate = consolidate
        self._received: dict[int, Memory] = {}
        self._memory_bytes = 0
        self._crew: Crew | None = None
        self._use = Use()
        self._at_exit: Finalize | None = None
        self._stepped_by = SteppedBy.BLOCK
        self._arena: Arena | None = None
        self._busy: dict[int, RowWork] = {}
        self._queued: deque[tuple[int, RowWork]] = deque()

    @property
    def control(self) -> ControlPage:
        """The page that the children read."""
        return self._running().control

    @property
    def pids(self) -> list[int]:
        """The children's process ids, in the order of their environments."""
        return [child.pid for child in self._crew.children] if self._crew is not None else []

    def look(self, recipes: Sequence[Recipe], settings: VectorSettings) -> list[Looked]:
        """Start the children, and tell what their environments are."""
        return self._start(recipes, settings, SteppedBy.UNDECIDED)

    def open(
        self, recipes: Sequence[Recipe], settings: VectorSettings, stepped_by: SteppedBy
    ) -> list[Reported]:
        """Start the children, or tell those that have been looked at how they step."""
        self._stepped_by = stepped_by
        if self._crew is None:
            return self._start(recipes, settings, stepped_by)
        return [each for said in self._crew.seat(stepped_by) for each in said]

    def _start(self, recipes: Sequence[Recipe], settings: VectorSettings, stepped_by: SteppedBy) -> list[Any]:
        rules = replace(settings.rules, seed_globals=True)
        self._crew, hellos = Crew.start(
            Share(recipes, rules, stepped_by, settings.first_env_index), self.settings
        )
        self._crew.fetch_objects_from(self._objects_before)
        self._use = Use()
        self._at_exit = Finalize(self, end_with, args=(self._crew.kill, self._use), exitpriority=100)
        return [each for hello in hellos for each in hello.said]

    def map(self, plan: ArenaPlan) -> Arena:
        """Memory that the children map too."""
        arena, fd = SharedArena.create(plan, directory=self.settings.memory_directory)
        self._memory_bytes = plan.nbytes
        try:
            self._running().remap(plan, fd)
        finally:
            os.close(fd)
        self._arena = arena
        return arena

    def map_rows(self, plan: RowPlan) -> RowMemory:
        """Memory for rows that the children map too."""
        purpose = f"{plan.num_rows} rows of environments"
        fd = memory_file(plan.nbytes, purpose=purpose, directory=self.settings.memory_directory)
        self._memory_bytes = plan.nbytes
        try:
            memory = plan.shared(fd)
            self._running().remap(plan, fd)
        finally:
            os.close(fd)
        return memory

    def _objects_before(self, indices: range, command: Command) -> list[Cells]:
        """Leaves that are no tensors, as they stood before a command: what a process needs that takes another's place."""
        assert self._arena is not None
        rows, carry = slice(indices.start, indices.stop), self._arena.carry
        if not isinstance(command, Step):
            return [cells_of(-1, key, 0, carry.arrays[key][rows]) for key in carry.layout.objects]
        block, frame = self._arena.blocks[command.block], command.start
        roots = [(key, block.arrays[key][rows, frame : frame + 1]) for key in carry.layout.objects]
        return [
            *(cells_of(-1, key, 0, values) for key, values in roots),
            *(cells_of(command.block, key, frame, values) for key, values in roots),
        ]

    def order(self, command: Simple, *, call: str) -> None:
        """Give all children a command."""
        self._use.thread = threading.get_ident()
        self._running().order(command, call=call)

    def wait(self, arena: Arena | None) -> None:
        """Wait for all children."""
        with self._use:
            answers = self._running().wait()
        if answers and arena is not None:
            self._take_objects(answers, arena)

    def _take_objects(self, answers: list[Any], arena: Arena) -> None:
        """Put leaves that are no tensors, which came on the sockets, into the blocks."""
        for child, found in zip(self._running().children, answers, strict=True):
            self._take_objects_of(child.position, found, arena)

    def _take_objects_of(self, position: int, found: Any, arena: Arena) -> None:
        indices = self._running().children[position].indices
        put_cells(arena, slice(indices.start, indices.stop), found or ())

    def ask(self, request: Request) -> list[Result]:
        """Ask the environments, each in its process."""
        crew = self._running()
        return [result for answers in crew.call(request) for result in answers or ()]

    def packed(self, op: RowOp, rows: Rows) -> Rows:
        """Rows, encoded. Constants that a child has itself, because it has sent them, are left out of its steps."""
        if self._stepped_by is SteppedBy.BLOCK:
            return rows  # they lie in the block
        from rollout_worker.envs.row_codec import encoded

        if op is RowOp.RESET:
            return [
                (index, (encoded(row, consolidate=self._consolidate), kwargs))
                for index, (row, kwargs) in rows
            ]
        return [
            (index, encoded(row, consolidate=self._consolidate, known=self._received.get(index)))
            for index, row in rows
        ]

    def do_rows(self, work: RowWork) -> dict[int, Any]:
        """Send each child its rows, and only those children that have some; gives what came back, decoded."""
        self._use.thread = threading.get_ident()
        with self._use:
            found = self._running().share_out(work)
        return dict(pair for answer in found for pair in self._rows_of(work.op, answer))

    def begin(self, work: RowWork) -> None:
        """Give each child its rows; what comes to a busy child waits until it is done."""
        for child, part in self._running().parts_of(work):
            if child.position in self._busy:
                self._queued.append((child.position, part))
            else:
                self._give(child.position, part)

    def _give(self, position: int, part: RowWork) -> None:
        crew = self._running()
        child = crew.children[position]
        self._busy[position] = part
        if self._stepped_by is SteppedBy.ROWS:
            crew.begin(child, Call(), part, call="step")
            return
        self.control.mask[child.indices.start : child.indices.stop] = False
        self.control.mask[[index for index, _ in part.rows]] = True
        crew.begin(child, Step(0, 0, 1, masked=True), None, call="step")

    def finished(self, at_least: int, timeout_s: float | None, arena: Arena | None) -> dict[int, Any]:
        """Wait for children, and give those that are done what waits for them."""
        crew = self._running()
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        found: dict[int, Any] = {}
        while len(found) < at_least:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            ready = crew.first_ready([crew.children[position] for position in self._busy], left)
            for child in ready:
                found.update(self._taken(child.position, arena))
            if not ready:
                break
        return found

    def _taken(self, position: int, arena: Arena | None) -> dict[int, Any]:
        crew = self._running()
        part = self._busy.pop(position)
        answer = crew.take(crew.children[position])
        waiting = next((each for each in self._queued if each[0] == position), None)
        if self._stepped_by is SteppedBy.BLOCK:
            if answer and arena is not None:
                self._take_objects_of(position, answer, arena)
            found = dict.fromkeys(index for index, _ in part.rows)
        else:
            found = dict(self._rows_of(part.op, answer))
        if waiting is not None:
            self._queued.remove(waiting)
            self._give(*waiting)
        return found

    def _rows_of(self, op: RowOp, answer: Any) -> Iterator[tuple[int, Any]]:
        """The rows of one child's answer, decoded."""
        from rollout_worker.envs.row_codec import decoded

        for index, row in answer or ():
            received = self._received.setdefault(index, Memory())
            if isinstance(row, Broken):
                yield index, Broken(decoded(row.fresh, received=received))
            elif op is RowOp.STEP_AND_RESET:
                yield index, tuple(decoded(each, received=received) for each in row)
            else:
                yield index, decoded(row, received=received)

    def effort(self) -> Effort:
        """What the children and the waiting for them have taken."""
        crew = self._running()
        busy, counts = crew.control.progress[:, BUSY_NS], crew.control.progress[:, COMMANDS]
        return Effort(
            busy_s=tuple((busy / 1e9).tolist()),
            commands=tuple(map(int, counts)),
            waited_s=crew.waited_s,
            sent_bytes=tuple(child.traffic.sent for child in crew.children),
            received_bytes=tuple(child.traffic.received for child in crew.children),
            memory_bytes=self._memory_bytes,
            restarts=tuple(map(int, crew.control.restarts)),
        )

    def close(self) -> None:
        """Close the environments in order, end the children."""
        if self._crew is not None:
            self._crew.close()

    def release(self) -> None:
        """End the children at once."""
        if self._at_exit is not None:
            self._at_exit.cancel()
            self._at_exit = None
        if self._crew is not None:
            self._crew.kill()
            self._crew = None
        self._arena = None
        self._received.clear()
        self._busy.clear()
        self._queued.clear()

    def _running(self) -> Crew:
        assert self._crew is not None
        if self._use.is_over:
            raise over()
        return self._crew
