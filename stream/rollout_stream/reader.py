"""Reads a job's batches for one member of a consumer group, some of them ahead.

Called by `RolloutStream`. A thread fetches (`fetching`) and puts batches on a shelf (`shelf`); what is here belongs to the
learner's thread: handing them out, acks, and the end. Knows nothing of tensors: see `Batch.data`.
"""

from __future__ import annotations

import os
import re
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

from rollout_contract.errors import StreamError
from rollout_contract.messages import Layout
from rollout_contract.names import JobRef
from rollout_stream.batch import Batch
from rollout_stream.calls import JobCalls
from rollout_stream.feed import newest_version
from rollout_stream.fetching import BLOCK_S, Fetcher, Member
from rollout_stream.session import Session
from rollout_stream.shelf import Shelf

GROUP: Final = re.compile(r"[A-Za-z0-9][-A-Za-z0-9_.]{0,62}")
LEAVE_NOW_MS: Final = 10**9


class BatchReader(Iterator[Batch]):
    """The batches of a group, one by one. Ends when the job has finished and nothing is pending for the group.

    `prefetch` bounds the batches that are read but not handed out. Iterating raises RolloutFailed at the end of a failed
    job, StateLost, StreamUnavailable when the server stayed away for longer than the session's patience, and
    LayoutMismatch where the batches do not look as `expect` says.
    """

    def __init__(
        self,
        session: Session,
        calls: JobCalls,
        job: JobRef,
        *,
        group: str,
        prefetch: int = 4,
        consumer: str | None = None,
        expect: Layout | None = None,
    ) -> None:
        if not GROUP.fullmatch(group):
            raise ValueError(
                f"a group's name is letters, digits, '-', '_' and '.', at most 63, not {group!r}"
            )
        if prefetch < 1:
            raise ValueError(f"prefetch is at least 1, not {prefetch}")
        self.group = group
        self.consumer = consumer or f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self.job = job
        self._session = session
        self._calls = calls
        self._shelf = Shelf(prefetch)
        self._fetcher = Fetcher(session, calls, Member(job, group, self.consumer), self._shelf, expect)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._fetcher.run, name=f"rollout-reader-{group}", daemon=True)
        session.run(calls.register(group))
        self._fetcher.check_expected()
        self._thread.start()

    @property
    def notice(self) -> str:
        """What the job tells readers that wait; empty if all is well."""
        return self._fetcher.notice

    def __next__(self) -> Batch:
        while True:
            batch = self.next_within(BLOCK_S)
            if batch is not None:
                return batch
            if self.is_over:
                if self._shelf.outcome is not None:
                    raise self._shelf.outcome
                raise StopIteration

    def next_within(self, timeout_s: float) -> Batch | None:
        """The next batch; None if none comes within the time, or at the end (`is_over`)."""
        until = time.monotonic() + timeout_s
        while True:
            batch = self._shelf.take(max(0.0, until - time.monotonic()))
            if batch is None or not self._is_stale(batch):
                return batch

    @property
    def is_over(self) -> bool:
        """Whether nothing more comes: the job ended, reading failed, or this reader was closed."""
        return self._shelf.is_over

    def __iter__(self) -> Self:
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stops reading and gives what is not acked to the group's other readers, at once. Allowed more than once."""
        if self._closed.is_set():
            return
        self._closed.set()
        self._shelf.end()
        if threading.current_thread() is not self._thread:
            self._thread.join(BLOCK_S + 5)
        unread, held = self._shelf.clear()
        with suppress(StreamError):  # what cannot be given back now is taken over after claimIdleSeconds
            call = self._calls.renew
            if unread:  # nobody has had them: as if they had not been read
                self._session.run(call(self.group, self.consumer, unread, idle_ms=LEAVE_NOW_MS, deliveries=0))
            if held:
                self._session.run(call(self.group, self.consumer, held, idle_ms=LEAVE_NOW_MS))
            self._session.run(self._calls.leave(self.group, self.consumer))

    def _is_stale(self, batch: Batch) -> bool:
        """Drops a batch that is older than the job allows, where the readers are to see to it."""
        control = self._fetcher.control
        if control is None or control.limits.on_stale != "Drop" or control.limits.max_staleness is None:
            return False
        newest = self._session.run(newest_version(self._calls.keys))
        if newest - batch.header.policy_version[0] <= control.limits.max_staleness:
            return False
        self._session.run(self._calls.drop(self.group, batch.entry_id))
        self._shelf.forget(batch.entry_id)
        return True
