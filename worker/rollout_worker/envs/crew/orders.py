"""Gives children what they have to do: words in a row of the control page, a wake-up, and beside that what fits no words."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from rollout_worker.envs.arena import ControlPage
from rollout_worker.envs.commands import FIRST, NO_WORDS, Command, Request, Words, encode
from rollout_worker.envs.crew.children import Child, Say, Task

Note = Callable[[Child, Task], None]
"""Is told of each task that a child is given."""


class Orders:
    """The orders of one crew: who was given the last one (`awaited`), its `number`, and the `call` that errors name."""

    def __init__(self, control: ControlPage, crew: Sequence[Child]) -> None:
        self.number = FIRST
        self.call = "start"
        self.awaited = self._crew = crew
        self.note: Note | None = None
        self._rows = [memoryview(row) for row in control.command]
        self._last_command: Command | None = None
        self._last_words: Words = NO_WORDS

    def give(
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
        self.number += 1
        self.call = call
        self.awaited = self._crew if to is None else to
        words, is_alone = self._words_of(command), to is not None
        for child in self.awaited:
            if self.note is not None:
                say = None if saying is None else saying[child.position]
                self.note(child, Task(command, self.number, call, is_alone, say, request))
            self._tell(child, self.number, words, is_alone=is_alone)
        if saying is not None:
            for child in self.awaited:
                _say(child, saying[child.position])

    def give_next(self, child: Child) -> None:
        """Give a process that takes another's place the next thing that it has to catch up with."""
        task = child.ahead.popleft()
        self._tell(child, task.number, encode(task.command), is_alone=True)
        if task.say is not None:
            _say(child, task.say)

    def _words_of(self, command: Command) -> Words:
        if command is not self._last_command:  # the same object is ordered again and again
            self._last_command, self._last_words = command, encode(command)
        return self._last_words

    def _tell(self, child: Child, number: int, words: Words, *, is_alone: bool) -> None:
        child.number = number
        row = self._rows[child.position]
        if words != child.words:  # a step is mostly the same as the one before
            row[1], row[2], row[3], row[4], row[5] = child.words = words
        row[6] = is_alone
        row[0] = number
        os.eventfd_write(child.wake, 1)


def _say(child: Child, say: Say) -> None:
    with suppress(OSError):  # a dead child is found while waiting
        say(child.conn)
