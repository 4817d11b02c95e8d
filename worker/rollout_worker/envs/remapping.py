"""Both halves of `Remap`: the parent hands memory to a child, plan and descriptor, over the socket between them."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

from rollout_worker.envs.arena import MemoryPlan
from rollout_worker.envs.object_leaves import Cells
from rollout_worker.envs.transfer import receive, send_plain


def send_memory(conn: Connection, plan: MemoryPlan, fd: int, objects: Sequence[Cells] = ()) -> None:
    """The parent's half. `objects` are leaves that are no tensors, for a process that takes another's place."""
    send_plain(conn, (plan, objects))
    with _socket_of(conn) as channel:
        socket.send_fds(channel, [b"m"], [fd])


def receive_memory(conn: Connection) -> tuple[MemoryPlan, Any, Sequence[Cells]]:
    """The child's half: the plan, the memory that it makes of the descriptor, and leaves that are no tensors."""
    plan, objects = receive(conn)
    with _socket_of(conn) as channel:
        _, fds, _, _ = socket.recv_fds(channel, 1, 1)
    try:
        return plan, plan.shared(fds[0]), objects
    finally:
        os.close(fds[0])


@contextmanager
def _socket_of(conn: Connection) -> Iterator[socket.socket]:
    """The socket under a connection, for passing descriptors."""
    channel = socket.socket(fileno=os.dup(conn.fileno()))
    try:
        yield channel
    finally:
        channel.close()
