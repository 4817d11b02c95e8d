"""Events of jobs, once for everybody: one feed per job reads and watches; its subscribers only wait.

The events route subscribes. A feed starts with its first subscriber and ends a while after the last has left. It reads
through `LiveCache` (so the load on Redis does not depend on the number of clients) and watches the store, with the rights
of one of its subscribers: it changes hands when that one leaves, and outlives the last one only as long as the feed. What a
subscriber does not take in time is not kept: it is dropped, and comes again with the id of its last event.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import secrets
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from typing import Final, Protocol

from rollout_api.store import Forbidden, JobChange, JobStore, NotFound, NotKnown, StoreError
from rollout_contract.spec import RolloutJob

logger = logging.getLogger(__name__)

TICK_S: Final = 1.0
"""Progress is told this often."""
LINGER_S: Final = 30.0
"""A feed without subscribers waits so long for one that comes again."""
WATCH_AGAIN_S: Final = 1.0
REMEMBERED: Final = 256
"""Events that a client which comes again can still get."""

PROGRESS: Final = "progress"
CONDITIONS: Final = "conditions"
DELETED: Final = "deleted"


class Describe(Protocol):
    """What events say, as JSON objects."""

    def conditions(self, job: RolloutJob) -> object:
        """The `conditions` event, from the resource."""
        ...

    async def progress(self, job: RolloutJob) -> object:
        """The `progress` event, from Redis."""
        ...


@dataclass(frozen=True, slots=True)
class Event:
    """One event as it goes over the wire. `number` counts within its feed."""

    number: int
    name: str
    wire: bytes

    @classmethod
    def make(cls, feed_id: str, number: int, name: str, data: object) -> Event:
        """The event with its id, encoded once for all subscribers."""
        text = json.dumps(data, separators=(",", ":"), allow_nan=False)
        return cls(number, name, f"id: {feed_id}-{number}\nevent: {name}\ndata: {text}\n\n".encode())


class Subscriber:
    """One client's bounded queue. Ends (`None`) when the feed closes, overflows once it is too slow.

    `store` holds the jobs with this client's rights.
    """

    def __init__(self, size: int, store: JobStore) -> None:
        self.store = store
        self._queue: deque[Event | None] = deque()
        self._size = size
        self._news = asyncio.Event()
        self.dropped = asyncio.Event()
        """Set once the client was too slow."""

    def put(self, event: Event | None) -> None:
        """Hand over an event; None: the last word."""
        if len(self._queue) >= self._size and event is not None:
            self.dropped.set()
            self._queue.clear()
        else:
            self._queue.append(event)
        self._news.set()

    async def get(self) -> Event | None:
        """The next event; None when nothing more comes, because the feed ended or this client was too slow."""
        while not self._queue:
            if self.dropped.is_set():
                return None
            self._news.clear()
            await self._news.wait()
        return self._queue.popleft()


class Feed:
    """The events of one job, and who waits for them."""

    def __init__(self, namespace: str, name: str, *, describe: Describe) -> None:
        self.id = secrets.token_hex(4)
        self.is_over = False
        self.subscribers: set[Subscriber] = set()
        self._namespace = namespace
        self._name = name
        self._describe = describe
        self._number = 0
        self._remembered: deque[Event] = deque(maxlen=REMEMBERED)
        self._latest: dict[str, Event] = {}
        self._last_conditions: object = None
        self._job: RolloutJob | None = None
        self._has_job = asyncio.Event()
        self._watcher: Subscriber | None = None
        self._watching: asyncio.Task[None] | None = None
        self._ticking = asyncio.create_task(self._tick())

    def add(self, subscriber: Subscriber, last_event_id: str | None) -> None:
        """Give a new subscriber what it has missed (it came again), or how things are (it is new)."""
        for event in self._missed(last_event_id):
            subscriber.put(event)
        self.subscribers.add(subscriber)
        if self.is_over:
            subscriber.put(None)
        elif self._watcher not in self.subscribers:
            self._watch_with(subscriber)

    def remove(self, subscriber: Subscriber) -> None:
        """A subscriber has left."""
        self.subscribers.discard(subscriber)
        if subscriber is self._watcher and self.subscribers and not self.is_over:
            self._watch_with(next(iter(self.subscribers)))

    def _watch_with(self, subscriber: Subscriber) -> None:
        if self._watching is not None:
            self._watching.cancel()
        self._watcher = subscriber
        self._watching = asyncio.create_task(self._watch(subscriber))

    def _missed(self, last_event_id: str | None) -> list[Event]:
        """All remembered events after that one, of progress only the newest; without a known id the newest of each."""
        feed_id, _, text = (last_event_id or "").rpartition("-")
        seen = int(text) if feed_id == self.id and text.isdecimal() and len(text) < 16 else None
        latest = self._latest.get(PROGRESS)
        oldest = self._remembered[0].number if self._remembered else 1
        if seen is None or (self._remembered.maxlen == len(self._remembered) and seen < oldest - 1):
            return sorted(self._latest.values(), key=lambda event: event.number)
        missed = [event for event in self._remembered if event.number > seen]
        return [*missed, latest] if latest and latest.number > seen else missed

    def close(self) -> None:
        """End the feed and tell its subscribers."""
        self.is_over = True
        for task in self._tasks():
            task.cancel()
        for subscriber in self.subscribers:
            subscriber.put(None)

    async def wait_closed(self) -> None:
        """Return when the feed's tasks have ended."""
        await asyncio.gather(*self._tasks(), return_exceptions=True)

    def _tasks(self) -> list[asyncio.Task[None]]:
        return [task for task in (self._ticking, self._watching) if task is not None]

    def _publish(self, name: str, data: object) -> None:
        self._number += 1
        event = Event.make(self.id, self._number, name, data)
        self._latest[name] = event
        if name != PROGRESS:
            self._remembered.append(event)
        for subscriber in self.subscribers:
            subscriber.put(event)

    async def _tick(self) -> None:
        await self._has_job.wait()
        loop = asyncio.get_running_loop()
        due = loop.time()
        while self._job is not None:
            if self.subscribers:
                self._publish(PROGRESS, await self._describe.progress(self._job))
            due = max(due + TICK_S, loop.time())
            await asyncio.sleep(due - loop.time())

    async def _watch(self, subscriber: Subscriber) -> None:
        while not self.is_over:
            try:
                await self._watch_once(subscriber.store)
            except NotFound:
                self._end()
            except (NotKnown, Forbidden):
                subscriber.put(None)  # no longer somebody who may see it; others may
                self.remove(subscriber)
                if self._watcher is subscriber:
                    self._watcher = None
                return
            except StoreError as error:
                logger.warning("the watch of %s/%s broke off: %s", self._namespace, self._name, error)
                await asyncio.sleep(WATCH_AGAIN_S)

    async def _watch_once(self, store: JobStore) -> None:
        changes = store.watch(self._namespace, self._name)
        try:
            async for change in changes:
                if change.is_deleted:
                    self._end()
                    return
                self._job = change.job
                self._has_job.set()
                data = self._describe.conditions(change.job)
                if data != self._last_conditions:
                    self._last_conditions = data
                    self._publish(CONDITIONS, data)
        finally:
            await close_iterator(changes)

    def _end(self) -> None:
        self._publish(DELETED, {"namespace": self._namespace, "name": self._name})
        self.is_over = True
        self._job = None
        self._has_job.set()
        for subscriber in self.subscribers:
            subscriber.put(None)


async def close_iterator(changes: AsyncIterator[JobChange]) -> None:
    """Close a watch, if it is something that can be closed (an asynchronous generator is)."""
    if isinstance(changes, AsyncGenerator):
        await changes.aclose()


class Feeds:
    """All feeds of the gateway."""

    def __init__(self, *, describe: Describe, max_clients: int, queue_size: int) -> None:
        self._describe = describe
        self._max_clients = max_clients
        self._queue_size = queue_size
        self._feeds: dict[tuple[str, str], Feed] = {}
        self._lingering: dict[tuple[str, str], asyncio.TimerHandle] = {}
        self.num_clients = 0

    @property
    def is_full(self) -> bool:
        """Whether there are as many clients as may be."""
        return self.num_clients >= self._max_clients

    @contextlib.asynccontextmanager
    async def subscribed(
        self, store: JobStore, namespace: str, name: str, last_event_id: str | None
    ) -> AsyncIterator[Subscriber]:
        """A subscriber to the job's events while the block runs, with the rights that `store` has."""
        key = (namespace, name)
        feed = self._feed(key)
        subscriber = Subscriber(self._queue_size, store)
        self.num_clients += 1
        feed.add(subscriber, last_event_id)
        try:
            yield subscriber
        finally:
            self.num_clients -= 1
            feed.remove(subscriber)
            if not feed.subscribers:
                self._let_linger(key, feed)

    def _feed(self, key: tuple[str, str]) -> Feed:
        if handle := self._lingering.pop(key, None):
            handle.cancel()
        feed = self._feeds.get(key)
        if feed is None or feed.is_over:
            feed = self._feeds[key] = Feed(*key, describe=self._describe)
        return feed

    def _let_linger(self, key: tuple[str, str], feed: Feed) -> None:
        if self._feeds.get(key) is not feed:
            feed.close()
            return

        def end() -> None:
            self._lingering.pop(key, None)
            if self._feeds.get(key) is feed and not feed.subscribers:
                del self._feeds[key]
                feed.close()

        if handle := self._lingering.pop(key, None):
            handle.cancel()
        self._lingering[key] = asyncio.get_running_loop().call_later(LINGER_S, end)

    async def aclose(self) -> None:
        """End all feeds; their clients' streams end with them."""
        for handle in self._lingering.values():
            handle.cancel()
        self._lingering.clear()
        feeds = list(self._feeds.values())
        self._feeds.clear()
        for feed in feeds:
            feed.close()
        for feed in feeds:
            await feed.wait_closed()
