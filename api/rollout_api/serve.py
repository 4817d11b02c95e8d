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
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import uvicorn
from fastapi import FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from rollout_api.errors import Kind, Problem
from rollout_api.gateway import gateway_of

logger = logging.getLogger(__name__)

START_S: Final = 10.0
CANCELLED_S: Final = 1.0
"""How long a server that did not end in time is waited for once it is cancelled."""
HEAD_S: Final = 15.0
"""A connection that does not bring a whole request head in this time, after its start or the last answer, is closed."""
MAX_HEAD_BYTES: Final = 64 * 1024
"""Of a request's line and headers: nothing else bounds what the parser keeps of them."""
RENEW_S: Final = 30.0
"""How often the certificate's files are looked at."""
HEAD_TOO_LARGE: Final = Problem(
    Kind.HEAD_TOO_LARGE, f"A request's line and headers may have at most {MAX_HEAD_BYTES} bytes."
)
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


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """A certificate and its key, both PEM."""

    certificate: Path
    key: Path

    def version(self) -> tuple[int, int]:
        """Changes when a file is replaced. OSError."""
        return self.certificate.stat().st_mtime_ns, self.key.stat().st_mtime_ns


def url_of(sock: socket.socket, *, is_https: bool = False) -> str:
    """`http://host:port` of a bound socket."""
    host, port = sock.getsockname()[:2]
    scheme = "https" if is_https else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


@contextlib.asynccontextmanager
async def serving(
    app: FastAPI, sock: socket.socket, *, grace_s: float = 5.0, tls: TlsFiles | None = None
) -> AsyncIterator[str]:
    """Serve the gateway `app` on `sock` while the block runs; gives the URL. The socket is closed on every way out."""
    with contextlib.closing(sock):
        async with app.router.lifespan_context(app):
            gateway = gateway_of(app)
            async with _running(
                app, sock, grace_s=grace_s, tls=tls, before_the_end=gateway.close_streams
            ) as url:
                yield url


@contextlib.asynccontextmanager
async def serving_plainly(app: ASGIApp, sock: socket.socket, *, grace_s: float = 5.0) -> AsyncIterator[str]:
    """The same for an app without lifespan and streams."""
    with contextlib.closing(sock):
        async with _running(app, sock, grace_s=grace_s) as url:
            yield url


async def _nothing() -> None:
    pass


@contextlib.asynccontextmanager
async def _running(
    app: ASGIApp,
    sock: socket.socket,
    *,
    grace_s: float,
    tls: TlsFiles | None = None,
    before_the_end: Callable[[], Awaitable[None]] = _nothing,
) -> AsyncIterator[str]:
    server = _Server(_config(app, grace_s, tls))
    task = asyncio.create_task(server.serve(sockets=[sock]), name="gateway")
    renewal = asyncio.create_task(_renew(server, tls)) if tls else None
    try:
        await _started(server, task)
        yield url_of(sock, is_https=tls is not None)
    finally:
        if renewal is not None:
            renewal.cancel()
        await before_the_end()
        server.should_exit = True
        await _ended(task, grace_s)


def _config(app: ASGIApp, grace_s: float, tls: TlsFiles | None) -> uvicorn.Config:
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
        ssl_certfile=str(tls.certificate) if tls else None,
        ssl_keyfile=str(tls.key) if tls else None,
    )


async def _renew(server: uvicorn.Server, tls: TlsFiles) -> None:
    """Take up a certificate that was replaced: new connections get it, those that are open stay as they are."""
    seen = tls.version()
    while True:
        await asyncio.sleep(RENEW_S)
        try:
            version = tls.version()
            if version != seen and server.config.ssl is not None:
                # on the side first: a pair that does not fit would spoil the one in use
                ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(tls.certificate, tls.key)
                server.config.ssl.load_cert_chain(tls.certificate, tls.key)
                seen = version
                logger.info("the gateway's certificate was replaced")
        except (
            OSError
        ) as error:  # half of it is written, or it does not fit: the old one goes on, and we look again
            logger.warning("the gateway's certificate cannot be read anew: %s", error)


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
        done, _ = await asyncio.wait({task}, timeout=CANCELLED_S)
    for ended in done:
        if not ended.cancelled():
            ended.result()


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


class _Protocol(HttpToolsProtocol):
    """Uvicorn's protocol, but without a log of its own, with bounds for the head of each request, and with a way to cut the
    connection.

    Closing one waits until the client has taken what was written; for a client that takes nothing that is for ever.
    `extensions["rollout.abort"]` of a request's scope drops it at once.
    """

    _deadline: asyncio.TimerHandle | None = None
    _num_requests = 0
    """In hand: those that came close behind each other may overlap by a moment."""
    _num_unread = 0
    """Bytes that the parser has taken and made nothing of yet: a head, or what stands between the pieces of a body."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.access_log = False  # whatever handlers the process has: uvicorn's line holds the query

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.app = self._in_hand(self.app, transport)
        self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._num_unread += len(data)
        super().data_received(data)
        if self._num_unread > MAX_HEAD_BYTES and not self.transport.is_closing():
            self._refuse(HEAD_TOO_LARGE)

    def on_headers_complete(self) -> None:
        self._num_unread = 0
        size = len(self.url) + sum(len(b": \r\n") + len(name) + len(value) for name, value in self.headers)
        if size > MAX_HEAD_BYTES:
            self._refuse(HEAD_TOO_LARGE)
        else:
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._num_unread = 0
        if not self.transport.is_closing():
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._num_unread = 0
        if not self.transport.is_closing():
            super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """What is no HTTP is told like everything else; once."""
        if not self.transport.is_closing():
            self._refuse(Problem(Kind.MALFORMED, msg))

    def _refuse(self, problem: Problem) -> None:
        answer = problem.response()
        answer.headers["connection"] = "close"
        head = b"".join(name + b": " + value + b"\r\n" for name, value in answer.raw_headers)
        self.transport.write(STATUS_LINE[answer.status_code] + head + b"\r\n" + bytes(answer.body))
        self.transport.close()

    def _wait_for_head(self) -> None:
        self._deadline = self.loop.call_later(HEAD_S, self.transport.abort)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _in_hand(self, app: Any, transport: asyncio.Transport) -> ASGIApp:
        async def in_hand(scope: Scope, receive: Receive, send: Send) -> None:
            self._stop_waiting()
            self._num_requests += 1
            scope.setdefault("extensions", {})["rollout.abort"] = {"abort": transport.abort}
            try:
                await app(scope, receive, send)
            finally:
                self._num_requests -= 1
                if self._num_requests == 0 and not transport.is_closing():
                    self._wait_for_head()

        return in_hand
