"""Puts the gateway together: parts, routes, middleware, errors, OpenAPI. Imports nothing heavy and does nothing at import.

Called by `rolloutctl run` and by the container's entry point, which choose store, auth and settings. The app owns what
it makes (feeds, reads under way) and ends it with its lifespan; store and stream belong to whoever passed them in.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.middleware import Middleware

from rollout_api import error_handlers, openapi
from rollout_api.auth import Auth
from rollout_api.descriptions import JobDescriptions
from rollout_api.feeds import Feeds
from rollout_api.gateway import Allowed, Gateway, Slots, gateway_of
from rollout_api.live import RECENT_EPISODES, LiveCache
from rollout_api.metrics import Metrics
from rollout_api.middleware import PUBLIC, Authentication, Guard, HostCheck, RequestLimits
from rollout_api.reach import OneServer, Servers
from rollout_api.readiness import Readiness
from rollout_api.routes import episodes, events, health, jobs, lifecycle, page, seed, status, stream, weights
from rollout_api.settings import ApiSettings, SettingsError
from rollout_api.store import JobStore
from rollout_api.ttl_cache import TtlCache
from rollout_contract.spec import RolloutJob
from rollout_stream.aio import AsyncSession, Control
from rollout_stream.progress import Progress

DISTRIBUTION: Final = "rolloutjob"

ROUTERS: Final = (
    jobs.router,
    lifecycle.router,
    status.router,
    stream.router,
    events.router,
    weights.router,
    seed.router,
    episodes.router,
    health.router,
    page.router,
)

TAGS: Final = [
    {"name": "jobs", "description": "Jobs as resources: list, create, read, change, delete."},
    {"name": "lifecycle", "description": "Suspend, resume and complete a job."},
    {"name": "status", "description": "How a job is: conditions, live numbers, workers, events, episodes."},
    {"name": "weights", "description": "The policy's weights as versions."},
    {"name": "seed", "description": "The job's seed and its epoch."},
    {"name": "health", "description": "The gateway itself."},
]

DESCRIPTION: Final = """Status, weights and seeds of RolloutJobs, over HTTP.

Send `Authorization: Bearer TOKEN`: in a cluster a Kubernetes token; a local run prints its own. Errors are
`application/problem+json` (RFC 9457): `type` is stable and for programs, `detail` is for people, `errors` lists every
fault with its path.
"""


def create_app(
    *,
    store: JobStore,
    stream: AsyncSession | Servers,
    auth: Auth | None,
    settings: ApiSettings | None = None,
) -> FastAPI:
    """The gateway over a store of jobs and a session with Redis, or with several servers where jobs name their own.

    SettingsError, which names the setting, without a way to know callers, or with one that does not fit.
    """
    settings = settings or ApiSettings()
    if auth is None:
        raise SettingsError(
            "the gateway's `auth` is not set: give it a token (TokenAuth), or --no-auth on loopback"
        )
    auth.check(settings)
    servers = OneServer(stream) if isinstance(stream, AsyncSession) else stream
    gateway = _gateway(store, servers, auth, settings)
    app = FastAPI(
        title="RolloutJob gateway",
        version=_version(),
        description=DESCRIPTION,
        openapi_tags=TAGS,
        docs_url=None,  # both pages fetch scripts from elsewhere
        redoc_url=None,
        lifespan=_lifespan,
        middleware=_middleware(gateway),
        redirect_slashes=False,
        separate_input_output_schemas=False,
        generate_unique_id_function=_operation_id,
    )
    app.state.gateway = gateway
    error_handlers.install(app)
    for router in ROUTERS:
        app.include_router(router)
    _check_rights(app)
    openapi.install(app)
    return app


def _version() -> str:
    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:  # run from a source tree that was not installed
        return "0"


def _gateway(store: JobStore, servers: Servers, auth: Auth, settings: ApiSettings) -> Gateway:
    async def read(job: RolloutJob) -> Progress:
        return await Control(servers.of(job), job.ref).read_progress(episodes=RECENT_EPISODES)

    limits = settings.limits
    metrics = Metrics()
    live = LiveCache(
        read,
        ttl_s=limits.live_ttl_s,
        timeout_s=limits.live_timeout_s,
        observe=lambda result: metrics.live_reads.labels(result).inc(),
    )
    feeds = Feeds(
        describe=JobDescriptions(live),
        max_clients=limits.max_event_clients,
        queue_size=limits.event_queue,
    )
    metrics.event_clients.set_function(lambda: feeds.num_clients)
    return Gateway(
        store=store,
        servers=servers,
        auth=auth,
        settings=settings,
        jobs=TtlCache(lambda job: limits.job_ttl_s),
        statuses=TtlCache(lambda body: limits.status_ttl_s),
        live=live,
        feeds=feeds,
        metrics=metrics,
        readiness=Readiness(store, servers.default),
        uploads=Slots(limits.max_uploads, "uploads"),
        downloads=Slots(limits.max_downloads, "downloads"),
    )


@contextlib.asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    gateway = gateway_of(app)
    try:
        yield
    finally:
        await gateway.feeds.aclose()
        await gateway.live.aclose()
        await gateway.jobs.aclose()
        await gateway.statuses.aclose()


def _middleware(gateway: Gateway) -> list[Middleware]:
    """Outermost first."""
    return [
        Middleware(Guard, observe=gateway.metrics.observe),
        Middleware(HostCheck, settings=gateway.settings),
        Middleware(Authentication, auth=gateway.auth),
        Middleware(RequestLimits, limits=gateway.settings.limits),
    ]


def _operation_id(route: APIRoute) -> str:
    """The function's name: what a generated client calls the method."""
    return route.name


def _check_rights(app: FastAPI) -> None:
    """Every route but the public ones says which right it needs: one that forgets it does not start."""
    for route in api_routes(app):
        methods = sorted(route.methods or ())
        is_public = all((method, route.path) in PUBLIC for method in methods)
        has_right = any(isinstance(dependency.dependency, Allowed) for dependency in route.dependencies)
        if not is_public and not has_right:
            raise AssertionError(f"{methods} {route.path} names no right that it needs")


def api_routes(app: FastAPI) -> Iterator[APIRoute]:
    """Every route of ours in an app (its schema's own is the framework's)."""
    for route in app.routes:
        if isinstance(route, APIRoute):
            yield route
