"""Fetches a reader's batches ahead of the learner: the loop of its thread.

Reads, checks and shelves batches, keeps the claims of those that are held alive, takes over what dead readers have left,
and notices the end. Run by `BatchReader`.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import Final

from rollout_contract.errors import FrameError, LayoutMismatch, RolloutFailed, StreamUnavailable
from rollout_contract.messages import EndKind, Layout
from rollout_contract.names import JobRef
from rollout_contract.wire import Frame, decode, layout_of
from rollout_stream.batch import Batch
from rollout_stream.calls import JobCalls
from rollout_stream.feed import (
    MAX_DELIVERIES,
    Entry,
    fetch_commands,
    read_commands,
    state_commands,
)
from rollout_stream.leaves import contents_of
from rollout_stream.progress import ControlState
from rollout_stream.progress_calls import control_commands
from rollout_stream.session import Session
from rollout_stream.shelf import Shelf

logger = logging.getLogger("rollout_stream")

BLOCK_S: Final = 1.0
"""Longest single wait for an entry: after it, claims and the job's state are looked at."""


@dataclass(frozen=True, slots=True)
class Member:
    """Who reads: a consumer of a group of a job."""

    job: JobRef
    group: str
    consumer: str


class Fetcher:
    """Fills a shelf until the job has ended, reading failed, or the shelf was ended. `expect` is what every batch must look
    like, beside what the job declares.
    """

    def __init__(
        self, session: Session, calls: JobCalls, member: Member, shelf: Shelf, expect: Layout | None
    ) -> None:
        self.notice = ""
        """What the job tells readers that wait; empty if all is well."""
        self.control: ControlState | None = None
        """The job's control as it was seen last."""
        self._session, self._calls, self._shelf = session, calls, shelf
        self._job, self._group, self._consumer = member.job, member.group, member.consumer
        self._expect = self._layout = expect
        self._has_seen_end = False
        self._control_until = self._next_claim = self._next_renewal = 0.0

    def check_expected(self) -> None:
        """LayoutMismatch where the job declares another layout than is expected."""
        declared = self._session.run(self._calls.layout("data"))
        if (
            declared is not None
            and self._expect is not None
            and (lines := self._expect.differences(declared))
        ):
            raise LayoutMismatch("data", lines)
        self._layout = declared or self._expect

    def run(self) -> None:
        """The thread's target."""
        try:
            while not self._shelf.has_ended:
                self._turn()
        except BaseException as error:  # it is raised in the learner's thread, whatever it is
            self._shelf.fail(error)

    def _turn(self) -> None:
        """One round: renew and take over what is due, then wait for new entries, or for room."""
        claim_idle = self._refresh_control().limits.claim_idle_seconds
        now = time.monotonic()
        if now >= self._next_renewal:
            self._renew()
            self._next_renewal = now + claim_idle / 4
        room = self._shelf.room
        if room and now >= self._next_claim:
            self._next_claim = now + max(0.5, claim_idle / 4)
            room -= self._take_over(int(claim_idle * 1000), room)
        slice_s = min(BLOCK_S, max(0.05, claim_idle / 8))
        if not room:
            self._shelf.wait_for_room(slice_s)
            return
        # Once the end was seen, the stream holds all that will ever come: one more look tells whether that is read.
        entries = self._read(room, 0.001 if self._has_seen_end else slice_s)
        for entry in entries:
            self._accept(entry)
        if not entries:
            self._look_for_end()

    def _refresh_control(self) -> ControlState:
        now = time.monotonic()
        if self.control is None or now >= self._control_until:
            self.control = self._session.run(control_commands(self._calls.keys))
            self._control_until = now + BLOCK_S
            if self.control.notice != self.notice:
                self.notice = self.control.notice
                if self.notice:
                    logger.warning("job %s: %s", self._job, self.notice)
        return self.control

    def _read(self, room: int, block_s: float) -> list[Entry]:
        call = read_commands(
            self._calls.keys, self._group, self._consumer, count=room, block_ms=int(block_s * 1000)
        )
        try:
            return self._session.run(call)
        except StreamUnavailable as error:
            # The answer may have been lost on its way: what it held is pending for this consumer and is fetched again.
            logger.warning("%s; trying again", error)
            self._control_until = self._next_claim = self._next_renewal = 0.0
            return []

    def _renew(self) -> None:
        entries = self._shelf.held()
        if not entries:
            return
        lost = self._session.run(self._calls.renew(self._group, self._consumer, entries))
        if lost:  # another reader has taken them over while this one was away
            self._shelf.lose(lost)

    def _take_over(self, idle_ms: int, room: int) -> int:
        held = self._shelf.held()
        claim = self._calls.claim(self._group, self._consumer, idle_ms=idle_ms, most=room, held=held)
        taken = self._session.run(claim)
        for entry_id, deliveries in taken:
            entries = self._session.run(fetch_commands(self._calls.keys, entry_id, deliveries))
            for entry in entries:
                self._accept(entry)
            if not entries:  # it went away while it was pending
                self._session.run(self._calls.ack(self._group, [entry_id]))
        return len(taken)

    def _accept(self, entry: Entry) -> None:
        """Checks an entry and puts it on the shelf, or sets it aside."""
        if entry.is_marker:
            self._session.run(self._calls.ack(self._group, [entry.entry_id]))
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
        self._shelf.put(
            Batch(frame, contents, entry_id=entry.entry_id, deliveries=entry.deliveries, ack=self._ack)
        )

    def _ack(self, batch: Batch) -> None:
        """Called in the learner's thread."""
        self._session.run(self._calls.ack(self._group, [batch.entry_id]))
        self._shelf.forget(batch.entry_id)

    def _set_aside(self, entry: Entry, reason: str) -> None:
        logger.warning("job %s: entry %s is set aside: %s", self._job, entry.entry_id, reason)
        size, head = len(entry.payload), bytes(entry.payload[:256])
        self._session.run(self._calls.bad(self._group, entry.entry_id, reason=reason, size=size, head=head))

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
        state = self._session.run(state_commands(self._calls.keys, self._group, self._consumer))
        if state.end is None or state.end.kind == EndKind.SUSPENDED:
            self._has_seen_end = False
            return
        if not self._has_seen_end:
            self._has_seen_end = True
            return
        # Ours wait to be handed out, or another reader, alive or dead, has some: acks or claims will end it.
        if not self._shelf.is_settled(state.pending, state.own_pending, BLOCK_S / 4):
            return
        if state.end.kind == EndKind.FAILED:
            message = f"job {self._job} failed: {state.end.text}"
            self._shelf.fail(RolloutFailed(message, reason=state.end.reason))
        self._shelf.end()
