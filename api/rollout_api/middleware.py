"""What every request passes before a route sees it, outermost first: guard, host check, authentication, limits.

Plain ASGI, so that streams pass through untouched. Closed by default: `Authentication` lets nothing through without an
identity but the short list `PUBLIC`; a new route needs nothing to be protected.
"""

from __future__ import annotations

import asyncio
import http.cookies
import logging
import re
import time
from collections.abc import Callable, Mapping
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rollout_api.auth import Auth
from rollout_api.error_handlers import internal_problem
from rollout_api.errors import Kind, Problem, unauthenticated, unavailable
from rollout_api.identity import Identity
from rollout_api.settings import ApiSettings, Limits
from rollout_api.store import StoreUnavailable

access_logger = logging.getLogger("rollout_api.access")

PUBLIC: Final = frozenset({("GET", "/healthz"), ("GET", "/readyz"), ("GET", "/"), ("POST", "/login")})
"""All that answers without an identity. The page without one is a login form; `/login` takes the token."""
PROBES: Final = frozenset({"/healthz", "/readyz"})
"""Asked by machines, in a cluster under any name: nobody looks at a token there."""

SESSION_COOKIE: Final = "rollout_session"
SAFE_METHODS: Final = frozenset({"GET", "HEAD"})

SINGLE: Final = (
    "content-type",
    "content-encoding",
    "if-match",
    "idempotency-key",
    "content-digest",
    "x-checksum-sha256",
)
"""Headers that decide what becomes of a request's body: of two, one would be left out in silence."""

HEADERS: Final[Mapping[str, str]] = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    # not `no-referrer`: with it a browser sends our own form with `Origin: null`, as a stranger's would be
    "referrer-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "cache-control": "no-store",
}
"""Sent with every answer that does not set them itself."""

_JOB = r"/v1/namespaces/[^/]+/rolloutjobs/[^/]+"
_TRANSFERS = re.compile(rf"{_JOB}/weights(/[^/]+)?")
_EVENTS = re.compile(rf"{_JOB}/events")


class Guard:
    """Outermost: headers for every answer, one line of log per request, and no exception past this point."""

    def __init__(self, app: ASGIApp, *, observe: Callable[[Scope, int, float], None]) -> None:
        self._app = app
        self._observe = observe

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await _only_lifespan(self._app, scope, receive, send)
            return
        started, status = time.monotonic(), 0

        async def guarded(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            await self._app(scope, receive, guarded)
        except (
            Exception
        ) as error:  # the last line: whatever it is, the caller gets a problem and the log gets the rest
            problem = internal_problem(error, scope["method"], scope["path"])
            if status == 0:
                await problem.response()(scope, receive, guarded)
            else:
                abort(scope)
        finally:
            seconds = time.monotonic() - started
            self._observe(scope, status, seconds)
            # the path alone: queries and cookies may carry what must not be kept
            level = logging.DEBUG if scope["path"] in PROBES else logging.INFO
            access_logger.log(
                level, "%s %r %d %.1f ms", scope["method"], scope["path"][:256], status, seconds * 1000
            )


async def _only_lifespan(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "lifespan":
        await app(scope, receive, send)
    else:  # a websocket: there is none here
        await send({"type": "websocket.close", "code": 1008})


class HostCheck:
    """Refuses names that are not ours (DNS rebinding) and requests that another web page's script has sent."""

    def __init__(self, app: ASGIApp, *, settings: ApiSettings) -> None:
        self._app = app
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_probe = scope["path"] in PROBES and not self._settings.is_loopback
        if scope["type"] == "http" and not is_probe and (problem := self._problem(Headers(scope=scope))):
            await problem.response()(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _problem(self, headers: Headers) -> Problem | None:
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self._settings.accepts_host(hosts[0]):
            return Problem(
                Kind.WRONG_HOST,
                "This gateway does not answer to the name in the Host header. Use localhost or 127.0.0.1, "
                "or name the host in the gateway's setting `allowed_hosts`.",
            )
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2].lower() != hosts[0].strip().lower():
            return Problem(Kind.CROSS_ORIGIN, "The request comes from a script of another web page.")
        if (
            headers.get("sec-fetch-site", "none") == "cross-site"
            and headers.get("sec-fetch-mode") != "navigate"
        ):
            return Problem(Kind.CROSS_ORIGIN, "The request comes from another web page.")
        return None


class Authentication:
    """Finds out who is asking; without an answer only `PUBLIC` goes on. The route finds it in `request.state`."""

    def __init__(self, app: ASGIApp, *, auth: Auth) -> None:
        self._app = app
        self._auth = auth

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        try:
            identity = None if scope["path"] in PROBES else await self._identity(headers, scope["method"])
        except StoreUnavailable as error:
            await unavailable(str(error)).response()(scope, receive, send)
            return
        if identity is None and (scope["method"], scope["path"]) not in PUBLIC:
            await self._unknown("authorization" in headers).response()(scope, receive, send)
            return
        scope.setdefault("state", {})["identity"] = identity
        await self._app(scope, receive, send)

    async def _identity(self, headers: Headers, method: str) -> Identity | None:
        if sent := headers.getlist("authorization"):
            scheme, _, token = sent[0].partition(" ")
            # of two, something in front of us may have looked at the other one
            is_clear = len(sent) == 1 and scheme.lower() == "bearer"
            return await self._auth.authenticate(token.strip()) if is_clear else None
        cookie = session_cookie(headers)
        if cookie and method in SAFE_METHODS:
            return await self._auth.identity_of_session(cookie)
        return await self._auth.authenticate(None)

    def _unknown(self, had_token: bool) -> Problem:
        what = "The token is not valid." if had_token else "There is no valid token with the request."
        return unauthenticated(f"{what} Send the header `Authorization: Bearer TOKEN`. {self._auth.hint}")


def session_cookie(headers: Headers) -> str | None:
    """The value of the page's cookie, None if there is none that can be read."""
    jar = http.cookies.SimpleCookie()
    try:
        jar.load(headers.get("cookie", ""))
    except http.cookies.CookieError:
        return None
    morsel = jar.get(SESSION_COOKIE) or jar.get(f"__Host-{SESSION_COOKIE}")
    return morsel.value if morsel else None


class RequestLimits:
    """Bounds the size and the time of every request; transfers of weights and event streams have bounds of their own."""

    def __init__(self, app: ASGIApp, *, limits: Limits) -> None:
        self._app = app
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        bounded = _Bounded(scope, receive, send, limits=self._limits)
        problem = bounded.problem_at_start()
        if problem is None:
            try:
                async with asyncio.timeout(bounded.seconds):
                    await self._app(scope, bounded.receive, bounded.send)
                return
            except TimeoutError:
                problem = Problem(Kind.TOO_SLOW, "The request took too long and was given up.")
            except _GaveUpReading:
                problem = bounded.problem
        if problem is not None and not bounded.is_started:
            await problem.response()(scope, receive, send)
        else:
            abort(scope)


class _GaveUpReading(Exception):
    """Raised into whoever reads the body; the answer was decided by `_Bounded`."""


class _Bounded:
    """One request's `receive` and `send` with limits."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, *, limits: Limits) -> None:
        is_transfer = _TRANSFERS.fullmatch(scope["path"]) is not None
        is_upload = is_transfer and scope["method"] == "PUT"
        self._max_bytes = None if is_upload else limits.max_body_bytes
        self._idle_s = limits.body_idle_s
        self._send_idle_s = limits.send_idle_s
        self.seconds: float | None = limits.transfer_s if is_transfer else limits.request_s
        if _EVENTS.fullmatch(scope["path"]):
            self.seconds = None
        self._headers = Headers(scope=scope)
        self._receive = receive
        self._send = send
        self._received = 0
        self._has_body_left = True
        self.is_started = False
        self.problem: Problem | None = None

    def problem_at_start(self) -> Problem | None:
        """What can be refused before a byte of the body is read."""
        for name in SINGLE:
            if len(self._headers.getlist(name)) > 1:
                return Problem(
                    Kind.MALFORMED, f"The header {name} stands more than once: which one is meant?"
                )
        text = self._headers.get("content-length", "0")
        if not (text.isascii() and text.isdecimal()):
            return Problem(Kind.MALFORMED, "Content-Length is no whole number.")
        return self._too_large() if self._max_bytes is not None and int(text) > self._max_bytes else None

    async def receive(self) -> Message:
        try:
            # past its end a body's `receive` waits for the client to go, and that may take as long as it likes
            async with asyncio.timeout(self._idle_s if self._has_body_left else None):
                message = await self._receive()
        except TimeoutError:
            self.problem = Problem(Kind.TIMEOUT, f"Nothing of the body arrived for {self._idle_s:g} seconds.")
            raise _GaveUpReading from None
        if message["type"] == "http.request":
            self._has_body_left = message.get("more_body", False)
            self._received += len(message.get("body", b""))
            if self._max_bytes is not None and self._received > self._max_bytes:
                self.problem = self._too_large()
                raise _GaveUpReading
        return message

    async def send(self, message: Message) -> None:
        if self.problem is not None and not self.is_started:
            raise _GaveUpReading  # the framework made an answer of its own of our giving up: ours is the right one
        self.is_started = True
        async with asyncio.timeout(self._send_idle_s):
            await self._send(message)

    def _too_large(self) -> Problem:
        return Problem(
            Kind.TOO_LARGE,
            f"The body may have at most {self._max_bytes} bytes.",
            members={"maxBytes": self._max_bytes},
        )


def abort(scope: Scope) -> None:
    """Cut the connection at once, without waiting for what the client has not taken (if the server offers it)."""
    extension = scope.get("extensions", {}).get("rollout.abort")
    if extension is not None:
        extension["abort"]()
