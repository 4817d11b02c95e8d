"""Which job is reconciled next: a de-duplicating queue with one key in flight at a time.

`Backlog` decides and is pure (the caller brings the time); `WorkQueue` runs it on asyncio. A key that is added while it
is being worked on runs once more afterwards; many adds are one. What fails comes again later and later, with jitter.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Generic, TypeVar

from rollout_operator.cluster import ClusterError, StaleJob, TryLater

log = logging.getLogger(__name__)

Key = TypeVar("Key")

FIRST_RETRY_S = 0.5
MAX_RETRY_S = 300.0
HANDLER_TIMEOUT_S = 180.0
"""Every call inside a reconcile has a bound of its own; one that takes longer in all is cut off and tried again."""
MAX_IN_FLIGHT = 16


class Backlog(Generic[Key]):
    """What is to be done, what waits for its time, what is in work. Times are seconds of the caller's clock."""

    def __init__(self) -> None:
        self._ready: dict[Key, float] = {}
        """Keys in order of arrival, and since when they wait."""
        self._delayed: dict[Key, float] = {}
        self._active: set[Key] = set()
        self._again: set[Key] = set()
        self._failures: dict[Key, int] = {}

    def __len__(self) -> int:
        return len(self._ready)

    def add(self, key: Key, now: float) -> None:
        """Run the key as soon as possible."""
        if key in self._active:
            self._again.add(key)
        else:
            self._delayed.pop(key, None)
            self._ready.setdefault(key, now)

    def take(self, now: float) -> Key | None:
        """The next key to work on; None: nothing is due. `done` or `failed` must follow."""
        for due_key in [k for k, due in self._delayed.items() if due <= now]:
            del self._delayed[due_key]
            self._ready.setdefault(due_key, now)
        for key in self._ready:
            del self._ready[key]
            self._active.add(key)
            return key
        return None

    def done(self, key: Key, now: float, *, again_after_s: float | None) -> None:
        """The key was worked on. None: nothing more until it is added."""
        self._failures.pop(key, None)
        self._release(key, now, again_after_s)

    def failed(self, key: Key, now: float, *, jitter: float, at_least_s: float = 0.0) -> float:
        """The key comes again after a wait that doubles with each failure; `jitter` in [0, 1]. Returns the wait."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        wait = min(MAX_RETRY_S, FIRST_RETRY_S * 2.0 ** min(failures, 32)) * (0.5 + 0.5 * jitter)
        wait = max(wait, at_least_s)
        self._again.discard(key)  # what came in meanwhile is seen by the retry
        self._release(key, now, wait)
        return wait

    def next_due(self) -> float | None:
        """When the next delayed key is due; None: there is none."""
        return min(self._delayed.values(), default=None)

    def oldest_wait_s(self, now: float) -> float:
        """How long the longest-waiting key has been ready for."""
        return max((now - since for since in self._ready.values()), default=0.0)

    def _release(self, key: Key, now: float, after_s: float | None) -> None:
        self._active.discard(key)
        if key in self._again:
            self._again.discard(key)
            self._ready.setdefault(key, now)
        elif after_s is not None:
            self._delayed[key] = now + after_s


Handler = Callable[[Key], Awaitable[float | None]]
"""Works on a key; returns after how many seconds it wants to be called again, None: when something changes."""


class WorkQueue(Generic[Key]):
    """Runs a handler for each key that is added. `add` may be called from the event loop only."""

    def __init__(
        self,
        handler: Handler[Key],
        *,
        max_in_flight: int = MAX_IN_FLIGHT,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._handler = handler
        self._max_in_flight = max_in_flight
        self._clock = clock
        self._jitter = jitter
        self._backlog: Backlog[Key] = Backlog()
        self._wake = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, key: Key) -> None:
        """Run the key as soon as possible."""
        self._backlog.add(key, self._clock())
        self._wake.set()

    @property
    def depth(self) -> int:
        """Keys that are due and not in work."""
        return len(self._backlog)

    @property
    def oldest_wait_s(self) -> float:
        """How long the longest-waiting key has been due: what liveness looks at."""
        return self._backlog.oldest_wait_s(self._clock())

    async def run(self) -> None:
        """Work until cancelled; then the handlers in flight are cancelled and waited for."""
        try:
            while True:
                self._wake.clear()
                self._start_what_is_due()
                await self._wait()
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _start_what_is_due(self) -> None:
        while len(self._tasks) < self._max_in_flight:
            key = self._backlog.take(self._clock())
            if key is None:
                return
            task = asyncio.create_task(self._work(key))
            self._tasks.add(task)
            task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._wake.set()

    async def _wait(self) -> None:
        due = self._backlog.next_due()
        timeout = None if due is None else max(0.0, due - self._clock())
        # Not `wait_for`: it loses a cancellation that comes together with a key, and the queue would never end.
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._wake.wait()

    async def _work(self, key: Key) -> None:
        try:
            async with asyncio.timeout(HANDLER_TIMEOUT_S):
                again_after_s = await self._handler(key)
        except Exception as error:
            self._note_failure(key, error)
        else:
            self._backlog.done(key, self._clock(), again_after_s=again_after_s)

    def _note_failure(self, key: Key, error: Exception) -> None:
        at_least_s = error.retry_after_s if isinstance(error, TryLater) else 0.0
        wait = self._backlog.failed(key, self._clock(), jitter=self._jitter(), at_least_s=at_least_s)
        if isinstance(error, StaleJob):
            log.debug("%s: read an outdated object, again in %.1f s", key, wait)
        elif isinstance(error, ClusterError):
            log.warning("%s: %s; again in %.1f s", key, error, wait)
        else:
            # A fault of ours must not stop the other jobs; it is logged with its traceback and tried again.
            log.error("%s: reconcile failed, again in %.1f s", key, wait, exc_info=error)
