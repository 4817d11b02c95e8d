"""What a worker tells of itself in its log, for whoever reads `kubectl logs`: start, progress, waits, versions, end.

Costs nothing per batch: the loop counts in its `Standing` anyway, and a thread looks at that now and then. Only changes of
what the worker does are handed over as they happen. Never says more of the job than names and numbers.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from rollout_contract.messages import WorkerState
from rollout_contract.podenv import WorkerDocument
from rollout_worker.beside import beside
from rollout_worker.standing import Standing

log = logging.getLogger("rollout_worker")

LOOK_EVERY_S = 1.0
REPORT_EVERY_S = 30.0
MOST_REPORT_S = 600.0
"""While nothing is made, reports come half as often each time, down to this."""
WAIT_TOLD_AFTER_S = 2.0
"""Shorter waits are part of the ordinary course of things; the next report has their sum."""
VERSION_TOLD_EVERY_S = 10.0
"""A learner may publish several times a second."""

WAITS: Mapping[WorkerState, str] = {
    WorkerState.BACKPRESSURED: "the stream is full, its readers are behind",
    WorkerState.PAUSED: "nothing is to be made now: the job is paused, others have what is left of its frames, or "
    "the learner has to ack first (maxStaleness)",
    WorkerState.WAITING_FOR_WEIGHTS: "the policy version that is needed is not published yet",
    WorkerState.FINISHED: "its share is done, the job's other workers are not",
}
"""States in which a worker makes nothing, and why."""


@dataclass(slots=True)
class _Wait:
    """A wait that goes on."""

    state: WorkerState
    since: float
    is_told: bool = False


@dataclass(slots=True)
class _Mark:
    """Where the last report was."""

    time: float
    batches: int = 0
    frames: int = 0
    waited_s: float = 0.0
    restarts: int = 0


@dataclass
class Journal:
    """One attempt's log. `restarts` counts environments that were replaced so far; asked for now and then."""

    document: WorkerDocument
    standing: Callable[[], Standing]
    restarts: Callable[[], int] = lambda: 0
    clock: Callable[[], float] = time.monotonic
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        now = self.clock()
        self._began = now
        self._mark = _Mark(now)
        self._every_s = REPORT_EVERY_S
        self._wait: _Wait | None = None
        self._waited_s = 0.0
        self._told: dict[WorkerState, float] = {}
        self._version_told = float("-inf")

    # --- as it happens, in the loop's thread

    def turned(self, state: WorkerState) -> None:
        """The worker does something else now. Called when it changes only."""
        with self._lock:
            now, wait = self.clock(), self._wait
            self._wait = _Wait(state, now) if state in WAITS else None
            if wait is not None:
                self._waited_s += now - wait.since
        if wait is not None and wait.is_told and state is WorkerState.COLLECTING:
            self._say(f"goes on after {now - wait.since:.1f} s", event="resumed", state=wait.state.value)

    def loaded(self, version: int, seconds: float) -> None:
        """A policy version was loaded."""
        now = self.clock()
        is_due = now - self._version_told >= VERSION_TOLD_EVERY_S
        self._version_told = now if is_due else self._version_told
        text = f"loaded policy version {version} in {seconds:.2f} s"
        self._say(
            text, level=logging.INFO if is_due else logging.DEBUG, event="loaded", policy_version=version
        )

    def first_batch(self, seconds: float) -> None:
        """The first batch is in the stream."""
        frames = self.standing().frames
        text = f"first batch: {frames:,} frames, made in {seconds:.1f} s"
        self._say(text, event="first batch", frames=frames)

    def seeded(self, seed_epoch: int) -> None:
        """Every environment was reset with the seeds of an epoch."""
        self._say(f"environments are seeded for epoch {seed_epoch}", event="seeded", seed_epoch=seed_epoch)

    def ended(self, reason: str) -> None:
        """The worker leaves its loop: why, and what it made in all."""
        now, standing = self.clock(), self.standing()
        seconds = max(now - self._began, 1e-9)
        self._say(
            f"{reason}; made {_counted(standing.batches, 'batch', 'batches')}, {standing.frames:,} frames in "
            f"{seconds:.0f} s ({standing.frames / seconds:,.0f} frames/s), policy version {standing.loaded_version}"
            f"{self._waits_and_restarts(self._waited(now), self.restarts())}",
            event="ended",
            batches=standing.batches,
            frames=standing.frames,
            policy_version=standing.loaded_version,
        )

    # --- now and then, in a thread of its own

    def kept(self) -> AbstractContextManager[None]:
        """Look and report until the block ends."""
        return beside(self.look, name="journal", pause_s=lambda: LOOK_EVERY_S)

    def look(self) -> None:
        """Tell of a wait that lasts, and report if it is time."""
        now = self.clock()
        self._tell_wait(now)
        if now - self._mark.time >= self._every_s:
            self._report(now)

    def _tell_wait(self, now: float) -> None:
        with self._lock:
            wait = self._wait
            if wait is None or wait.is_told or now - wait.since < WAIT_TOLD_AFTER_S:
                return
            if now - self._told.get(wait.state, float("-inf")) < REPORT_EVERY_S:
                return
            wait.is_told = True
            self._told[wait.state] = now
        self._say(f"waits: {WAITS[wait.state]}", event="waits", state=wait.state.value)

    def _report(self, now: float) -> None:
        before, standing, restarts = self._mark, self.standing(), self.restarts()
        self._mark = after = _Mark(now, standing.batches, standing.frames, self._waited(now), restarts)
        batches, frames = after.batches - before.batches, after.frames - before.frames
        seconds = now - before.time
        self._every_s = REPORT_EVERY_S if batches else min(2 * self._every_s, MOST_REPORT_S)
        extra = self._waits_and_restarts(after.waited_s - before.waited_s, restarts - before.restarts)
        self._say(
            f"{_counted(batches, 'batch', 'batches')}, {frames:,} frames in {seconds:.0f} s "
            f"({frames / seconds:,.0f} frames/s), {standing.frames:,} frames in all; {standing.state.value}, "
            f"policy version {standing.loaded_version}{extra}",
            event="progress",
            batches=batches,
            frames=frames,
            frames_per_second=round(frames / seconds, 1),
            policy_version=standing.loaded_version,
            waited_seconds=round(after.waited_s - before.waited_s, 1),
            restarts=restarts,
        )

    def _waited(self, now: float) -> float:
        with self._lock:
            return self._waited_s + (now - self._wait.since if self._wait is not None else 0.0)

    @staticmethod
    def _waits_and_restarts(waited_s: float, restarts: int) -> str:
        waited = f", waited {waited_s:.1f} s" if waited_s >= 0.1 else ""
        replaced = f", replaced {_counted(restarts, 'environment', 'environments')}" if restarts else ""
        return waited + replaced

    def _say(self, text: str, *, level: int = logging.INFO, **fields: object) -> None:
        log.log(level, "worker %s %s", self.document.worker, text, extra={"fields": fields})


def start_words(document: WorkerDocument) -> str:
    """What a worker is about to be: names and numbers of its part of the job."""
    env = document.env
    where = "this process" if not document.processes else _counted(document.processes, "process", "processes")
    return (
        f"worker {document.worker} of job {document.namespace}/{document.name} starts: "
        f"{_counted(env.envs_per_worker, 'environment', 'environments')} {env.entrypoint} in {where}, policy "
        f"{document.policy.entrypoint} on {document.device.value}, {document.collector.mode.value} batches of "
        f"{document.collector.frames_per_batch:,} frames, stream {document.redis.url}"
    )


def _counted(number: int, one: str, many: str) -> str:
    return f"{number:,} {one if number == 1 else many}"
