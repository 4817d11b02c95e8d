"""The answer that is a stream of events: sends what its subscriber gets, and ends for one of six reasons.

The client goes; the feed ends; the token or session that opened it expires; its right to read was taken away; the client
takes nothing for too long; it has not taken what was queued. In the last two cases the connection is cut, because nothing
that is sent would arrive.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from rollout_api.feeds import Subscriber
from rollout_api.middleware import abort
from rollout_api.settings import Limits
from rollout_api.store import StoreUnavailable

logger = logging.getLogger(__name__)

RETRY = b"retry: 2000\n\n"
"""A browser that lost the stream comes again after two seconds."""
KEEP_ALIVE = b": still here\n\n"


class EventStream(Response):
    """Server-sent events of one subscriber. `subscription` is entered when the answer begins."""

    media_type = "text/event-stream"

    def __init__(
        self,
        subscription: AbstractAsyncContextManager[Subscriber],
        *,
        limits: Limits,
        expires: float | None,
        is_allowed: Callable[[], Awaitable[bool]],
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(headers={"cache-control": "no-store", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._subscription = subscription
        self._limits = limits
        self._is_allowed = is_allowed
        self._seconds = None if expires is None else max(0.0, expires - clock())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._subscription as subscriber:
            await send(
                {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
            )
            pump = asyncio.create_task(self._pump(subscriber, send))
            gone = asyncio.create_task(_disconnected(receive))
            dropped = asyncio.create_task(subscriber.dropped.wait())
            refused = asyncio.create_task(self._refused())
            tasks = {pump, gone, dropped, refused}
            try:
                await asyncio.wait(tasks, timeout=self._seconds, return_when=asyncio.FIRST_COMPLETED)
                is_gone = gone.done()
                is_stuck = dropped.done() or (pump.done() and pump.exception() is not None)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
            if is_stuck:
                abort(scope)
            if not is_gone:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(1.0):
                        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _refused(self) -> None:
        """Return when the client may no longer read this."""
        while True:
            await asyncio.sleep(self._limits.recheck_s)
            try:
                if not await self._is_allowed():
                    return
            except StoreUnavailable as error:
                # Rights do not change while nobody can be asked; the server's restart must not end every stream.
                logger.warning("the right to read events could not be asked for: %s", error)

    async def _pump(self, subscriber: Subscriber, send: Send) -> None:
        await self._send(send, RETRY)
        while True:
            try:
                async with asyncio.timeout(self._limits.keep_alive_s):
                    event = await subscriber.get()
            except TimeoutError:
                await self._send(send, KEEP_ALIVE)
                continue
            if event is None:
                return
            await self._send(send, event.wire)

    async def _send(self, send: Send, body: bytes) -> None:
        async with asyncio.timeout(self._limits.send_idle_s):
            await send({"type": "http.response.body", "body": body, "more_body": True})


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
