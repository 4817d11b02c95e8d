"""The operator as a process on a real cluster: composed here, started, and ended in order.

Order of the start: health server, CRD check, Lease, watches, queue. Of the end: queue, watches, Lease, connections; so
nothing of ours is written once another may begin. Each stage of the end has a bound, whatever the API server does, and so
has the whole (`ending`). Called by `python -m rollout_operator`; the local run composes the same
reconciler by itself.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, suppress
from typing import Any

from rollout_contract.errors import RolloutError, SpecError
from rollout_contract.exits import ExitCode
from rollout_contract.logs import set_up_logs
from rollout_operator.cluster import JobKey
from rollout_operator.ending import EndLimit
from rollout_operator.environment import ProgramSettings, settings_from
from rollout_operator.health import (
    MAX_QUEUE_AGE_S,
    MAX_WATCH_AGE_S,
    Health,
    HealthServer,
    not_older_than,
)
from rollout_operator.kube.api_client import KubernetesApi
from rollout_operator.kube.cleanup import Cleanup
from rollout_operator.kube.cluster import KubernetesCluster
from rollout_operator.kube.crd_check import CrdCheck
from rollout_operator.kube.events import EventRecorder
from rollout_operator.kube.gate import Gate
from rollout_operator.kube.governing import Governing
from rollout_operator.kube.lease import Lease
from rollout_operator.kube.other_leases import OtherLeases
from rollout_operator.metrics import OperatorMetrics
from rollout_operator.queue import WorkQueue
from rollout_operator.reach import Reach
from rollout_operator.reconcile import Reconciler
from rollout_operator.redis_streams import RedisStreams

log = logging.getLogger(__name__)

FAILED = 1
"""Exit code: another operator took over, or a part of this one ended; the cluster starts it again."""

CLOSE_S = 2.0
"""How long closing some connections may take."""

_QUIET_LOGGERS = ("kopf", "aiohttp", "asyncio", "kubernetes")
"""Loggers that tell of each event at INFO, or of whole answers at DEBUG."""


def main() -> int:
    """Run until SIGTERM; the exit code."""
    try:
        settings = settings_from(os.environ)
    except SpecError as error:
        print(f"rollout-operator: the environment is wrong:\n{error}", file=sys.stderr)
        return int(ExitCode.CONFIGURATION)
    set_up_logs(level=settings.log_level, as_json=settings.log_as_json, quiet=_QUIET_LOGGERS)
    return asyncio.run(run(settings, on_end=EndLimit(code=FAILED).start))


async def run(settings: ProgramSettings, *, on_end: Callable[[], None] = lambda: None) -> int:
    """Run until SIGTERM or SIGINT; the exit code. `on_end` is called when the end begins, for whatever reason."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    work = asyncio.create_task(Program(settings, on_end=on_end).run(), name="work")
    stopping = asyncio.create_task(stop.wait(), name="stop")
    try:
        await asyncio.wait({work, stopping}, return_when=asyncio.FIRST_COMPLETED)
        on_end()
        if not work.done():
            log.info("ending in order")
            work.cancel()
        with suppress(asyncio.CancelledError):
            await work
    except (RolloutError, OSError, ExceptionGroup) as error:
        expected, unexpected = _told_apart(error)
        if unexpected is not None:
            log.critical("a part of the operator ended by a fault of its own", exc_info=unexpected)
        for text in expected:
            log.error("%s", text)
        return FAILED
    finally:
        stopping.cancel()
    return 0


def _told_apart(error: Exception) -> tuple[list[str], BaseException | None]:
    """What is to be told in a line each, and what needs its traceback."""
    group = error if isinstance(error, ExceptionGroup) else ExceptionGroup("", [error])
    known, rest = group.split((RolloutError, OSError))
    return ([str(leaf) for leaf in _leaves(known)] if known else []), rest


def _leaves(group: BaseExceptionGroup[Any]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error


async def _within(seconds: float, close: Callable[[], Awaitable[None]], what: str) -> None:
    """Close something, or leave it: the process ends anyway."""
    try:
        async with asyncio.timeout(seconds):
            await close()
    except TimeoutError:
        log.warning("%s were not closed within %.0f s and are left", what, seconds)


class Program:
    """Everything that one process of the operator consists of."""

    def __init__(self, settings: ProgramSettings, *, on_end: Callable[[], None] = lambda: None) -> None:
        self.settings = settings
        self._on_end = on_end
        self.health = Health()
        self.metrics = OperatorMetrics()
        self.health.render_metrics = self.metrics.render
        self.server = HealthServer(self.health, host=settings.http_host, port=settings.http_port)
        self._stage = "starting"
        self.health.ready.append(lambda: self._stage)

    async def run(self) -> None:
        """Until cancelled. LeaseLost when another takes over."""
        async with AsyncExitStack() as stack:
            await self.server.start()
            stack.push_async_callback(self.server.close)
            api = KubernetesApi(on_call=self.metrics.on_call)
            stack.push_async_callback(_within, CLOSE_S, api.close, "the connections to the API server")
            crd = CrdCheck(api)
            self.health.ready.append(crd.reason)
            self._stage = ""
            await crd.wait()
            lease = self._lease(api)
            self.health.ready.append(lease.reason)
            stack.push_async_callback(lease.release)
            await lease.acquire()
            await self._work(api, crd, lease)

    def _lease(self, api: KubernetesApi) -> Lease:
        settings = self.settings
        return Lease(
            api, namespace=settings.own_namespace, name=settings.lease_name, identity=settings.identity
        )

    async def _work(self, api: KubernetesApi, crd: CrdCheck, lease: Lease) -> None:
        settings, gate = self.settings, Gate([lease.reason, crd.reason])
        recorder = EventRecorder(api, instance=settings.identity)
        cluster = KubernetesCluster(api, gate, recorder, namespaces=settings.namespaces, ready=crd.wait)
        reach = Reach(settings.redis, settings.redis_password_file, settings.secrets_dir)
        streams = RedisStreams(settings.operator, reach=reach)
        reconciler = Reconciler(cluster, streams, settings.operator)
        cleanup = Cleanup(cluster, streams, reconciler.reconcile)
        own = f"{settings.own_namespace}/{settings.lease_name}"
        governing = Governing(cluster, streams, OtherLeases(api), cleanup.reconcile, own)
        queue: WorkQueue[JobKey] = WorkQueue(self.metrics.timed(governing.reconcile))
        self.metrics.observe(cluster, queue, gate, left_alone=lambda: len(governing.left))
        self._check(cluster, queue)
        try:
            async with asyncio.TaskGroup() as tasks:
                # Cancelled together; the queue's handlers are waited for before this block ends.
                for name, part in self._parts(crd, lease, cluster, queue):
                    tasks.create_task(self._ending_all(part), name=name)
        finally:
            await _within(CLOSE_S, streams.close, "the connections to Redis")

    async def _ending_all(self, part: Coroutine[Any, Any, None]) -> None:
        """A part, with whose end that of all begins."""
        try:
            await part
        finally:
            self._on_end()

    def _parts(
        self, crd: CrdCheck, lease: Lease, cluster: KubernetesCluster, queue: WorkQueue[JobKey]
    ) -> list[tuple[str, Coroutine[Any, Any, None]]]:
        return [
            ("queue", queue.run()),
            ("watches", cluster.watch(queue.add)),
            ("lease", lease.keep()),
            ("crd", crd.run()),
        ]

    def _check(self, cluster: KubernetesCluster, queue: WorkQueue[JobKey]) -> None:
        checks = (
            not_older_than("the watch of pods is silent", lambda: cluster.pods_age_s, MAX_WATCH_AGE_S),
            not_older_than("the watch of jobs is behind", lambda: cluster.resync.age_s, MAX_WATCH_AGE_S),
            not_older_than("the queue is stuck", lambda: queue.oldest_wait_s, MAX_QUEUE_AGE_S),
        )
        self.health.alive.extend(checks)
        self.health.ready.append(lambda: "" if cluster.is_synced else "pods are not listed yet")
