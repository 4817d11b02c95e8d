"""Appends encoded batches to a job's stream, exactly once each, within its limits.

Called by the worker's collector loop, once per batch, and by its heartbeat thread. Knows the server and the frame's
header; knows nothing of tensors (the codec does that) and never reads batches. It never waits for room: FULL and WAIT are
answers, and the worker decides how it waits. It does wait, with a bound, for a server that is away.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Final, Self

from redis import exceptions as driver

from rollout_contract.errors import LayoutMismatch, StateLost, WriterFenced
from rollout_contract.keys import JobKeys
from rollout_contract.messages import AppendReply, Heartbeat, Layout, Reservation
from rollout_contract.names import JobRef, Slot, WorkerId
from rollout_contract.wire import BatchHeader, BytesLike
from rollout_stream.calls import JobCalls
from rollout_stream.connection import ServerAddress, is_out_of_memory, translated
from rollout_stream.packing import CommandPacker, Pieces
from rollout_stream.scripts import script
from rollout_stream.session import Backoff, Retry, Session, Stop
from rollout_stream.spelling import parse_append

PATIENCE_S: Final = 120.0
"""How long a writer waits for a server that is away before it gives up."""


class StreamWriter(AbstractContextManager["StreamWriter"]):
    """One attempt's way into the stream. Reserve, make the batch, append, and again.

    `append` and `reserve` belong to one thread; `heartbeat` may be called from another. Errors of all methods:
    StreamUnavailable after the patience is over (or at once when `stop` is set), StateLost, StreamError.
    """

    def __init__(self, session: Session, job: JobRef, worker: WorkerId) -> None:
        """Joins the stream. WriterFenced if a newer attempt of the slot has joined before."""
        self.session = session
        self.job = job
        self.worker = worker
        self._calls = JobCalls(JobKeys.of(job))
        self._packer = CommandPacker()
        joined = session.run(self._calls.join(worker))
        if joined.is_fenced:
            raise WriterFenced(
                f"worker {worker} of job {job}: attempt {joined.known_attempt} has joined before"
            )
        self.next_sequence = joined.sequence + 1
        """The number that the next batch's header carries. Counts over all attempts of the slot, from 1."""
        self.server_time = joined.server_time
        """The server's clock at the join, in seconds since 1970."""

    @classmethod
    def connect(
        cls,
        url: str,
        *,
        job: JobRef,
        worker: WorkerId,
        password: str | None = None,
        ca_file: str | None = None,
        patience_s: float = PATIENCE_S,
        stop: Stop | None = None,
    ) -> StreamWriter:
        """A writer with connections of its own. `stop` ends waits for an absent server early."""
        address = ServerAddress.of(url, password=password, ca_file=ca_file)
        session = Session(address, backoff=Backoff(patience_s), stop=stop)
        try:
            return cls(session, job, worker)
        except BaseException:
            session.close()
            raise

    @staticmethod
    def next_attempt(session: Session, job: JobRef, slot: Slot) -> int:
        """The attempt that a new process of a slot has: 1 + the highest known, 0 if there was none."""
        return session.run(JobCalls(JobKeys.of(job)).next_attempt(slot))

    def __repr__(self) -> str:
        return f"StreamWriter({self.worker} of {self.job} at {self.session.address})"

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __enter__(self) -> Self:
        return self

    def close(self) -> None:
        """Closes the connections. An open reservation stays for the next attempt: see `release`."""
        self.session.close()

    def declare_layout(self, what: str, layout: Layout) -> None:
        """Says what the job's `data` or `weights` look like. LayoutMismatch names every difference to what others said."""
        held = self.session.run(self._calls.declare(what, layout))
        if differences := held.differences(layout):
            raise LayoutMismatch(what, differences)

    def reserve(self, want: int) -> Reservation:
        """May the next batch be made, and of how many frames (at most `want`)? Also brings the job's news.

        GRANTED: at least one frame. The same reservation is handed back until it is appended or released, to this
        attempt or the next.
        """
        return self.session.run(self._calls.reserve(self.worker, self.next_sequence, want))

    def append(
        self,
        header: BatchHeader,
        frame: BytesLike | Sequence[BytesLike],
        *,
        want: int = 0,
        heartbeat: Heartbeat | None = None,
        is_cut: bool = False,
    ) -> AppendReply:
        """Appends one frame and asks for the next `want` frames in the same step.

        `frame` is the whole frame, or the buffers that it consists of one after the other (`wire.gather`); it is sent
        from where it lies. OK, DUPLICATE and DROPPED: the batch is done with and `next_sequence` goes on. FULL: nothing
        was written, the same batch may be appended again. RESEED: nothing was written, because the seed epoch is no
        longer the header's; append the batch again with its trajectories ended and `is_cut`. FENCED, FINISHED: the batch
        is not wanted. Frames of the reservation that this batch did not use are granted again with the next one;
        `want=0` asks for no more than those.
        ValueError if the header's worker or sequence is not this writer's.
        """
        if header.worker != self.worker or header.sequence != self.next_sequence:
            raise ValueError(
                f"a frame of {header.worker}, sequence {header.sequence}, was given to the writer of {self.worker},"
                f" whose next sequence is {self.next_sequence}"
            )
        pieces = Pieces(frame if isinstance(frame, list | tuple) else (frame,))
        reply = self._append(header, pieces, want, heartbeat, is_cut=is_cut)
        if reply.status.value in ("ok", "duplicate", "dropped"):
            self.next_sequence += 1
        return reply

    def heartbeat(self, record: Heartbeat) -> Reservation:
        """Stores the worker's record and brings the news.

        The answer's status is FENCED, FINISHED, FULL or WAIT, and grants nothing. Works on a server without memory.
        """
        return self.session.run(self._calls.heartbeat(record))

    def release(self) -> int:
        """Gives the open reservation back, for the others, and ends this attempt. Frames given back."""
        return self.session.run(self._calls.release(self.worker.slot, self.worker.attempt))

    def _append(
        self, header: BatchHeader, pieces: Pieces, want: int, record: Heartbeat | None, *, is_cut: bool
    ) -> AppendReply:
        arguments = self._calls.append_args(header, len(pieces), want, record, is_cut=is_cut)
        chunks = self._packer.pack_all(
            (
                ("MULTI",),
                ("XADD", self._calls.keys.batches, "NOMKSTREAM", "*", "b", pieces),
                ("EVAL", script("append").text, *arguments),
                ("EXEC",),
            )
        )
        doing = f"appending batch {header.sequence} of {self.worker}"
        retry = Retry(self.session.backoff, self.session.stop)
        while True:
            # After a lost connection nobody knows whether the batch was written. It is sent again: the server knows.
            try:
                answer = self._transact(chunks)
                break
            except (driver.RedisError, OSError) as error:
                if is_out_of_memory(error):
                    return self.session.run(self._calls.refused(self.worker, record))
                if not retry.wait(error):
                    raise translated(error, self.session.address, doing) from error
        if isinstance(answer, driver.ResponseError):
            raise translated(answer, self.session.address, doing) from answer
        return parse_append(answer)

    def _transact(self, chunks: list[BytesLike]) -> Any:
        """Sends the four commands in one go; the script's answer, or what the server refused with."""
        pool = self.session.client.connection_pool
        connection: Any = pool.get_connection()
        try:
            connection.send_packed_command(chunks)
            refused: Exception | None = None
            for _ in range(3):
                try:
                    connection.read_response()
                except driver.ResponseError as error:
                    refused = refused or error
            try:
                done = connection.read_response()
            except driver.ResponseError as error:
                raise refused or error from error
            if done is None:
                raise driver.ConnectionError("the transaction was given up by the server")
            added, answer = done
            if isinstance(added, driver.ResponseError):
                raise added
            if added is None and not isinstance(answer, driver.ResponseError):
                raise StateLost(f"the stream of job {self.job} is gone from Redis at {self.session.address}")
            return answer
        except BaseException:
            connection.disconnect()
            raise
        finally:
            pool.release(connection)
