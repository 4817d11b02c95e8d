"""What an environment is being asked for right now, as one word of shared memory that a watcher can read."""

from __future__ import annotations

from enum import IntEnum


class Doing(IntEnum):
    """What an environment is being asked for right now; second field of a progress word."""

    IDLE = 0
    CONSTRUCTOR = 1
    RESET = 2
    STEP = 3
    CLOSE = 4
    CALL = 5
    SET_SEED = 6


FRAME, BUSY_NS, COMMANDS = 1, 2, 3
"""Which words of a progress row hold the frame, the nanoseconds spent on commands, and how many those were."""

_ENV_BITS = 20
_CALL_BITS = 4


class Progress:
    """Tells whoever watches which environment is busy with what: one word, `tick | doing | row`, before each call."""

    def __init__(self, word: memoryview) -> None:
        self.word = word
        self._tick = 0

    def base(self, doing: Doing) -> int:
        """The word of a new tick for row 0; rows are added to it."""
        self._tick += 1
        return (self._tick << _CALL_BITS | doing) << _ENV_BITS

    def note(self, doing: Doing, row: int) -> None:
        """Say that this row is about to do something."""
        self.word[0] = self.base(doing) + row

    def at_frame(self, frame: int) -> None:
        """Say which frame of a block is being stepped: a process that takes this one's place goes on there."""
        self.word[FRAME] = frame

    def rest(self) -> None:
        """Say that nothing is being done."""
        self.word[0] = self.base(Doing.IDLE)

    def worked(self, nanoseconds: int) -> None:
        """Count a command that took so long."""
        self.word[BUSY_NS] += nanoseconds
        self.word[COMMANDS] += 1


def read_progress(word: int) -> tuple[Doing, int]:
    """What a progress word says: the call, and the row within the stepper."""
    return Doing(word >> _ENV_BITS & (1 << _CALL_BITS) - 1), word & (1 << _ENV_BITS) - 1
