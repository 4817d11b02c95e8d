"""Receives one large string from the server straight into memory that the caller has.

Used for weights, whose bytes are needed in one piece: the driver would gather each chunk in a buffer of its own, make a
bytes object of that, and have it copied to its place.
"""

from __future__ import annotations

from typing import Any

from redis import exceptions as driver

from rollout_stream.packing import CommandPacker

MAX_LINE = 1024
"""Longest first line of an answer: a length, or an error's text."""


def receive_into(client: Any, command: tuple[Any, ...], target: memoryview) -> int:
    """Sends a command that answers one string, and puts the string into `target`. Its length; 0 if there is none.

    The driver's errors; ResponseError for an answer that is no string or longer than `target`.
    """
    pool = client.connection_pool
    connection = pool.get_connection()
    try:
        connection.send_packed_command(CommandPacker().pack(*command))
        socket = connection._sock
        line = _line(socket)
        if not line.startswith(b"$"):
            raise connection._parser.parse_error(line[1:].decode(errors="replace"))
        size = max(0, int(line[1:]))
        if size > len(target):
            raise driver.ResponseError(f"an answer of {size} bytes where {len(target)} were expected")
        _fill(socket, target[:size])
        if not line.startswith(b"$-"):
            _fill(socket, memoryview(bytearray(2)))
        return size
    except BaseException:
        connection.disconnect()
        raise
    finally:
        pool.release(connection)


def _line(socket: Any) -> bytes:
    line = bytearray()
    while not line.endswith(b"\r\n"):
        byte = socket.recv(1)
        if not byte or len(line) > MAX_LINE:
            raise driver.ConnectionError("the connection was closed inside of an answer")
        line += byte
    return bytes(line[:-2])


def _fill(socket: Any, target: memoryview) -> None:
    while len(target):
        received = socket.recv_into(target)
        if not received:
            raise driver.ConnectionError("the connection was closed inside of an answer")
        target = target[received:]
