"""Commands as bytes for the socket, without copying the large arguments.

Given to the driver as its `command_packer`. The driver's own copies every memoryview of a command into one string.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from rollout_contract.wire import BytesLike

JOIN_BELOW: Final = 32 * 1024
"""Pieces smaller than this are joined: a copy is cheaper than a system call of its own."""


class Pieces:
    """One argument of a command that lies in several buffers. Its length is that of all of them."""

    __slots__ = ("buffers", "size")

    def __init__(self, buffers: Iterable[BytesLike]) -> None:
        self.buffers: tuple[memoryview, ...] = tuple(memoryview(b).cast("B") for b in buffers)
        self.size = sum(len(b) for b in self.buffers)

    def __len__(self) -> int:
        return self.size

    def joined(self) -> bytes:
        """The argument as one bytes object, for a client that cannot send it from where it lies."""
        return b"".join(self.buffers)


class CommandPacker:
    """Makes the chunks that the driver writes one after the other."""

    def pack(self, *args: Any) -> list[BytesLike]:
        """One command. Strings are UTF-8; bytes-like arguments and `Pieces` are sent from where they lie."""
        return self.pack_all([args])

    def pack_all(self, commands: Sequence[Sequence[Any]]) -> list[BytesLike]:
        """Several commands, one after the other."""
        chunks: list[BytesLike] = []
        small = bytearray()
        for command in commands:
            args = (*str(command[0]).split(), *command[1:])  # the driver writes "CONFIG GET" as one word
            small += b"*%d\r\n" % len(args)
            for arg in args:
                buffers = arg.buffers if isinstance(arg, Pieces) else (_bytes_of(arg),)
                small += b"$%d\r\n" % sum(len(b) for b in buffers)
                for buffer in buffers:
                    if len(buffer) < JOIN_BELOW:
                        small += buffer
                        continue
                    chunks += [small, buffer]
                    small = bytearray()
                small += b"\r\n"
        chunks.append(small)
        return chunks


def _bytes_of(arg: Any) -> BytesLike:
    match arg:
        case bytes() | bytearray():
            return arg
        case memoryview():
            return arg.cast("B")
        case str():
            return arg.encode()
        case bool():
            raise TypeError("a command takes no bool")
        case int():
            return b"%d" % arg
        case float():
            return repr(arg).encode()
        case _:
            raise TypeError(f"a command takes str, bytes, int or float, not {type(arg).__name__}")
