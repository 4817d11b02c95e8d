"""Whether the operator lives and works, over HTTP: `/healthz`, `/readyz`, `/metrics`.

Alive means that watches bring news and that the queue moves, not that this server answers; ready means that the CRD fits,
the Lease is held and every list is in. What is wrong stands in the answer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from aiohttp import web

MAX_WATCH_AGE_S = 150.0
"""Bookmarks come every minute, and a second look at jobs as often."""
MAX_QUEUE_AGE_S = 120.0
CLOSE_S = 1.0
"""How long an answer that nobody reads may hold up the end."""

Handler = Callable[[web.Request], Awaitable[web.Response]]
Check = Callable[[], str]
"""What is wrong; empty: nothing."""


@dataclass(slots=True)
class Health:
    """What is asked; the program adds checks as it comes to them."""

    alive: list[Check] = field(default_factory=list)
    ready: list[Check] = field(default_factory=list)
    render_metrics: Callable[[], bytes] = field(default=lambda: b"")

    def problems(self, checks: list[Check]) -> list[str]:
        """What the checks have to say."""
        return [text for check in checks if (text := check())]


def not_older_than(what: str, age_s: Callable[[], float], limit_s: float) -> Check:
    """A check of something's age."""

    def check() -> str:
        age = age_s()
        return f"{what} for {age:.0f} s (limit {limit_s:.0f})" if age > limit_s else ""

    return check


class HealthServer:
    """Serves on all addresses: kubelets and Prometheus come from outside of the pod. Start it and close it."""

    def __init__(self, health: Health, *, host: str, port: int) -> None:
        app = web.Application()
        app.router.add_get("/healthz", _page(health, health.alive))
        app.router.add_get("/readyz", _page(health, health.alive, health.ready))
        app.router.add_get("/metrics", _metrics(health))
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=CLOSE_S)
        self._host = host
        self._port = port

    @property
    def port(self) -> int:
        """The port that it serves on."""
        return int(self._runner.addresses[0][1])

    async def start(self) -> None:
        """Serve. OSError if the port is taken."""
        await self._runner.setup()
        await web.TCPSite(self._runner, self._host, self._port).start()

    async def close(self) -> None:
        """Stop serving."""
        await self._runner.cleanup()


def _page(health: Health, *kinds: list[Check]) -> Handler:
    async def answer(request: web.Request) -> web.Response:
        problems = health.problems([check for checks in kinds for check in checks])
        text = "\n".join(problems) or "ok"
        return web.Response(text=text + "\n", status=503 if problems else 200)

    return answer


def _metrics(health: Health) -> Handler:
    async def answer(request: web.Request) -> web.Response:
        content_type = "text/plain; version=0.0.4; charset=utf-8"
        return web.Response(body=health.render_metrics(), headers={"Content-Type": content_type})

    return answer
