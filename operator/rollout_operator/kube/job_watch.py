"""The watch of RolloutJobs, by kopf, in a thread and event loop of its own. No logic: events are handed over as they are.

kopf tells that something about a job happened; only `on.event` is registered, so it puts neither finalizer nor annotation
on anybody's object. In its own loop, for at its end kopf cancels every task that it finds, and in the main thread it
takes the signal handlers. If it ends by an error (a server that fails for a minute), it is started anew, once the
definition is there: without one kopf would sit and watch nothing, for good. Whether it is dead is judged by `resync`,
which knows what the watch should have brought. Its end has a bound: kopf waits for as long as it takes, and the server
that it waits for may be the reason.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import kopf

from rollout_contract import names
from rollout_operator.kube.resources import Document

log = logging.getLogger(__name__)

REQUEST_TIMEOUT_S = 15.0
MAX_WORKERS = 64
IN_ORDER_S = 1.5
"""How long kopf may take to end when it is asked; after that it is cancelled, and after as long again once more, which it
follows at once."""
STOP_PATIENCE_S = 4.0
"""How long the end of the thread is waited for; it holds nothing that must be given back, and ends with the process."""
FIRST_RESTART_S = 1.0
MAX_RESTART_S = 30.0
HEALTHY_AFTER_S = 120.0

OnEvent = Callable[[str, Document], None]
"""Told of each event: ADDED, MODIFIED or DELETED (or `LISTED` for a job that was there), and the job's document."""


class Halt:
    """A request to end that is made in one thread and heard in the event loop of another.

    A `threading.Event` would be waited for by a thread of that loop, and the loop could not end before it.
    """

    def __init__(self) -> None:
        self._made = threading.Event()
        self._lock = threading.Lock()
        self._hear: Callable[[], object] = lambda: None

    def is_set(self) -> bool:
        """Whether it was made."""
        return self._made.is_set()

    def wait(self, timeout: float) -> bool:
        """Wait for it; whether it was made."""
        return self._made.wait(timeout)

    def set(self) -> None:
        """Make it."""
        with self._lock:
            self._made.set()
            self._hear()

    @contextmanager
    def heard(self) -> Iterator[asyncio.Event]:
        """An event of the running loop that is set with it."""
        loop, event = asyncio.get_running_loop(), asyncio.Event()
        with self._lock:
            self._hear = lambda: loop.call_soon_threadsafe(event.set)
            if self._made.is_set():
                event.set()
        try:
            yield event
        finally:
            with self._lock:
                self._hear = lambda: None


class JobWatch:
    """Jobs of some namespaces (empty: of all). `run` calls `on_event`, and waits for `ready` before each start, in its
    caller's event loop."""

    def __init__(
        self,
        on_event: OnEvent,
        *,
        namespaces: tuple[str, ...],
        ready: Callable[[], Coroutine[Any, Any, None]],
    ) -> None:
        self._on_event = on_event
        self._namespaces = namespaces
        self._ready = ready
        self._renewal = Halt()
        self.restarts = 0

    def renew(self) -> None:
        """Start anew: the watch is dead. From any thread."""
        self._renewal.set()

    async def run(self) -> None:
        """Watch until cancelled."""
        loop = asyncio.get_running_loop()
        halt, ended = Halt(), asyncio.Event()

        def post(kind: str, job: Document) -> None:
            loop.call_soon_threadsafe(self._on_event, kind, job)

        def ready() -> asyncio.Future[None]:
            return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._ready(), loop))

        def work() -> None:
            try:
                self._supervise(post, halt, ready)
            finally:
                with suppress(RuntimeError):  # that loop may be closed by now
                    loop.call_soon_threadsafe(ended.set)

        threading.Thread(target=work, name="job-watch", daemon=True).start()
        try:
            await ended.wait()
            raise RuntimeError("the watch of jobs has ended")
        finally:
            halt.set()
            try:
                async with asyncio.timeout(STOP_PATIENCE_S):
                    await ended.wait()
            except TimeoutError:
                log.warning("the watch of jobs did not end within %.0f s and is left", STOP_PATIENCE_S)

    def _supervise(self, post: OnEvent, halt: Halt, ready: Callable[[], asyncio.Future[None]]) -> None:
        wait = FIRST_RESTART_S
        while not halt.is_set():
            self._renewal = renewal = Halt()
            started = time.monotonic()
            try:
                asyncio.run(self._watch(post, halt, renewal, ready))
            except (
                Exception
            ) as error:  # whatever it is, the watch must go on; the text is the user's only trace of it
                log.warning("the watch of jobs ended: %s", error, exc_info=error)
            if halt.is_set():
                return
            self.restarts += 1
            wait = FIRST_RESTART_S if time.monotonic() - started > HEALTHY_AFTER_S else wait
            halt.wait(wait)
            wait = min(MAX_RESTART_S, 2 * wait)

    async def _watch(
        self, post: OnEvent, halt: Halt, renewal: Halt, ready: Callable[[], asyncio.Future[None]]
    ) -> None:
        with halt.heard() as ended, renewal.heard() as renewed:
            # Made before kopf runs: at its end it cancels every task that came after.
            stopping = asyncio.create_task(first_of(ended, renewed))
            waiting = ready()
            await asyncio.wait({waiting, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if stopping.done():
                waiting.cancel()
                return
            stop = asyncio.Event()
            work = asyncio.create_task(self._serve(post, stop))
            await asyncio.wait({work, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if stopping.done():
                stop.set()
                for _ in range(2):
                    await asyncio.wait({work}, timeout=IN_ORDER_S)
                    work.cancel()
            stopping.cancel()
            with suppress(asyncio.CancelledError):
                await work

    async def _serve(self, post: OnEvent, stop: asyncio.Event) -> None:
        where: dict[str, Any] = (
            {"namespaces": self._namespaces} if self._namespaces else {"clusterwide": True}
        )
        await kopf.operator(
            registry=registry_of(post),
            settings=watch_settings(),
            standalone=True,
            stop_flag=stop,
            **where,
        )


async def first_of(*events: asyncio.Event) -> None:
    """Until one of them is set."""
    waits = {asyncio.create_task(event.wait()) for event in events}
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()


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
