"""Python objects across the pipes between a crew and its children: always by value.

multiprocessing's own pickler hands tensors on as shared memory, which would tie both sides together and keep
descriptors open. Rows of tensordicts are encoded by `row_codec` before they come here.
"""

from __future__ import annotations

import io
import os
import pickle
import threading
from multiprocessing import synchronize
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle  # type: ignore[import-untyped]

_LOCKS = (type(threading.Lock()), type(threading.RLock()), synchronize.SemLock, threading.Condition)


class Traffic:
    """Bytes that have gone to a process and come from it, over all its sockets: also those of processes before it."""

    def __init__(self) -> None:
        self.sent = self.received = 0


class CountedConnection(Connection):
    """A connection whose bytes are counted."""

    def __init__(self, taken_from: Connection, traffic: Traffic) -> None:
        super().__init__(os.dup(taken_from.fileno()))
        taken_from.close()
        self._traffic = traffic

    def send_bytes(self, buf: Any, offset: int = 0, size: int | None = None) -> None:
        """Send one message."""
        super().send_bytes(buf, offset, size)
        self._traffic.sent += len(buf) - offset if size is None else size

    def recv_bytes(self, maxlength: int | None = None) -> bytes:
        """The next message."""
        found = super().recv_bytes(maxlength)
        self._traffic.received += len(found)
        return found


def in_bytes(value: Any) -> bytes:
    """An object in bytes; what Python cannot pickle by name goes by value (lambdas, classes of a notebook)."""
    return bytes(cloudpickle.dumps(value))


def in_plain_bytes(value: Any) -> bytes:
    """An object made of what any process knows: quicker. Where there is something else in it, as `in_bytes` has it."""
    try:
        return pickle.dumps(value, protocol=5)
    except Exception:
        return in_bytes(value)


def send(conn: Connection, value: Any) -> None:
    """Send an object as `in_bytes` has it."""
    conn.send_bytes(in_bytes(value))


def send_plain(conn: Connection, value: Any) -> None:
    """Send an object as `in_plain_bytes` has it."""
    conn.send_bytes(in_plain_bytes(value))


class Pickled:
    """An object inside a plain message that has to go by value."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __reduce__(self) -> tuple[Any, tuple[bytes]]:
        return pickle.loads, (cloudpickle.dumps(self._value),)


def receive(conn: Connection) -> Any:
    """The next object. Raises EOFError where the other side is gone."""
    return pickle.loads(conn.recv_bytes())  # noqa: S301 (the pipe is between our own processes)


class _LockDropper(cloudpickle.Pickler):  # type: ignore[misc]
    """Puts None in the place of every lock, at any depth."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, _LOCKS):
            return type(None), ()
        return super().reducer_override(value)


def without_locks(value: Any) -> Any:
    """A copy of an object in which every lock is None."""
    buffer = io.BytesIO()
    _LockDropper(buffer).dump(value)
    return pickle.loads(buffer.getbuffer())  # noqa: S301 (our own bytes)


def refusal_of(value: Any) -> BaseException | None:
    """The error that sending would raise; None where it would not."""
    try:
        cloudpickle.dumps(value)
    except Exception as error:
        return error
    return None
