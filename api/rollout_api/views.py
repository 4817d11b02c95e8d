"""What is shown of a job: pure functions from the resource and from Redis' facts to the models of the interface."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from statistics import fmean

from rollout_api.live import LOST_AFTER_S, RECENT_EPISODES, Away, Look
from rollout_api.models import (
    CurvePoint,
    Episodes,
    JobStatus,
    Live,
    LiveProgress,
    LiveSeed,
    LiveStream,
    LiveWeights,
    Quantiles,
    WeightsList,
    WeightsVersion,
    Worker,
)
from rollout_contract.messages import Heartbeat, WeightsRecord, WorkerState
from rollout_contract.spec import RolloutJob
from rollout_contract.status import format_time
from rollout_stream.progress import EpisodeRecord, Progress

GONE = frozenset({WorkerState.FINISHED, WorkerState.FAILED})


def status_of(job: RolloutJob, look: Look | Away | None) -> JobStatus:
    """Both halves of a job's status; without a look, the first alone."""
    status = job.status
    return JobStatus(
        namespace=job.metadata.namespace,
        name=job.metadata.name,
        uid=job.metadata.uid or "",
        generation=job.metadata.generation or 0,
        observed_generation=status.observed_generation,
        suspend=job.spec.suspend,
        state=status.state,
        ready_workers=status.ready_workers,
        start_time=status.start_time,
        completion_time=status.completion_time,
        conditions=list(status.conditions),
        worker_groups=list(status.worker_groups),
        last_failure=status.last_failure,
        live=live_of(look) if isinstance(look, Look) else None,
        live_error=look.error if isinstance(look, Away) else None,
    )


def live_of(look: Look) -> Live:
    """Redis' half of the status."""
    facts, now = look.facts, look.server_now
    alive = [beat for beat in facts.workers if not is_lost(beat, now) and beat.state not in GONE]
    return Live(
        progress=_progress(facts, alive, look.age_s),
        stream=_stream(facts, look.age_s),
        weights=_weights(facts, alive, now),
        seed=LiveSeed(
            seed=facts.control.seed,
            epoch=facts.control.seed_epoch,
            min_worker_epoch=min((beat.seed_epoch for beat in alive), default=None),
            age_seconds=_rounded(look.age_s),
        ),
        recent_return=_recent_return(facts.episodes),
    )


def _recent_return(episodes: Sequence[EpisodeRecord]) -> float | None:
    newest = episodes[-RECENT_EPISODES:]
    return round(fmean(e.value for e in newest), 4) if newest else None


def _progress(facts: Progress, alive: Sequence[Heartbeat], age_s: float) -> LiveProgress:
    counters = facts.counters
    frames, total = counters.frames, facts.total_frames
    return LiveProgress(
        frames=frames,
        total_frames=total,
        percent=round(100 * frames / total, 2) if total else None,
        frames_per_second=round(sum(finite(beat.frames_per_second) for beat in alive), 1),
        batches=counters.batches,
        episodes=counters.episodes,
        workers=len(alive),
        age_seconds=_rounded(age_s),
    )


def _stream(facts: Progress, age_s: float) -> LiveStream:
    counters = facts.counters
    return LiveStream(
        unacked_frames=counters.unacked_frames,
        unacked_bytes=counters.unacked_bytes,
        max_unacked_frames=facts.control.limits.max_unacked_frames,
        acked_frames=counters.acked_frames,
        dropped_frames=counters.dropped_frames,
        duplicates=counters.duplicates,
        bad_entries=counters.bad,
        groups=[group.name for group in facts.groups],
        age_seconds=_rounded(age_s),
    )


def _weights(facts: Progress, alive: Sequence[Heartbeat], now: float) -> LiveWeights:
    loaded = [beat.policy_version for beat in alive]
    newest = facts.newest_version
    record = next((r for r in facts.versions if r.version == newest), None)
    return LiveWeights(
        latest_version=newest,
        min_loaded_version=min(loaded, default=None),
        max_loaded_version=max(loaded, default=None),
        lag=max(0, newest - min(loaded, default=newest)),
        age_seconds=_rounded(max(0.0, now - record.time)) if record else None,
    )


def is_lost(beat: Heartbeat, now: float) -> bool:
    """Whether nothing was heard from a worker for too long. One that has said goodbye is not lost."""
    return beat.state not in GONE and now - beat.seen > LOST_AFTER_S


def worker_row(beat: Heartbeat, now: float) -> Worker:
    """A heartbeat as a row of the list of workers."""
    return Worker(
        group=beat.group,
        index=beat.index,
        attempt=beat.attempt,
        node=beat.node,
        state=beat.state,
        is_lost=is_lost(beat, now),
        frames=beat.frames,
        frames_per_second=round(finite(beat.frames_per_second), 1),
        policy_version=beat.policy_version,
        rejected_version=beat.rejected_version,
        seed_epoch=beat.seed_epoch,
        sequence=beat.sequence,
        last_error=beat.last_error,
        started_at=time_text(beat.started),
        last_seen_seconds=_rounded(max(0.0, now - beat.seen)),
    )


def weights_list(records: Iterable[WeightsRecord], workers: Sequence[Heartbeat], now: float) -> WeightsList:
    """The kept versions, newest first, each with how many workers act with it."""
    acting = [beat.policy_version for beat in workers if not is_lost(beat, now) and beat.state not in GONE]
    items = [
        WeightsVersion(
            policy_version=record.version,
            size_bytes=record.size,
            digest=record.digest,
            published_at=time_text(record.time),
            publisher=record.publisher,
            workers=acting.count(record.version),
        )
        for record in sorted(records, key=lambda record: record.version, reverse=True)
    ]
    latest = items[0].policy_version if items else 0
    return WeightsList(latest_version=latest, initial_workers=acting.count(0), items=items)


def episodes_of(episodes: Sequence[EpisodeRecord], *, total: int, last: int, points: int) -> Episodes:
    """Spread of the newest `last` episodes, and a curve of at most `points` points over all that are there."""
    newest = episodes[-last:]
    return Episodes(
        total=total,
        count=len(newest),
        returns=quantiles([e.value for e in newest]),
        lengths=quantiles([float(e.length) for e in newest]),
        curve=curve_of(episodes, points),
    )


def curve_of(episodes: Sequence[EpisodeRecord], points: int) -> list[CurvePoint]:
    """Consecutive episodes of equal number as one point each; the last point may hold fewer."""
    size = max(1, -(-len(episodes) // points))
    return [
        CurvePoint(
            frames=group[-1].frames,
            episodes=len(group),
            mean_return=fmean(e.value for e in group),
            mean_length=fmean(e.length for e in group),
            policy_version=group[-1].policy_version,
        )
        for group in (episodes[start : start + size] for start in range(0, len(episodes), size))
    ]


def quantiles(values: Sequence[float]) -> Quantiles | None:
    """Mean, extremes and quantiles (linear between neighbours, as NumPy's default); None of nothing."""
    if not values:
        return None
    ordered = sorted(values)
    return Quantiles(
        mean=fmean(ordered),
        min=ordered[0],
        p10=_quantile(ordered, 0.10),
        p25=_quantile(ordered, 0.25),
        p50=_quantile(ordered, 0.50),
        p75=_quantile(ordered, 0.75),
        p90=_quantile(ordered, 0.90),
        max=ordered[-1],
    )


def _quantile(ordered: Sequence[float], share: float) -> float:
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def finite(value: float) -> float:
    """The value, 0 for what JSON cannot say."""
    return value if math.isfinite(value) else 0.0


def time_text(seconds: float) -> str | None:
    """RFC 3339 of a time in seconds since 1970; None for one that was never set or cannot be."""
    if not 0 < seconds < 253_402_300_800:  # the year 10000
        return None
    return format_time(datetime.fromtimestamp(seconds, UTC))


def _rounded(seconds: float) -> float:
    return round(seconds, 3)
