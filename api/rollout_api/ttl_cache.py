"""Values that hold for a short time, made once however many ask at the same time.

Used for verdicts about callers and for jobs that were just read. Belongs to one event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

from rollout_contract.errors import RolloutError

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class TtlCache(Generic[K, V]):
    """At most `max_size` values, the oldest go first; each holds for as many seconds as `ttl_of` says."""

    def __init__(
        self,
        ttl_of: Callable[[V], float],
        *,
        max_size: int = 4096,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ttl_of = ttl_of
        self._max_size = max_size
        self._clock = clock
        self._values: dict[K, tuple[V, float]] = {}
        self._making: dict[K, asyncio.Task[V]] = {}

    async def get(self, key: K, make: Callable[[], Awaitable[V]]) -> V:
        """The value, made if there is none. An error goes to the caller whose `make` it was; the others make their own."""
        while True:
            found = self._values.get(key)
            if found is not None and self._clock() < found[1]:
                return found[0]
            others = self._making.get(key)
            if others is None:
                return await self._made(key, make)
            try:
                # shielded: a caller that goes must not end what others wait for
                return await asyncio.shield(others)
            except RolloutError:
                continue

    def forget(self, key: K) -> None:
        """The next caller makes it anew; what is being made now is not kept."""
        self._values.pop(key, None)
        self._making.pop(key, None)

    async def aclose(self) -> None:
        """End what is being made."""
        tasks = list(self._making.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _made(self, key: K, make: Callable[[], Awaitable[V]]) -> V:
        task = asyncio.ensure_future(_awaited(make))
        self._making[key] = task
        task.add_done_callback(lambda task: self._keep(key, task))
        return await asyncio.shield(task)

    def _keep(self, key: K, task: asyncio.Task[V]) -> None:
        if self._making.get(key) is not task:
            _ = task.cancelled() or task.exception()  # its callers have it, or went
            return
        del self._making[key]
        if task.cancelled() or task.exception() is not None:
            return
        value = task.result()
        self._values.pop(key, None)
        self._values[key] = (value, self._clock() + self._ttl_of(value))
        while len(self._values) > self._max_size:
            del self._values[next(iter(self._values))]


async def _awaited(make: Callable[[], Awaitable[V]]) -> V:
    return await make()
