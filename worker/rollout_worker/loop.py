"""The worker's loop: asks `pacing` what to do, does it, and tells the stream.

Built by `main`. Everything that it acts on is handed to it: a writer, a collector, a loader of weights. Steady state: one
call to the server per batch, which appends it and brings the next reservation and all news.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Protocol, assert_never

from rollout_contract import wire
from rollout_contract.errors import WeightsRejected, WriterFenced
from rollout_contract.messages import AppendReply, AppendStatus, Heartbeat, Reservation, WorkerState
from rollout_contract.podenv import WorkerDocument
from rollout_stream.writer import StreamWriter
from rollout_worker import pacing
from rollout_worker.asking import Intervals
from rollout_worker.collectors.sync import Batch, Stopped, SyncCollector
from rollout_worker.framing import Framer, Stamp
from rollout_worker.health import Vitals
from rollout_worker.journal import Journal
from rollout_worker.shutdown import StopRequest
from rollout_worker.standing import Standing

log = logging.getLogger(__name__)

_RATE_MEMORY = 0.8
"""How much of the old figure stays in the moving average of the rate, per batch."""


class Loader(Protocol):
    """Loads published weights into the policy, whole or not at all."""

    def load(self, version: int) -> None:
        """Fetch, check and load a version. WeightsRejected if it does not fit; the policy is then as before."""


class Seeder(Protocol):
    """Derives and sets every seed of the worker."""

    def __call__(self, seed: int, seed_epoch: int) -> list[int]:
        """Seed the policy's randomness for an epoch; the seeds of the environments."""


class WorkerLoop:
    """Makes batches until the job's frames are complete, or the worker is asked to stop."""

    def __init__(
        self,
        document: WorkerDocument,
        *,
        writer: StreamWriter,
        collector: SyncCollector,
        loader: Loader,
        seeder: Seeder,
        vitals: Vitals,
        stop: StopRequest,
        beat: Callable[[Standing], Heartbeat],
        restarts: Callable[[], int] = lambda: 0,
        appended_before: int = 0,
    ) -> None:
        """`restarts` counts environments that were replaced; `appended_before` are the frames that earlier attempts of the
        slot have appended."""
        self.document = document
        self.standing = Standing()
        self.journal = Journal(document, lambda: self.standing, restarts)
        self._writer = writer
        self._collector = collector
        self._loader = loader
        self._seeder = seeder
        self._vitals = vitals
        self._stop = stop
        self._beat = beat
        self._rules = pacing.Rules.of(document.weights, document.determinism)
        share = document.strict_share
        self._share = share.total_frames if share is not None else None
        self._random_share = share.init_random_frames if share is not None else None
        self._appended = appended_before
        self._has_open_trajectories = False
        self._framer = Framer(document)
        self._batch_started = time.monotonic()

    def run(self) -> bool:
        """Work. True once the job's frames are complete, False if the worker was asked to stop before.

        Raises WriterFenced, and whatever environments, policy and stream raise.
        """
        news = self._writer.reserve(self._want())
        intervals = Intervals()
        while not self._stop.requested:
            match self._next_move(news):
                case pacing.Stop():
                    self._turn(WorkerState.FINISHED)
                    return True
                case pacing.Fenced():
                    raise WriterFenced(f"a newer attempt of worker {self.document.worker.slot} has written")
                case pacing.Wait(state):
                    self._idle(state)
                    self._stop.wait(intervals.next_s())
                    news = self._writer.reserve(self._want())
                    continue
                case pacing.Reseed(seed, seed_epoch):
                    self._reseed(seed, seed_epoch)
                case pacing.Load(version):
                    self._load(version)
                case pacing.Collect(frames, random):
                    answer = self._make_batch(frames, random)
                    if answer is None:
                        break
                    news = answer
                case move:
                    assert_never(move)
            intervals = Intervals()
        self._turn(WorkerState.DRAINING)
        return False

    def _next_move(self, news: Reservation) -> pacing.Move:
        standing = pacing.Standing(
            sequence=self._writer.next_sequence,
            loaded_version=self.standing.loaded_version,
            rejected_version=self.standing.rejected_version,
            seed_epoch=self.standing.seed_epoch,
            has_open_trajectories=self._has_open_trajectories,
        )
        return pacing.next_move(news, standing, self._rules)

    def _want(self, pending: int = 0) -> int:
        """Frames of the next batch: a whole one, or what is left of this worker's share once `pending` are appended.

        0 once the share is used up: the stream then answers WAIT until the whole job is complete.
        """
        whole = self._collector.frames_per_batch
        return whole if self._share is None else max(0, min(whole, self._share - self._appended - pending))

    def _make_batch(self, frames: int, random: int) -> Reservation | None:
        """Collect, append, and the news that came back; None if the worker was asked to stop meanwhile."""
        self._turn(WorkerState.COLLECTING)
        self._batch_started = time.monotonic()
        try:
            batch = self._collector.collect(frames, random=self._random_of(random))
        except Stopped:
            log.info("dropped an unfinished batch")
            return None
        reply = self._append(batch)
        if reply is None:
            log.info("dropped a batch that the full stream did not take")
            return None
        self._count(batch, reply)
        return reply.next

    def _random_of(self, granted: int) -> int:
        if self._random_share is None:
            return granted
        return max(0, self._random_share - self._appended)

    def _append(self, batch: Batch) -> AppendReply | None:
        """Append a batch, in as many frames as it takes; None if a stop was requested while the stream was full."""
        self._has_open_trajectories = True
        stamp = Stamp(self.standing.loaded_version, self.standing.seed_epoch)
        is_cut, left, reply = False, batch.frames, None
        parts = self._framer.frames(batch, stamp, sequence=self._writer.next_sequence)
        while (part := next(parts, None)) is not None:
            header, frame = part
            want = self._want(left) if header.frames == left else left - header.frames
            reply = self._append_frame(header, frame, want=want, is_cut=is_cut)
            if reply is None:
                return None
            if reply.status is AppendStatus.RESEED:
                # Nothing of this frame was written: its trajectories end here, with the frames that are still to come.
                batch, is_cut = self._collector.cut(), True
                self._has_open_trajectories = False
                parts = _from_part(self._framer, batch, stamp, header)
                continue
            left -= header.frames
        return reply

    def _append_frame(
        self, header: wire.BatchHeader, frame: list[wire.BytesLike], *, want: int, is_cut: bool
    ) -> AppendReply | None:
        intervals = Intervals()
        while True:
            beat = self._beat(self.standing)
            reply = self._writer.append(header, frame, want=want, heartbeat=beat, is_cut=is_cut)
            if reply.status is not AppendStatus.FULL:
                return reply
            self._turn(WorkerState.BACKPRESSURED)
            if self._stop.wait(intervals.next_s()):
                return None

    def _count(self, batch: Batch, reply: AppendReply) -> None:
        if reply.status in (AppendStatus.OK, AppendStatus.DUPLICATE, AppendStatus.DROPPED):
            self._appended += batch.frames
        if reply.status is AppendStatus.OK:
            seconds = time.monotonic() - self._batch_started
            rate = batch.frames / max(seconds, 1e-9)
            before = self.standing.frames_per_second
            self.standing.batches += 1
            self.standing.frames += batch.frames
            if self.standing.batches == 1:
                self.journal.first_batch(seconds)
            self.standing.frames_per_second = (
                _RATE_MEMORY * before + (1 - _RATE_MEMORY) * rate if before else rate
            )

    def _reseed(self, seed: int, seed_epoch: int) -> None:
        self._collector.reset(self._seeder(seed, seed_epoch))
        if self.standing.seed_epoch >= 0:
            self.journal.seeded(seed_epoch)
        self.standing.seed_epoch = seed_epoch

    def _load(self, version: int) -> None:
        started = time.monotonic()
        try:
            self._loader.load(version)
        except WeightsRejected as error:
            if self._rules.is_strict:
                raise
            log.error(
                "policy version %d was not loaded, version %d stays: %s",
                version,
                self.standing.loaded_version,
                error,
            )
            self.standing = replace(self.standing, rejected_version=version, last_error=str(error)[:512])
        else:
            self.standing.loaded_version = version
            self.journal.loaded(version, time.monotonic() - started)

    def _idle(self, state: WorkerState) -> None:
        """Wait in this state; once the worker's share is used up, readers of rounds must know at once that no more comes."""
        if self._share is not None and self._appended >= self._share:
            if self.standing.state is not WorkerState.FINISHED:
                self._turn(WorkerState.FINISHED)
                self._writer.heartbeat(self._beat(self.standing))
            state = WorkerState.FINISHED
        self._turn(state)

    def _turn(self, state: WorkerState) -> None:
        if state is not self.standing.state:
            self.journal.turned(state)
        self.standing.state = state
        self._vitals.turn(state)


def _from_part(
    framer: Framer, batch: Batch, stamp: Stamp, header: wire.BatchHeader
) -> Iterator[tuple[wire.BatchHeader, list[wire.BytesLike]]]:
    """The batch's frames again, from the one on that has this header's part number."""
    first_sequence = header.sequence - header.part[0]
    return (
        part
        for part in framer.frames(batch, stamp, sequence=first_sequence)
        if part[0].sequence >= header.sequence
    )
