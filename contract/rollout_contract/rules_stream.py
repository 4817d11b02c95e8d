"""Rules of the data plane: Redis, the stream's limits, weights. Part of `spec_rules`.

Each yields a fault at the field that a user would change, and says what to write instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from rollout_contract import quantities
from rollout_contract.errors import Fault
from rollout_contract.faults import duplicates, shown
from rollout_contract.rules_production import JOINT_BATCHES
from rollout_contract.spec_enums import OnFull, OnStale, RateLimitType
from rollout_contract.spec_models import RateLimit, RolloutJobSpec


def connection_has_a_host(spec: RolloutJobSpec) -> Iterator[Fault]:
    redis = spec.redis
    written = {
        "port": redis.port if redis.port != 6379 else None,
        "tls": redis.tls,
        "authSecretRef": redis.auth_secret_ref,
    }
    for name, value in written.items():
        if redis.host is None and value is not None:
            yield Fault(
                f"spec.redis.{name}",
                None,
                "has no effect without host: the operator's default server has its own. Write host, or remove it.",
            )


def consumer_groups_are_unique(spec: RolloutJobSpec) -> Iterator[Fault]:
    for name in duplicates(spec.stream.groups or ()):
        yield Fault("spec.stream.groups", name, f"{shown(name)} is there more than once. Write it once.")


def watermark_holds_a_batch(spec: RolloutJobSpec) -> Iterator[Fault]:
    limit, frames = spec.stream.max_unacked_frames, spec.collector.frames_per_batch
    if limit is not None and limit < frames:
        yield Fault(
            "spec.stream.maxUnackedFrames",
            limit,
            f"{limit} is less than framesPerBatch ({frames}): not one batch would fit. Use at least {frames}.",
        )


_RATE_LIMIT_FIELDS: dict[RateLimitType, tuple[tuple[str, ...], tuple[str, ...]]] = {
    RateLimitType.QUEUE: ((), ()),
    RateLimitType.MIN_SIZE: (("minFrames",), ()),
    RateLimitType.SAMPLE_TO_INSERT: (("samplesPerInsert", "errorBufferFrames"), ("minFrames",)),
}
"""Of each type: the fields that it needs, and those that it takes as well."""


def rate_limit_is_complete(spec: RolloutJobSpec) -> Iterator[Fault]:
    limit = spec.stream.rate_limit
    if limit is None:
        return
    needed, optional = _RATE_LIMIT_FIELDS[limit.type]
    values = {
        "samplesPerInsert": limit.samples_per_insert,
        "minFrames": limit.min_frames,
        "errorBufferFrames": limit.error_buffer_frames,
    }
    for name, value in values.items():
        if name in needed and value is None:
            yield Fault(
                f"spec.stream.rateLimit.{name}",
                None,
                f"required value is missing: type {limit.type} needs it",
            )
        if name not in (*needed, *optional) and value is not None:
            yield Fault(
                f"spec.stream.rateLimit.{name}",
                value,
                f"has no effect with type {limit.type}. Remove it, or use another type.",
            )


def rate_limit_can_move(spec: RolloutJobSpec) -> Iterator[Fault]:
    limit = spec.stream.rate_limit
    if limit is None:
        return
    yield from _error_buffer_is_wide_enough(limit, spec.collector.frames_per_batch)
    watermark = spec.stream.max_unacked_frames
    blocks = spec.stream.on_full is OnFull.BLOCK and limit.type is not RateLimitType.QUEUE
    if blocks and watermark is not None and limit.min_frames is not None and limit.min_frames > watermark:
        yield Fault(
            "spec.stream.rateLimit.minFrames",
            limit.min_frames,
            f"{limit.min_frames} is more than maxUnackedFrames ({watermark}): readers would wait for frames that writers "
            f"may not write. Use at most {watermark}.",
        )


def _error_buffer_is_wide_enough(limit: RateLimit, frames: int) -> Iterator[Fault]:
    buffer, samples = limit.error_buffer_frames, limit.samples_per_insert
    if limit.type is not RateLimitType.SAMPLE_TO_INSERT or buffer is None or samples is None:
        return
    least = max(Fraction(1), quantities.parse(samples)) * frames
    if buffer < least:
        needed = -(-least.numerator // least.denominator)
        yield Fault(
            "spec.stream.rateLimit.errorBufferFrames",
            buffer,
            f"{buffer} blocks both sides: it must hold max(1, samplesPerInsert) × framesPerBatch. Use at least {needed}.",
        )


def newest_weights_need_joint_batches(spec: RolloutJobSpec) -> Iterator[Fault]:
    if spec.weights.max_staleness == 0 and spec.collector.mode not in JOINT_BATCHES:
        yield Fault(
            "spec.weights.maxStaleness",
            0,
            f"0 is not possible with mode {spec.collector.mode}, which collects while weights change. "
            "Use at least 1, or mode Sync or MultiSync.",
        )


def drop_needs_a_bound(spec: RolloutJobSpec) -> Iterator[Fault]:
    if spec.weights.on_stale is OnStale.DROP and spec.weights.max_staleness is None:
        yield Fault(
            "spec.weights.onStale",
            spec.weights.on_stale.value,
            "Drop has no effect without maxStaleness. Set maxStaleness, or use Pace.",
        )
