"""Numbers that are derived from a job for its workers and its stream: seed, limits, shares. Pure."""

from __future__ import annotations

import hashlib

from rollout_contract import quantities
from rollout_contract.names import Slot, WorkerId
from rollout_contract.podenv import StrictShare
from rollout_contract.spec import Determinism, RolloutJob, RolloutJobSpec, groups_of
from rollout_operator.scale import desired_of
from rollout_stream.settings import JobSettings, StreamLimits

UNACKED_BATCHES_PER_WORKER = 8
"""The high watermark where the spec sets none."""
_SEED_TAG = b"rolloutjob-job-seed-v1"


def seed_for(job: RolloutJob) -> int:
    """The job's seed, 0 ≤ seed < 2⁶³: the spec's, the one in the status, or one that its UID, itself random, gives.

    So a seed that is drawn is the same however often the first reconcile is repeated.
    """
    if job.spec.seed is not None:
        return job.spec.seed
    if job.status.seed is not None:
        return job.status.seed
    return int.from_bytes(hashlib.sha256(_SEED_TAG + job.ref.uid.encode()).digest()[:8], "little") >> 1


def max_unacked_frames(spec: RolloutJobSpec) -> int:
    """The high watermark in frames: the spec's, or 8 batches of every worker."""
    if spec.stream.max_unacked_frames is not None:
        return spec.stream.max_unacked_frames
    workers = sum(desired_of(group, spec) for group in groups_of(spec))
    return UNACKED_BATCHES_PER_WORKER * spec.collector.frames_per_batch * max(1, workers)


def stream_limits(spec: RolloutJobSpec) -> StreamLimits:
    """The limits that the stream should hold."""
    return StreamLimits(
        max_unacked_frames=max_unacked_frames(spec),
        max_bytes=quantities.to_bytes(spec.stream.max_bytes),
        on_full=spec.stream.on_full.value,
        keep_versions=spec.weights.keep_versions,
        claim_idle_seconds=float(spec.stream.claim_idle_seconds),
        max_weights_bytes=quantities.to_bytes(spec.weights.max_bytes),
        max_staleness=spec.weights.max_staleness,
        on_stale=spec.weights.on_stale.value,
    )


def stream_settings(job: RolloutJob) -> JobSettings:
    """What the job's stream is opened with."""
    spec = job.spec
    return JobSettings(
        uid=job.ref.uid,
        seed=seed_for(job),
        total_frames=spec.collector.total_frames,
        init_random_frames=spec.collector.init_random_frames,
        ttl_s=spec.redis.key_ttl_seconds_after_finished,
        groups=tuple(spec.stream.groups or ()),
        slots=tuple(slots_of(spec)) if spec.determinism is Determinism.STRICT else (),
        limits=stream_limits(spec),
    )


def slots_of(spec: RolloutJobSpec) -> list[Slot]:
    """Every slot of the job, in order of (group, index)."""
    return sorted(
        Slot(group.name, index) for group in groups_of(spec) for index in range(desired_of(group, spec))
    )


def strict_share(spec: RolloutJobSpec, worker: WorkerId) -> StrictShare | None:
    """A worker's part of the totals with `determinism: Strict`; None without.

    Whole batches are dealt out in turn, in order of (group, index), the last, partial one too: so rounds of one batch
    of every worker come out even but for the last.
    """
    if spec.determinism is not Determinism.STRICT:
        return None
    order = slots_of(spec)
    place, batch = order.index(worker.slot), spec.collector.frames_per_batch
    total, random = spec.collector.total_frames, spec.collector.init_random_frames
    return StrictShare(
        total_frames=None if total is None else _dealt(total, place, len(order), batch),
        init_random_frames=_dealt(random, place, len(order), batch),
    )


def _dealt(frames: int, place: int, workers: int, batch: int) -> int:
    whole, rest = divmod(frames, batch)
    rounds, last = divmod(whole, workers)
    return (rounds + (place < last)) * batch + (rest if place == last else 0)
