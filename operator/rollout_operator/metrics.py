"""What the operator counts of itself, for Prometheus. Fed by the program; nothing is decided by it."""

from __future__ import annotations

import time
from collections import Counter as Tally
from collections.abc import Awaitable, Callable, Iterator

from prometheus_client import (
    CollectorRegistry,
    Counter,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from rollout_operator.cluster import JobKey
from rollout_operator.kube.cluster import KubernetesCluster
from rollout_operator.kube.gate import Gate
from rollout_operator.kube.resources import Call
from rollout_operator.pods import PodView
from rollout_operator.queue import WorkQueue

DURATIONS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

Handler = Callable[[JobKey], Awaitable[float | None]]


class OperatorMetrics:
    """Counters of one process. `observe` adds what is only looked at when somebody asks."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # a time of creation beside each counter doubles the answer and tells nobody anything
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        self._calls = Counter(
            "rollout_api_calls",
            "Requests to the API server.",
            ["verb", "resource", "code"],
            registry=self.registry,
        )
        self._durations = Histogram(
            "rollout_reconcile_duration_seconds",
            "How long one reconcile of one job took.",
            buckets=DURATIONS_S,
            registry=self.registry,
        )
        self._errors = Counter(
            "rollout_reconcile_errors", "Reconciles that ended in an error.", ["kind"], registry=self.registry
        )

    def on_call(self, call: Call, code: str) -> None:
        """A request was answered (code 0: it was not)."""
        self._calls.labels(call.verb, call.resource, code).inc()

    def timed(self, handler: Handler) -> Handler:
        """The handler, with its calls counted; the histogram's count is the number of reconciles."""

        async def reconcile(key: JobKey) -> float | None:
            started = time.perf_counter()
            try:
                return await handler(key)
            except Exception as error:
                self._errors.labels(type(error).__name__).inc()
                raise
            finally:
                self._durations.observe(time.perf_counter() - started)

        return reconcile

    def observe(
        self,
        cluster: KubernetesCluster,
        queue: WorkQueue[JobKey],
        gate: Gate,
        *,
        left_alone: Callable[[], int],
    ) -> None:
        """From now on tell of these as well. `left_alone` counts jobs that another operator governs."""
        self.registry.register(_Live(cluster, queue, gate, left_alone))

    def render(self) -> bytes:
        """In the text format."""
        return generate_latest(self.registry)


class _Live(Collector):
    """Gauges that are read when they are asked for."""

    def __init__(
        self,
        cluster: KubernetesCluster,
        queue: WorkQueue[JobKey],
        gate: Gate,
        left_alone: Callable[[], int],
    ) -> None:
        self._left_alone = left_alone
        self._cluster = cluster
        self._queue = queue
        self._gate = gate

    def describe(self) -> Iterator[Metric]:
        return iter(())

    def collect(self) -> Iterator[Metric]:
        cluster, queue = self._cluster, self._queue
        yield _gauge("rollout_queue_depth", "Jobs that are due and not in work.", queue.depth)
        yield _gauge(
            "rollout_queue_oldest_seconds", "For how long the oldest of them waits.", queue.oldest_wait_s
        )
        yield _gauge("rollout_leader", "1 while this process may write.", 0.0 if self._gate.reason else 1.0)
        ages = GaugeMetricFamily(
            "rollout_watch_age_seconds", "Since a watch was last heard of.", labels=["watch"]
        )
        ages.add_metric(["pods"], cluster.pods_age_s)
        ages.add_metric(["rolloutjobs"], cluster.resync.age_s)
        yield ages
        missed = CounterMetricFamily("rollout_watch_missed", "Changes of jobs that the watch did not bring.")
        missed.add_metric([], cluster.resync.missed)
        yield missed
        yield _gauge("rollout_jobs", "RolloutJobs that are known.", len(cluster.jobs))
        left = self._left_alone()
        yield _gauge("rollout_jobs_left_alone", "Of them those that another operator governs.", left)
        yield self._pods()
        yield self._desired()

    def _pods(self) -> Metric:
        family = GaugeMetricFamily("rollout_pods", "Worker pods by state.", labels=["state"])
        for state, count in Tally(state_of(pod) for pod in self._cluster.pods).items():
            family.add_metric([state], count)
        return family

    def _desired(self) -> Metric:
        family = GaugeMetricFamily(
            "rollout_desired_workers",
            "Workers that a group should have.",
            labels=["namespace", "job", "group"],
        )
        for key in self._cluster.jobs.keys():  # noqa: SIM118 - no mapping
            status = (self._cluster.jobs.get(key) or {}).get("status") or {}
            for group in status.get("workerGroups") or ():
                family.add_metric([key.namespace, key.name, group["name"]], group.get("desired") or 0)
        return family


def state_of(pod: PodView) -> str:
    """One word for where a pod is in its life."""
    if pod.ended:
        return "failed" if pod.exit_code or pod.phase == "Failed" else "succeeded"
    if pod.ending:
        return "ending"
    if pod.ready:
        return "ready"
    return "starting" if pod.started is not None else "pending"


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)
