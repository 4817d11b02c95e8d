"""The gateway's own metrics, and the jobs' live numbers, for Prometheus.

Every app has a registry of its own, so that several may live in one process. Labels are bounded: routes by their
template, never by what a caller wrote.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.types import Scope

from rollout_api.models import Live

CONTENT_TYPE = CONTENT_TYPE_LATEST
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Metrics:
    """What the gateway counts about itself."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "rollout_gateway_requests",
            "Requests by route.",
            ("method", "route", "status"),
            registry=self.registry,
        )
        self._seconds = Histogram(
            "rollout_gateway_request_seconds",
            "Duration of requests, but transfers and event streams.",
            ("route",),
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self.event_clients = Gauge(
            "rollout_gateway_event_clients", "Open event streams.", registry=self.registry
        )
        self.uploaded_bytes = Counter(
            "rollout_gateway_uploaded_bytes", "Weights taken, published or not.", registry=self.registry
        )
        self.downloaded_bytes = Counter(
            "rollout_gateway_downloaded_bytes", "Weights handed out.", registry=self.registry
        )
        self.live_reads = Counter(
            "rollout_gateway_live_reads",
            "Reads of a job's live numbers from Redis.",
            ("result",),
            registry=self.registry,
        )

    def observe(self, scope: Scope, status: int, seconds: float) -> None:
        """Count one request that has ended."""
        route = getattr(scope.get("route"), "path", "other")
        method = scope["method"] if scope["method"] in METHODS else "other"
        self._requests.labels(method, route, str(status)).inc()
        if not route.endswith(("/events", "/weights", "/weights/{version}")):
            self._seconds.labels(route).observe(seconds)

    def exposition(self, jobs: Iterable[tuple[str, str, Live]]) -> bytes:
        """Everything as text, with the live numbers of these jobs (namespace, name, numbers)."""
        registry = CollectorRegistry()
        registry.register(_Families(list(_job_metrics(jobs))))
        return generate_latest(self.registry) + generate_latest(registry)


class _Families:
    """A collector of metrics that were made before."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


_JOB_COUNTERS: tuple[tuple[str, str, Callable[[Live], float | None]], ...] = (
    ("rollout_frames", "Frames appended.", lambda live: live.progress.frames),
    ("rollout_batches", "Batches appended.", lambda live: live.progress.batches),
    ("rollout_episodes", "Episodes finished.", lambda live: live.progress.episodes),
    ("rollout_frames_acked", "Frames acked by every group.", lambda live: live.stream.acked_frames),
    ("rollout_frames_dropped", "Frames never delivered.", lambda live: live.stream.dropped_frames),
    ("rollout_duplicates", "Repeated appends.", lambda live: live.stream.duplicates),
    ("rollout_bad_entries", "Entries that were no frames.", lambda live: live.stream.bad_entries),
)
_JOB_GAUGES: tuple[tuple[str, str, Callable[[Live], float | None]], ...] = (
    ("rollout_frames_per_second", "Sum over the workers.", lambda live: live.progress.frames_per_second),
    ("rollout_workers", "Workers with a fresh heartbeat.", lambda live: live.progress.workers),
    ("rollout_unacked_frames", "Frames that wait for an ack.", lambda live: live.stream.unacked_frames),
    ("rollout_unacked_bytes", "Bytes that wait for an ack.", lambda live: live.stream.unacked_bytes),
    ("rollout_policy_version", "Newest published version.", lambda live: live.weights.latest_version),
    (
        "rollout_policy_version_lag",
        "Versions that the slowest worker is behind.",
        lambda live: live.weights.lag,
    ),
    ("rollout_seed_epoch", "Changes of the seed.", lambda live: live.seed.epoch),
    ("rollout_recent_return", "Mean return of the newest episodes.", lambda live: live.recent_return),
)


def _job_metrics(jobs: Iterable[tuple[str, str, Live]]) -> Iterable[Metric]:
    found = list(jobs)
    labels = ("namespace", "job")
    for name, text, value_of in _JOB_COUNTERS:
        counter = CounterMetricFamily(name, text, labels=labels)
        for namespace, job, live in found:
            counter.add_metric((namespace, job), value_of(live) or 0)
        yield counter
    for name, text, value_of in _JOB_GAUGES:
        gauge = GaugeMetricFamily(name, text, labels=labels)
        for namespace, job, live in found:
            value = value_of(live)
            if value is not None:
                gauge.add_metric((namespace, job), value)
        yield gauge
