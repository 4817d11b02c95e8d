"""The streams of jobs on Redis, through `rollout_stream.aio`: one session per server, one round trip per look.

Holds connections and two caches (what a server said of itself, when keys were renewed); losing them costs a round trip.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from rollout_contract.errors import RolloutError, StateLost, StreamError
from rollout_contract.keys import JobKeys
from rollout_contract.messages import EndKind, EndMarker
from rollout_contract.names import Slot, WorkerId
from rollout_contract.spec import CleanupPolicy, RolloutJob
from rollout_operator import shares
from rollout_operator.cluster import JobKey
from rollout_operator.observed import StreamFacts, StreamTrouble
from rollout_operator.settings import OperatorSettings
from rollout_operator.troubles import trouble_of, trouble_of_server
from rollout_stream.aio import AsyncSession, Control, check_server
from rollout_stream.connection import ServerAddress
from rollout_stream.progress import Progress
from rollout_stream.session import Backoff

PATIENCE_S = 3.0
"""How long one call waits for a server that is away; the queue comes back to the job anyway."""
SERVER_CHECK_S = 30.0
"""What a server said of itself is believed for so long."""
MAX_TOUCH_S = 600.0
JOB_DELETED: Final = "JobDeleted"
"""Why the stream of a job ends whose object is gone: the reason that its readers are told."""

log = logging.getLogger(__name__)


class _Going(NamedTuple):
    """A stream without an end, and what is needed to end it when its job is no longer there to be asked."""

    control: Control
    key_ttl_s: float | None
    """None: the keys are to stay."""


class RedisStreams:
    """`Streams` over real servers. `reach` says where a job's server is and with which password."""

    def __init__(
        self,
        settings: OperatorSettings,
        *,
        reach: Callable[[RolloutJob], ServerAddress],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._reach = reach
        self._clock = clock
        self._sessions: dict[ServerAddress, AsyncSession] = {}
        self._checked: dict[ServerAddress, tuple[float, StreamTrouble | None]] = {}
        self._touched: dict[JobKey, tuple[str, float]] = {}
        self._withdrawn: dict[JobKey, set[WorkerId]] = {}
        """Attempts that were announced and are not known to exist. Losing them leaves a gap in the numbers, no more."""
        self._going: dict[JobKey, _Going] = {}
        """Losing it leaves the readers of jobs deleted meanwhile waiting until the keys expire."""

    async def look(self, job: RolloutJob) -> StreamFacts | StreamTrouble:
        """See `Streams`."""
        try:
            control = self._control(job)
            progress = await control.read_progress()
            await self._keep_alive(job)
        except StateLost:
            return await self._look_unopened(job)
        except StreamError as error:
            return trouble_of(error)
        await self._note_going(job, control, progress.control.end)
        return facts_of(job, progress, withdrawn=self._withdrawn.get(_key(job), ()))

    async def open(self, job: RolloutJob) -> None:
        """See `Streams`."""
        await self._control(job).open_job(shares.stream_settings(job))

    async def tune(self, job: RolloutJob) -> None:
        """See `Streams`."""
        control, wanted = self._control(job), shares.stream_settings(job)
        await control.set_limits(wanted.limits)
        await control.set_total(wanted.total_frames)
        await control.set_random(wanted.init_random_frames)
        await control.set_groups(wanted.groups)

    async def finish(self, job: RolloutJob, marker: EndMarker) -> None:
        """See `Streams`. After the end, keys live on for `keyTTLSecondsAfterFinished`, unless they are to stay."""
        control, kind = self._control(job), EndKind(marker.kind)
        await control.finish(kind, reason=marker.reason, message=marker.message)
        redis = job.spec.redis
        if kind is not EndKind.SUSPENDED and redis.cleanup_policy is not CleanupPolicy.RETAIN:
            await control.expire(redis.key_ttl_seconds_after_finished)

    async def reopen(self, job: RolloutJob) -> None:
        """See `Streams`."""
        await self._control(job).reopen()

    async def release(self, job: RolloutJob, worker: WorkerId) -> None:
        """See `Streams`."""
        await self._control(job).release(worker)

    async def announce(self, job: RolloutJob, workers: Sequence[WorkerId]) -> None:
        """See `Streams`."""
        await self._control(job).announce(workers)
        self.confirm(job, workers)

    def withdraw(self, job: RolloutJob, workers: Sequence[WorkerId]) -> None:
        """See `Streams`."""
        if workers:
            self._withdrawn.setdefault(_key(job), set()).update(workers)

    def confirm(self, job: RolloutJob, workers: Iterable[WorkerId]) -> None:
        """See `Streams`."""
        withdrawn = self._withdrawn.get(_key(job))
        if withdrawn:
            withdrawn.difference_update(workers)

    async def delete(self, job: RolloutJob) -> None:
        """Remove every key of the job: `cleanupPolicy: Delete`. StreamError if the server does not do it."""
        self._going.pop(_key(job), None)
        await self._control(job).delete()

    async def forget(self, key: JobKey) -> None:
        """See `Streams`."""
        self._touched.pop(key, None)
        self._withdrawn.pop(key, None)
        going = self._going.pop(key, None)
        if going is not None:
            await self._end_deleted(going)

    async def close(self) -> None:
        """See `Streams`."""
        sessions, self._sessions = self._sessions, {}
        for session in sessions.values():
            await session.close()

    def _control(self, job: RolloutJob) -> Control:
        address = self._reach(job)
        if address not in self._sessions:
            self._sessions[address] = AsyncSession(address, backoff=Backoff(PATIENCE_S))
        return Control(self._sessions[address], job.ref)

    async def _note_going(self, job: RolloutJob, control: Control, end: EndMarker | None) -> None:
        """What was made anew under a name tells that the former one is gone."""
        key = _key(job)
        former = self._going.pop(key, None)
        if former is not None and former.control.job != job.ref:
            await self._end_deleted(former)
        if end is None or end.kind == EndKind.SUSPENDED:
            redis = job.spec.redis
            stays = redis.cleanup_policy is CleanupPolicy.RETAIN
            ttl_s = None if stays else float(redis.key_ttl_seconds_after_finished)
            self._going[key] = _Going(control, ttl_s)

    async def _end_deleted(self, going: _Going) -> None:
        """Tells the readers. Nothing hangs on it: without it, keys expire by themselves."""
        control = going.control
        try:
            await control.finish(EndKind.FAILED, reason=JOB_DELETED, message="the job was deleted")
            if going.key_ttl_s is not None:
                await control.expire(going.key_ttl_s)
        except StateLost:
            return  # its keys went with it
        except StreamError as error:
            log.warning("readers of the deleted job %s are not told: %s", control.job, error)

    async def _look_unopened(self, job: RolloutJob) -> StreamFacts | StreamTrouble:
        """Before anything is put on a server, it must be one that keeps it."""
        address, now = self._reach(job), self._clock()
        when, trouble = self._checked.get(address, (float("-inf"), None))
        if now - when > SERVER_CHECK_S or trouble is not None:
            try:
                info = await check_server(self._sessions[address])
            except RolloutError as error:
                return trouble_of(error)
            trouble = trouble_of_server(info, trust_unknown_eviction=self._settings.trust_unknown_eviction)
            self._checked[address] = (now, trouble)
        return trouble or StreamFacts(is_open=False, key=JobKeys.of(job.ref).batches)

    async def _keep_alive(self, job: RolloutJob) -> None:
        key = _key(job)
        every = min(MAX_TOUCH_S, job.spec.redis.key_ttl_seconds_after_finished / 4)
        uid, when = self._touched.get(key, ("", 0.0))
        if job.status.completion_time is None and (uid != job.ref.uid or self._clock() - when > every):
            await self._control(job).touch()
            self._touched[key] = (job.ref.uid, self._clock())


def _key(job: RolloutJob) -> JobKey:
    return JobKey(job.metadata.namespace, job.metadata.name)


def facts_of(job: RolloutJob, progress: Progress, *, withdrawn: Collection[WorkerId] = ()) -> StreamFacts:
    """What the planner goes by, of everything that the stream says.

    `withdrawn`: attempts that were announced and are known not to exist.
    """
    counters, control = progress.counters, progress.control
    wanted = job.spec.collector
    is_in_tune = (
        control.limits == shares.stream_limits(job.spec)
        and progress.total_frames == wanted.total_frames
        and control.init_random_frames == wanted.init_random_frames
        and control.groups == (job.spec.stream.groups or ())
    )
    return StreamFacts(
        is_open=True,
        key=JobKeys.of(job.ref).batches,
        frames=counters.frames,
        total_frames=progress.total_frames,
        in_tune=is_in_tune or (control.end is not None and control.end.kind != EndKind.SUSPENDED),
        episodes=counters.episodes,
        dropped_frames=counters.dropped_frames,
        unacked_frames=counters.unacked_frames,
        unacked_bytes=counters.unacked_bytes,
        max_unacked_frames=control.limits.max_unacked_frames,
        is_backpressured=progress.is_full,
        last_frame_time=counters.last_append or None,
        end=control.end,
        heartbeats={Slot(beat.group, beat.index): beat for beat in progress.workers},
        attempts=_without(progress.attempts, withdrawn),
        reservations=progress.reservations,
        newest_version=progress.newest_version,
        version_times={record.version: record.time for record in progress.versions},
        seed=control.seed,
        seed_epoch=control.seed_epoch,
        server_time=progress.time,
    )


def _without(attempts: Mapping[Slot, int], withdrawn: Collection[WorkerId]) -> Mapping[Slot, int]:
    """The highest attempt of each slot, less one where that one does not exist."""
    if not withdrawn:
        return attempts
    free = {w.slot: w.attempt - 1 for w in withdrawn if attempts.get(w.slot) == w.attempt}
    return {slot: attempt for slot, attempt in {**attempts, **free}.items() if attempt >= 0}
