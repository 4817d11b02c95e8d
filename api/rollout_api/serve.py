"""Runs the gateway on a socket that is bound already, inside the event loop that is there.

`rolloutctl run` binds the port first, so that it can print the address and refuse a port in use before anything is
started; a container's entry point does the same. Signals are the caller's. On the way out event streams are ended,
requests in hand get a few seconds, then connections are cut.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final

import uvicorn
from fastapi import FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from rollout_api.gateway import gateway_of

logger = logging.getLogger(__name__)

START_S: Final = 10.0
FIRST_REQUEST_S: Final = 15.0
"""A connection that does not bring a whole request head in this time is closed."""
MAX_CONNECTIONS: Final = 4096
BACKLOG: Final = 1024


def bind(host: str, port: int) -> socket.socket:
    """A bound socket for `serving`; port 0: any that is free. OSError if the address is in use or not ours."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    return sock


def url_of(sock: socket.socket) -> str:
    """`http://host:port` of a bound socket."""
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


@contextlib.asynccontextmanager
async def serving(app: FastAPI, sock: socket.socket, *, grace_s: float = 5.0) -> AsyncIterator[str]:
    """Serve `app` on `sock` while the block runs; gives the URL. The socket is closed on every way out."""
    url = url_of(sock)
    with contextlib.closing(sock):
        async with app.router.lifespan_context(app):
            server = _Server(_config(app, grace_s))
            task = asyncio.create_task(server.serve(sockets=[sock]), name="gateway")
            try:
                await _started(server, task)
                yield url
            finally:
                await gateway_of(app).close_streams()
                server.should_exit = True
                await _ended(task, grace_s)


def _config(app: FastAPI, grace_s: float) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=_Protocol,
        ws="none",
        lifespan="off",  # entered by `serving`, so that what fails in it is raised there
        log_config=None,
        access_log=False,  # `middleware.Guard` logs requests, without their queries
        server_header=False,
        limit_concurrency=MAX_CONNECTIONS,
        timeout_graceful_shutdown=max(1, round(grace_s)),
        backlog=BACKLOG,
    )


async def _started(server: _Server, task: asyncio.Task[None]) -> None:
    waiting = asyncio.create_task(server.has_started.wait())
    try:
        await asyncio.wait({waiting, task}, timeout=START_S, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            await task  # raises what stopped it
        if not server.started:
            raise TimeoutError(f"the gateway did not start within {START_S:g} seconds")
    finally:
        waiting.cancel()


async def _ended(task: asyncio.Task[None], grace_s: float) -> None:
    done, _ = await asyncio.wait({task}, timeout=grace_s + 5.0)
    if not done:
        logger.error("the gateway did not end in time and is cancelled")
        task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


class _Server(uvicorn.Server):
    """A server whose start can be waited for, and that leaves signals to its caller."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.has_started = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.has_started.set()


class _Protocol(H11Protocol):
    """Uvicorn's protocol, but without a log of its own, with a deadline for the first request, and with a way to cut the
    connection.

    Closing one waits until the client has taken what was written; for a client that takes nothing that is for ever.
    `extensions["rollout.abort"]` of a request's scope drops it at once.
    """

    _deadline: asyncio.TimerHandle | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.access_log = False  # whatever handlers the process has: uvicorn's line holds the query

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._deadline = self.loop.call_later(FIRST_REQUEST_S, transport.abort)
        self.app = self._with_abort(self.app, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._has_request()
        super().connection_lost(exc)

    def _has_request(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _with_abort(self, app: Any, transport: asyncio.Transport) -> ASGIApp:
        async def with_abort(scope: Scope, receive: Receive, send: Send) -> None:
            self._has_request()
            scope.setdefault("extensions", {})["rollout.abort"] = {"abort": transport.abort}
            await app(scope, receive, send)

        return with_abort
