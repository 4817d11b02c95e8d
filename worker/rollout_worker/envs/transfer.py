"""Python objects across the pipes between a crew and its children: always by value.

multiprocessing's own pickler hands tensors on as shared memory, which would tie both sides together and keep
descriptors open. Rows of tensordicts are encoded by `row_codec` before they come here.
"""

from __future__ import annotations

import io
import pickle
import threading
from multiprocessing import synchronize
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle  # type: ignore[import-untyped]

_LOCKS = (type(threading.Lock()), type(threading.RLock()), synchronize.SemLock, threading.Condition)


def send(conn: Connection, value: Any) -> None:
    """Send an object; what Python cannot pickle by name goes by value (lambdas, classes of a notebook)."""
    conn.send_bytes(cloudpickle.dumps(value))


def send_plain(conn: Connection, value: Any) -> None:
    """Send an object made of what any process knows: quicker."""
    conn.send_bytes(pickle.dumps(value, protocol=5))


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
