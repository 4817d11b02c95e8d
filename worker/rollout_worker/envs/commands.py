"""What a vector env asks of its stepper: small frozen records, and the eight words in which they cross to a
child.

The frequent ones fit the child's row of the control page; what does not fit words (arguments of a call) is
pickled on the child's own socket, which nobody but the two processes can write to. `Remap`'s memory
descriptor goes the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple, TypeAlias, assert_never


@dataclass(frozen=True, slots=True)
class Reset:
    """Reset the environments that the control page's mask marks, with its seeds."""


@dataclass(frozen=True, slots=True)
class Seed:
    """Give each environment the control page's seed, without resetting it."""


@dataclass(frozen=True, slots=True)
class Step:
    """Advance from frame `start` to `stop` of a block, with the actions that lie there.

    `autoreset` resets what ended and writes the next root; without it an ended environment stays where it is.
    `masked` steps only the environments that the control page's mask marks.
    """

    block: int
    start: int
    stop: int
    autoreset: bool = True
    masked: bool = False


@dataclass(frozen=True, slots=True)
class Cut:
    """End every running trajectory at a frame as truncated, and reset all environments with the control page's seeds."""

    block: int
    step: int


@dataclass(frozen=True, slots=True)
class Remap:
    """Take another arena: its plan and descriptor come on the socket."""


@dataclass(frozen=True, slots=True)
class Seat:
    """Step the environments, which were made to be looked at, as rows or in a block."""

    as_rows: bool


@dataclass(frozen=True, slots=True)
class Call:
    """Do something rare with some environments: the request and its answer go over the socket."""


@dataclass(frozen=True, slots=True)
class Close:
    """Close the environments and end."""


Simple: TypeAlias = Reset | Seed | Step | Cut
"""The commands that fit words."""

Command: TypeAlias = Reset | Seed | Step | Cut | Remap | Seat | Call | Close


class Code(IntEnum):
    """First word of a command."""

    RESET = 1
    STEP = 2
    CUT = 3
    REMAP = 4
    CALL = 5
    CLOSE = 6
    SEED = 7
    SEAT = 8


class Outcome(IntEnum):
    """First word of a reply."""

    DONE = 1
    ANSWERED = 2
    FAILED = 3


Words: TypeAlias = tuple[int, int, int, int, int]

NO_WORDS: Words = (0, 0, 0, 0, 0)
"""Of no command."""

FIRST = 1
"""Number of the command that nobody gives: make the environments and say what they are."""


def encode(command: Command) -> Words:
    """A command as words."""
    match command:
        case Step(block, start, stop, autoreset, masked):
            return Code.STEP, block, start, stop, autoreset | masked << 1
        case Reset():
            return Code.RESET, 0, 0, 0, 0
        case Seed():
            return Code.SEED, 0, 0, 0, 0
        case Cut(block, step):
            return Code.CUT, block, step, 0, 0
        case Remap():
            return Code.REMAP, 0, 0, 0, 0
        case Seat(as_rows):
            return Code.SEAT, as_rows, 0, 0, 0
        case Call():
            return Code.CALL, 0, 0, 0, 0
        case Close():
            return Code.CLOSE, 0, 0, 0, 0
        case _:
            assert_never(command)


def decode(words: Words) -> Command:
    """The command of such words."""
    code, block, start, stop, flags = words
    match Code(code):
        case Code.STEP:
            return Step(block, start, stop, bool(flags & 1), bool(flags & 2))
        case Code.RESET:
            return Reset()
        case Code.SEED:
            return Seed()
        case Code.CUT:
            return Cut(block, start)
        case Code.REMAP:
            return Remap()
        case Code.SEAT:
            return Seat(bool(block))
        case Code.CALL:
            return Call()
        case Code.CLOSE:
            return Close()
        case unknown:
            assert_never(unknown)


@dataclass(frozen=True, slots=True)
class Request:
    """What `Call` asks for: `name` of each environment in `indices` (counted over the group), called if callable.

    `own_args` holds one positional argument for each of `indices`, in front of those that all share.
    """

    name: str
    indices: tuple[int, ...]
    args: tuple[Any, ...] = ()
    kwargs: tuple[tuple[str, Any], ...] = ()
    own_args: tuple[Any, ...] | None = None

    def args_of(self, index: int) -> tuple[Any, ...]:
        """The positional arguments of one environment."""
        own = () if self.own_args is None else (self.own_args[self.indices.index(index)],)
        return (*own, *self.args)


class RowOp(IntEnum):
    """What a row is asked for."""

    RESET = 1
    STEP = 2
    STEP_AND_RESET = 3


class Broken(NamedTuple):
    """What a step of a row comes to whose environment failed or is gone: nothing but the root of a new one."""

    fresh: Any


Rows: TypeAlias = Sequence[tuple[int, Any]]
"""For each environment its own input: of a step its row, of a reset its row (or None) and its keywords."""


@dataclass(frozen=True, slots=True)
class RowWork:
    """Rows to step or to reset as tensordicts, each encoded where it crosses a pipe."""

    op: RowOp
    rows: tuple[tuple[int, Any], ...]
