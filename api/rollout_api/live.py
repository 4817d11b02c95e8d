"""Live numbers of jobs from Redis: read at most once per job and second, whoever asks.

The routes and the feeds ask `LiveCache`. A Redis that is away is an answer like another: `Away`, with the reason. What
is made of the numbers is the matter of `views`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from rollout_api.models import LiveError
from rollout_api.reach import CredentialsMissing
from rollout_contract.errors import JobNotFound, StateLost, StreamError, StreamUnavailable
from rollout_contract.messages import HEARTBEAT_S
from rollout_contract.names import JobRef
from rollout_contract.spec import RolloutJob
from rollout_stream.progress import Progress

logger = logging.getLogger(__name__)

LOST_AFTER_S: Final = 3 * HEARTBEAT_S
RECENT_EPISODES: Final = 100
"""Of whose returns the mean is shown."""
FORGET_AFTER_S: Final = 60.0

Reader = Callable[[RolloutJob], Awaitable[Progress]]


@dataclass(frozen=True, slots=True)
class Look:
    """A job's progress, and how long ago it was read."""

    facts: Progress
    age_s: float

    @property
    def server_now(self) -> float:
        """The server's time now, as far as we know."""
        return self.facts.time + self.age_s


@dataclass(frozen=True, slots=True)
class Away:
    """There are no live numbers, and why."""

    error: LiveError


def away_of(error: StreamError | TimeoutError) -> Away:
    """What is told of a failed read: no hosts, no driver's texts (the log has them)."""
    match error:
        case StateLost() | JobNotFound():
            text = "The stream's server holds no state of this job: it has not been started yet, or was lost."
        case CredentialsMissing():
            text = f"The job has a stream's server of its own: {error}."
        case _:
            text = "The stream's server does not answer, or does not let the gateway in."
    reason = type(error).__name__ if isinstance(error, StreamError) else StreamUnavailable.__name__
    return Away(LiveError(reason=reason, detail=text))


@dataclass(frozen=True, slots=True)
class _Read:
    """What a read gave, and when it began."""

    result: Progress | Away
    at: float

    def seen_at(self, now: float) -> Look | Away:
        """What a caller gets of it now."""
        return self.result if isinstance(self.result, Away) else Look(self.result, max(0.0, now - self.at))


@dataclass(slots=True)
class _Entry:
    """What is known of one job."""

    newest: _Read | None = None
    reading: asyncio.Task[_Read] | None = None


class LiveCache:
    """Progress of jobs, at most `ttl_s` old; callers that come while they are read wait for the same read."""

    def __init__(
        self,
        read: Reader,
        *,
        ttl_s: float,
        timeout_s: float,
        observe: Callable[[str], None] = lambda result: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read_progress = read
        self._ttl_s = ttl_s
        self._timeout_s = timeout_s
        self._observe = observe
        self._clock = clock
        self._entries: dict[JobRef, _Entry] = {}
        self._reading: set[asyncio.Task[Any]] = set()

    async def get(self, job: RolloutJob) -> Look | Away:
        """The job's progress, or why there are none."""
        entry = self._entries.setdefault(job.ref, _Entry())
        read = entry.newest
        if read is None or self._clock() - read.at >= self._ttl_s:
            if entry.reading is None:
                entry.reading = asyncio.create_task(self._read(job, entry))
            read = await asyncio.shield(
                entry.reading
            )  # a caller that goes must not end the read of the others
        return read.seen_at(self._clock())

    def forget(self, ref: JobRef) -> None:
        """The next caller reads anew: something was changed."""
        self._entries.pop(ref, None)

    async def aclose(self) -> None:
        """End the reads that are under way."""
        tasks = list(self._reading)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self, job: RolloutJob, entry: _Entry) -> _Read:
        started = self._clock()
        task = asyncio.current_task()
        assert task is not None
        self._reading.add(task)
        try:
            entry.newest = _Read(await self._result(job), started)
            return entry.newest
        finally:
            entry.reading = None
            self._reading.discard(task)
            self._forget_old(started)

    async def _result(self, job: RolloutJob) -> Progress | Away:
        try:
            async with asyncio.timeout(self._timeout_s):
                progress = await self._read_progress(job)
        except (TimeoutError, StreamError) as error:
            logger.warning(
                "job %s: %s", job.ref, str(error) or f"Redis did not answer within {self._timeout_s:g} s"
            )
            self._observe("away")
            return away_of(error)
        self._observe("ok")
        return progress

    def _forget_old(self, now: float) -> None:
        old = [
            ref
            for ref, e in self._entries.items()
            if e.newest and now - e.newest.at > FORGET_AFTER_S and not e.reading
        ]
        for ref in old:
            del self._entries[ref]
