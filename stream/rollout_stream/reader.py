"""Reads a job's batches for one member of a consumer group, some of them ahead.

Called by `RolloutStream`. A thread fetches, checks and queues batches, keeps the claims of those that are held alive,
takes over what dead readers have left, and notices the end. The iterator belongs to the learner's thread. Knows nothing
of tensors: see `Batch.data`.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import threading
import time
import uuid
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

from rollout_contract.errors import FrameError, LayoutMismatch, RolloutFailed, StreamError, StreamUnavailable
from rollout_contract.messages import EndKind, Layout
from rollout_contract.names import JobRef
from rollout_contract.wire import Frame, decode, layout_of
from rollout_stream.batch import Batch
from rollout_stream.calls import JobCalls
from rollout_stream.feed import (
    MAX_DELIVERIES,
    Entry,
    fetch_commands,
    newest_version,
    read_commands,
    state_commands,
)
from rollout_stream.leaves import contents_of
from rollout_stream.progress import ControlState, control_commands
from rollout_stream.session import Session

logger = logging.getLogger("rollout_stream")

GROUP: Final = re.compile(r"[A-Za-z0-9][-A-Za-z0-9_.]{0,62}")
BLOCK_S: Final = 1.0
"""Longest single wait for an entry: after it, claims and the job's state are looked at."""
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
        self.notice = ""
        """What the job tells readers that wait; empty if all is well."""
        self.job = job
        self._session = session
        self._calls = calls
        self._prefetch = prefetch
        self._changed = threading.Condition()
        self._queue: deque[Batch] = deque()
        self._held: dict[
            str, None
        ] = {}  # in the order in which they came; the batches themselves belong to the learner
        self._outcome: BaseException | None = None
        self._is_over = False
        self._has_seen_end = False
        self._closed = threading.Event()
        self._layout = expect
        self._expect = expect
        self._control: ControlState | None = None
        self._next_claim = 0.0
        self._next_renewal = 0.0
        self._thread = threading.Thread(target=self._run, name=f"rollout-reader-{group}", daemon=True)
        session.run(calls.register(group))
        self._check_expected()
        self._thread.start()

    # --- the learner's side

    def __next__(self) -> Batch:
        while True:
            batch = self.next_within(BLOCK_S)
            if batch is not None:
                return batch
            if self.is_over:
                if self._outcome is not None:
                    raise self._outcome
                raise StopIteration

    def next_within(self, timeout_s: float) -> Batch | None:
        """The next batch; None if none comes within the time, or at the end (`is_over`)."""
        until = time.monotonic() + timeout_s
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._queue or self._is_over, max(0.0, until - time.monotonic())
                )
                if not self._queue:
                    return None
                batch = self._queue.popleft()
                self._changed.notify_all()
            if not self._is_stale(batch):
                return batch

    @property
    def is_over(self) -> bool:
        """Whether nothing more comes: the job ended, reading failed, or this reader was closed."""
        with self._changed:
            return self._is_over and not self._queue

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
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
        if threading.current_thread() is not self._thread:
            self._thread.join(BLOCK_S + 5)
        with self._changed:
            unread = [batch.entry_id for batch in self._queue]
            self._queue.clear()
            held = [entry for entry in self._held if entry not in set(unread)]
            self._held.clear()
        with suppress(StreamError):  # what cannot be given back now is taken over after claimIdleSeconds
            call = self._calls.renew
            if unread:  # nobody has had them: as if they had not been read
                self._session.run(call(self.group, self.consumer, unread, idle_ms=LEAVE_NOW_MS, deliveries=0))
            if held:
                self._session.run(call(self.group, self.consumer, held, idle_ms=LEAVE_NOW_MS))
            self._session.run(self._calls.leave(self.group, self.consumer))

    def _ack(self, batch: Batch) -> None:
        self._session.run(self._calls.ack(self.group, [batch.entry_id]))
        with self._changed:
            self._held.pop(batch.entry_id, None)
            self._changed.notify_all()

    def _is_stale(self, batch: Batch) -> bool:
        """Drops a batch that is older than the job allows, where the readers are to see to it."""
        control = self._control
        if control is None or control.limits.on_stale != "Drop" or control.limits.max_staleness is None:
            return False
        newest = self._session.run(newest_version(self._calls.keys))
        if newest - batch.header.policy_version[0] <= control.limits.max_staleness:
            return False
        self._session.run(self._calls.drop(self.group, batch.entry_id))
        with self._changed:
            self._held.pop(batch.entry_id, None)
        return True

    # --- the thread's side

    def _run(self) -> None:
        try:
            while not self._closed.is_set() and not self._is_over:
                self._turn()
        except BaseException as error:  # it is raised in the learner's thread, whatever it is
            self._finish(error)

    def _turn(self) -> None:
        """One round: renew and take over what is due, then wait for new entries, or for room."""
        claim_idle = self._refresh_control().limits.claim_idle_seconds
        now = time.monotonic()
        if now >= self._next_renewal:
            self._renew()
            self._next_renewal = now + claim_idle / 4
        room = self._room()
        if room and now >= self._next_claim:
            self._next_claim = now + max(0.5, claim_idle / 4)
            room -= self._take_over(int(claim_idle * 1000), room)
        slice_s = min(BLOCK_S, max(0.05, claim_idle / 8))
        if not room:
            with self._changed:
                self._changed.wait_for(lambda: self._room() > 0 or self._closed.is_set(), timeout=slice_s)
            return
        # Once the end was seen, the stream holds all that will ever come: one more look tells whether that is read.
        entries = self._read(room, 0.001 if self._has_seen_end else slice_s)
        for entry in entries:
            self._accept(entry)
        if not entries:
            self._look_for_end()

    def _room(self) -> int:
        return self._prefetch - len(self._queue)

    def _refresh_control(self) -> ControlState:
        now = time.monotonic()
        if self._control is None or now >= self._control_until:
            self._control = self._session.run(control_commands(self._calls.keys))
            self._control_until = now + BLOCK_S
            if self._control.notice != self.notice:
                self.notice = self._control.notice
                if self.notice:
                    logger.warning("job %s: %s", self.job, self.notice)
        return self._control

    _control_until = 0.0

    def _read(self, room: int, block_s: float) -> list[Entry]:
        call = read_commands(
            self._calls.keys, self.group, self.consumer, count=room, block_ms=int(block_s * 1000)
        )
        try:
            return self._session.run(call)
        except StreamUnavailable as error:
            # The answer may have been lost on its way: what it held is pending for this consumer and is fetched again.
            logger.warning("%s; trying again", error)
            self._control_until = self._next_claim = self._next_renewal = 0.0
            return []

    def _renew(self) -> None:
        with self._changed:
            entries = list(self._held)
        if not entries:
            return
        lost = self._session.run(self._calls.renew(self.group, self.consumer, entries))
        if not lost:
            return
        with self._changed:
            # Another reader has taken them over while this one was away: what is not handed out yet is its now.
            for entry in lost:
                self._held.pop(entry, None)
            kept = [batch for batch in self._queue if batch.entry_id not in lost]
            self._queue.clear()
            self._queue.extend(kept)

    def _take_over(self, idle_ms: int, room: int) -> int:
        with self._changed:
            held = list(self._held)
        claim = self._calls.claim(self.group, self.consumer, idle_ms=idle_ms, most=room, held=held)
        taken = self._session.run(claim)
        for entry_id, deliveries in taken:
            entries = self._session.run(fetch_commands(self._calls.keys, entry_id, deliveries))
            for entry in entries:
                self._accept(entry)
            if not entries:  # it went away while it was pending
                self._session.run(self._calls.ack(self.group, [entry_id]))
        return len(taken)

    def _accept(self, entry: Entry) -> None:
        """Checks an entry and queues it, or sets it aside."""
        if entry.is_marker:
            self._session.run(self._calls.ack(self.group, [entry.entry_id]))
            self._has_seen_end = True
            return
        if entry.deliveries > MAX_DELIVERIES:
            self._set_aside(entry, f"delivered {entry.deliveries} times and never acked")
            return
        try:
            frame = decode(entry.payload)
            self._check_layout(frame)
            contents = contents_of(frame)
        except FrameError as error:
            self._set_aside(entry, str(error))
            return
        batch = Batch(frame, contents, entry_id=entry.entry_id, deliveries=entry.deliveries, ack=self._ack)
        with self._changed:
            self._held[entry.entry_id] = None
            self._queue.append(batch)
            self._changed.notify_all()

    def _set_aside(self, entry: Entry, reason: str) -> None:
        logger.warning("job %s: entry %s is set aside: %s", self.job, entry.entry_id, reason)
        size, head = len(entry.payload), bytes(entry.payload[:256])
        self._session.run(self._calls.bad(self.group, entry.entry_id, reason=reason, size=size, head=head))

    def _check_expected(self) -> None:
        declared = self._session.run(self._calls.layout("data"))
        if (
            declared is not None
            and self._expect is not None
            and (lines := self._expect.differences(declared))
        ):
            raise LayoutMismatch("data", lines)
        self._layout = declared or self._expect

    def _check_layout(self, frame: Frame) -> None:
        """A batch that looks different from the job's others goes to nobody."""
        found = layout_of(frame.header)
        if self._layout is None:
            self._layout = self._session.run(self._calls.layout("data")) or found
        lines = self._layout.differences(found)
        if lines and self._expect is not None:
            raise LayoutMismatch("data", lines)
        if lines:
            raise FrameError("its layout is not the job's: " + "; ".join(lines))

    def _look_for_end(self) -> None:
        state = self._session.run(state_commands(self._calls.keys, self.group, self.consumer))
        if state.end is None or state.end.kind == EndKind.SUSPENDED:
            self._has_seen_end = False
            return
        if not self._has_seen_end:
            self._has_seen_end = True
            return
        with self._changed:
            if self._queue or state.pending > state.own_pending or state.own_pending > len(self._held):
                # Ours wait to be handed out, or another reader, alive or dead, has some: acks or claims will end it.
                self._changed.wait(BLOCK_S / 4)
                return
        error = None
        if state.end.kind == EndKind.FAILED:
            text = ": ".join(part for part in (state.end.reason, state.end.message) if part)
            error = RolloutFailed(f"job {self.job} failed: {text}", reason=state.end.reason)
        self._finish(error)

    def _finish(self, error: BaseException | None) -> None:
        with self._changed:
            self._outcome = error
            self._is_over = True
            self._changed.notify_all()
