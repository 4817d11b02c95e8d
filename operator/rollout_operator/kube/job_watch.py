"""The watch of RolloutJobs, by kopf, in a thread and event loop of its own. No logic: events are handed over as they are.

kopf tells that something about a job happened; only `on.event` is registered, so it puts neither finalizer nor annotation
on anybody's object. In its own loop, for at its end kopf cancels every task that it finds, and in the main thread it
takes the signal handlers. If it ends by an error (a server that fails for a minute), it is started anew; whether that
lasts too long is judged by `resync`, which knows what the watch should have brought.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import kopf

from rollout_contract import names
from rollout_operator.kube.resources import Document

log = logging.getLogger(__name__)

REQUEST_TIMEOUT_S = 15.0
MAX_WORKERS = 64
STOP_PATIENCE_S = 10.0
FIRST_RESTART_S = 1.0
MAX_RESTART_S = 30.0
HEALTHY_AFTER_S = 120.0

OnEvent = Callable[[str, Document], None]
"""Told of each event: ADDED, MODIFIED or DELETED (or `LISTED` for a job that was there), and the job's document."""


class JobWatch:
    """Jobs of some namespaces (empty: of all). `run` calls `on_event` in its caller's event loop."""

    def __init__(self, on_event: OnEvent, *, namespaces: tuple[str, ...]) -> None:
        self._on_event = on_event
        self._namespaces = namespaces
        self.restarts = 0

    async def run(self) -> None:
        """Watch until cancelled."""
        loop = asyncio.get_running_loop()
        stop, ended = threading.Event(), asyncio.Event()

        def post(kind: str, job: Document) -> None:
            loop.call_soon_threadsafe(self._on_event, kind, job)

        def work() -> None:
            try:
                self._supervise(post, stop)
            finally:
                loop.call_soon_threadsafe(ended.set)

        thread = threading.Thread(target=work, name="job-watch", daemon=True)
        thread.start()
        try:
            await ended.wait()
            raise RuntimeError("the watch of jobs has ended")
        finally:
            stop.set()
            await asyncio.to_thread(thread.join, STOP_PATIENCE_S)

    def _supervise(self, post: OnEvent, stop: threading.Event) -> None:
        wait = FIRST_RESTART_S
        while not stop.is_set():
            started = time.monotonic()
            try:
                asyncio.run(self._watch(post, stop))
            except (
                Exception
            ) as error:  # whatever it is, the watch must go on; the text is the user's only trace of it
                log.warning("the watch of jobs ended: %s", error, exc_info=error)
            if stop.is_set():
                return
            self.restarts += 1
            wait = FIRST_RESTART_S if time.monotonic() - started > HEALTHY_AFTER_S else wait
            stop.wait(wait)
            wait = min(MAX_RESTART_S, 2 * wait)

    async def _watch(self, post: OnEvent, stop: threading.Event) -> None:
        where: dict[str, Any] = (
            {"namespaces": self._namespaces} if self._namespaces else {"clusterwide": True}
        )
        await kopf.operator(
            registry=registry_of(post), settings=watch_settings(), standalone=True, stop_flag=stop, **where
        )


def registry_of(post: OnEvent) -> kopf.OperatorRegistry:
    """The handlers: hand over, log in."""
    registry = kopf.OperatorRegistry()

    @kopf.on.event(names.GROUP_NAME, names.VERSION, names.PLURAL, registry=registry)
    def on_event(*, event: Any, **_: Any) -> None:
        post(event["type"] or "LISTED", dict(event["object"]))

    @kopf.on.login(registry=registry, errors=kopf.ErrorsMode.TEMPORARY)
    def log_in(**kwargs: Any) -> kopf.ConnectionInfo | None:
        return kopf.login_with_kubeconfig(**kwargs) or kopf.login_with_service_account(**kwargs)

    return registry


def watch_settings() -> kopf.OperatorSettings:
    """No peering, no scanning, no events of its own; time-outs that fit a server that restarts."""
    settings = kopf.OperatorSettings()
    settings.peering.standalone = True
    settings.scanning.disabled = True
    settings.posting.enabled = False
    settings.networking.request_timeout = REQUEST_TIMEOUT_S
    settings.networking.error_backoffs = (0.5, 1, 2, 3, 5, 8)
    settings.queueing.worker_limit = MAX_WORKERS
    settings.queueing.idle_timeout = 1.0
    settings.process.ultimate_exiting_timeout = None
    return settings
