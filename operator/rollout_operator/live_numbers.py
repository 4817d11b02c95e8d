"""The numbers in a status that come from the stream: progress, policy versions, back-pressure. Pure.

Where the stream cannot be seen, the numbers that were known stay.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from rollout_contract import quantities
from rollout_contract.messages import Heartbeat
from rollout_contract.spec import RolloutJob, WeightsSpec
from rollout_contract.status import (
    ConditionStatus,
    Progress,
    Reason,
    StreamStatus,
    WeightsStatus,
    format_time,
)
from rollout_operator.observed import StreamFacts
from rollout_operator.pods import PodView
from rollout_operator.scale import WAITING_STATES


def progress_of(
    job: RolloutJob, facts: StreamFacts | None, pods: Iterable[PodView], now: float
) -> Progress | None:
    """How far the job is, as of now."""
    if facts is None or not facts.is_open:
        return job.status.progress
    total = facts.total_frames
    age = facts.last_frame_age
    rate = sum(beat.frames_per_second for beat in beats_of(facts, pods))
    return Progress(
        frames=facts.frames,
        percent=None if not total else min(100, 100 * facts.frames // total),
        frames_per_second=round(rate),
        episodes=facts.episodes,
        last_frame_time=None if age is None else _text(now - age),
        update_time=_text(now),
    )


def weights_of(
    old: WeightsStatus | None, facts: StreamFacts | None, pods: Iterable[PodView]
) -> WeightsStatus | None:
    """The newest version, and the range that workers run."""
    if facts is None or not facts.is_open:
        return old
    loaded = [beat.policy_version for beat in beats_of(facts, pods)]
    return WeightsStatus(
        latest_version=facts.newest_version,
        min_loaded_version=min(loaded, default=None),
        max_loaded_version=max(loaded, default=None),
    )


def stream_of(old: StreamStatus | None, facts: StreamFacts | None) -> StreamStatus | None:
    """The data plane. `key` tells from the first opening on that the job's keys were there."""
    if facts is None or not facts.is_open:
        return old
    return StreamStatus(
        key=facts.key,
        unacked_frames=facts.unacked_frames,
        bytes=quantities.format_bytes(facts.unacked_bytes),
        max_unacked_frames=facts.max_unacked_frames,
        dropped_frames=facts.dropped_frames,
    )


def staleness_of(
    weights: WeightsSpec, facts: StreamFacts, pods: Iterable[PodView]
) -> tuple[ConditionStatus, Reason, str]:
    """The condition WeightsStale: who refused the newest version, or lags behind the bound."""
    beats = beats_of(facts, pods)
    for beat in beats:
        if beat.rejected_version and beat.rejected_version == facts.newest_version:
            words = f": {beat.last_error}" if beat.last_error else ""
            worker, kept, newest = f"{beat.group}-{beat.index}", beat.policy_version, beat.rejected_version
            message = f"worker {worker} keeps version {kept}, for {newest} does not fit{words}"
            return ConditionStatus.TRUE, Reason.VERSION_REJECTED, message
    bound = weights.max_staleness
    behind = [beat for beat in beats if bound is not None and _lags(beat, bound, weights, facts)]
    if behind:
        worst = min(behind, key=lambda beat: beat.policy_version)
        message = (
            f"worker {worst.group}-{worst.index} acts with version {worst.policy_version}, the newest is "
            f"{facts.newest_version}, maxStaleness is {bound}"
        )
        return ConditionStatus.TRUE, Reason.BEYOND_BOUND, message
    return ConditionStatus.FALSE, Reason.WITHIN_BOUND, ""


def _lags(beat: Heartbeat, bound: int, weights: WeightsSpec, facts: StreamFacts) -> bool:
    """Whether a worker that collects has missed a version for longer than fetching it may take.

    The batch in hand is finished with the version that it began with, so a short lag is no fault.
    """
    if beat.state in WAITING_STATES or facts.newest_version - beat.policy_version <= bound:
        return False
    published = facts.version_times.get(beat.policy_version + bound + 1)
    return published is None or facts.server_time - published > weights.fetch_timeout_seconds


def beats_of(facts: StreamFacts, pods: Iterable[PodView]) -> list[Heartbeat]:
    """The fresh heartbeats of the workers that run, in order of worker."""
    running = sorted((pod for pod in pods if pod.alive), key=lambda pod: pod.worker)
    return [beat for pod in running if (beat := facts.fresh_heartbeat(pod)) is not None]


def _text(seconds: float) -> str:
    return format_time(datetime.fromtimestamp(seconds, UTC))
