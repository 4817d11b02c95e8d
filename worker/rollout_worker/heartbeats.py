"""Keeps the worker's record in the stream fresh while no batch does it.

Every append carries a heartbeat; this thread sends one when the last is HEARTBEAT_S old, so that a worker that waits, or
whose environments are slow, is not taken for lost.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rollout_contract.errors import StreamError
from rollout_contract.messages import HEARTBEAT_S, Heartbeat
from rollout_contract.podenv import WorkerDocument
from rollout_stream.writer import StreamWriter
from rollout_worker.beside import beside
from rollout_worker.standing import Standing

log = logging.getLogger(__name__)


class Pulse:
    """Makes heartbeats of the worker's standing, and remembers when the last one was made."""

    def __init__(self, document: WorkerDocument, *, node: str, writer: StreamWriter) -> None:
        self._document = document
        self._node = node
        self._writer = writer
        self._last = time.monotonic()

    def beat(self, standing: Standing) -> Heartbeat:
        """The record of this moment."""
        self._last = time.monotonic()
        return Heartbeat(
            group=self._document.group,
            index=self._document.index,
            attempt=self._document.attempt,
            state=standing.state,
            frames=standing.frames,
            frames_per_second=round(standing.frames_per_second, 1),
            policy_version=standing.loaded_version,
            seed_epoch=max(0, standing.seed_epoch),
            sequence=self._writer.next_sequence - 1,
            pid=os.getpid(),
            node=self._node,
            rejected_version=standing.rejected_version,
            last_error=standing.last_error,
            started=self._writer.server_time,
        )

    @property
    def due_in_s(self) -> float:
        """Seconds until a heartbeat is due; not positive if it is."""
        return self._last + HEARTBEAT_S - time.monotonic()

    @contextmanager
    def kept(self, standing: Callable[[], Standing]) -> Iterator[None]:
        """Send a heartbeat whenever one is due, until the block ends. Where it ends well, the last of all follows: no older
        one may come after it, so it is not for the block to send.
        """

        def send() -> None:
            if self.due_in_s > 0:
                return
            try:
                self._writer.heartbeat(self.beat(standing()))
            except StreamError as error:
                # The loop meets the same trouble with its next call, and decides what it means.
                log.warning("a heartbeat was not stored: %s", error)

        with beside(send, name="heartbeats", pause_s=lambda: max(0.1, self.due_in_s)):
            yield
        self._writer.heartbeat(self.beat(standing()))
