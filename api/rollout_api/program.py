"""The gateway as a process in a cluster: composed here, started, and ended in order.

Order of the end, after SIGTERM: not ready (so that no new requests are sent here, while those that come are still
answered), event streams, requests in hand, connections. Called by `python -m rollout_api`; the local run composes the
same app by itself.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from contextlib import AsyncExitStack, suppress
from typing import Final

import uvloop
from fastapi import FastAPI

from rollout_api.app import create_app
from rollout_api.auth import Auth
from rollout_api.environment import AuthKind, ProgramSettings, settings_from
from rollout_api.gateway import gateway_of
from rollout_api.kube.auth import KubernetesAuth
from rollout_api.kube.client import KubernetesClient, load_configuration
from rollout_api.kube.reviews import DelegatedReviews, Reviews, SelfReviews
from rollout_api.kube.sessions import SealedSessions
from rollout_api.kube.store import KubernetesStore
from rollout_api.metrics_app import metrics_app
from rollout_api.reach import Reach, Sessions
from rollout_api.serve import bind, serving, serving_plainly
from rollout_api.settings import SettingsError
from rollout_contract.errors import RolloutError, SpecError
from rollout_contract.exits import ExitCode
from rollout_contract.logs import set_up_logs

logger = logging.getLogger(__name__)

FAILED: Final = 1
"""Exit code: a port is in use, or something of ours failed; the cluster starts it again."""

_QUIET_LOGGERS = ("aiohttp", "asyncio", "kubernetes", "urllib3", "uvicorn")
"""Loggers whose debugging lines may hold headers, and so tokens: never below WARNING."""


def main() -> int:
    """Run until SIGTERM; the exit code."""
    try:
        settings = settings_from(os.environ)
    except SpecError as error:
        print(f"rollout-gateway: the environment is wrong:\n{error}", file=sys.stderr)
        return int(ExitCode.CONFIGURATION)
    set_up_logs(level=settings.log_level, as_json=settings.log_as_json, quiet=_QUIET_LOGGERS)
    try:
        uvloop.run(run(settings))
    except SettingsError as error:
        logger.error("%s", error)
        return int(ExitCode.CONFIGURATION)
    except (RolloutError, OSError) as error:
        logger.error("%s", error)
        return FAILED
    return 0


async def run(settings: ProgramSettings) -> None:
    """Run until SIGTERM or SIGINT, which may come again: then without waiting."""
    stop, stop_now = asyncio.Event(), asyncio.Event()

    def on_signal() -> None:
        (stop_now if stop.is_set() else stop).set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    async with AsyncExitStack() as stack:
        app = await _composed(stack, settings)
        url = await _serve(stack, app, settings)
        logger.info("the gateway answers at %s", url)
        await stop.wait()
        logger.info("ending: not ready from now on")
        gateway_of(app).readiness.is_ending = True
        with suppress(TimeoutError):
            async with asyncio.timeout(settings.drain_s):
                await stop_now.wait()


async def _composed(stack: AsyncExitStack, settings: ProgramSettings) -> FastAPI:
    client = await stack.enter_async_context(KubernetesClient(await load_configuration()))
    sessions = Sessions(
        Reach(
            settings.redis,
            password_file=settings.redis_password_file,
            secrets_dir=settings.secrets_dir,
        )
    )
    stack.push_async_callback(sessions.close)
    return create_app(
        store=KubernetesStore(client), stream=sessions, auth=_auth(settings, client), settings=settings.api
    )


def _auth(settings: ProgramSettings, client: KubernetesClient) -> Auth:
    kinds: dict[AuthKind, type[DelegatedReviews] | type[SelfReviews]] = {
        AuthKind.TOKEN_REVIEW: DelegatedReviews,
        AuthKind.SELF_REVIEW: SelfReviews,
    }
    reviews: Reviews = kinds[settings.auth](client)
    if not settings.session_key:
        logger.warning(
            "ROLLOUT_SESSION_KEY is not set: who signs in to the page is known to this process alone"
        )
    return KubernetesAuth(reviews, SealedSessions(settings.session_key))


async def _serve(stack: AsyncExitStack, app: FastAPI, settings: ProgramSettings) -> str:
    host = settings.api.host
    if settings.metrics_port is not None:
        sock = bind(host, settings.metrics_port)
        await stack.enter_async_context(serving_plainly(metrics_app(app), sock, grace_s=1.0))
    sock = bind(host, settings.port)
    return await stack.enter_async_context(serving(app, sock, grace_s=settings.grace_s, tls=settings.tls))
