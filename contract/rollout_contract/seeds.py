"""Seeds are derived, never drawn: pure functions of the full address of what they seed.

The derivation is fixed for all time (golden-tested): the first four bytes, little-endian, of SHA-256 over a tag, the
integers as unsigned 64-bit little-endian, and the worker group's name in UTF-8.
"""

from __future__ import annotations

import hashlib
import struct

SEED_TAG = b"rolloutjob-seed-v1"
POLICY_TAG = b"rolloutjob-policy-v1"
INIT_TAG = b"rolloutjob-init-v1"


def seed_of(job_seed: int, seed_epoch: int, group: str, env_index: int, attempt: int) -> int:
    """Seed of one environment, 0 ≤ seed < 2³².

    `env_index` counts over all environments of the group, in order of worker index; `attempt` is 0 until the worker
    has been replaced. ValueError for a negative number or one over 2⁶⁴-1.
    """
    return _derive(SEED_TAG, (job_seed, seed_epoch, env_index, attempt), group)


def policy_seed_of(job_seed: int, seed_epoch: int, group: str, worker_index: int, attempt: int) -> int:
    """Seed of a worker's policy randomness (exploration), 0 ≤ seed < 2³²."""
    return _derive(POLICY_TAG, (job_seed, seed_epoch, worker_index, attempt), group)


def init_seed_of(job_seed: int) -> int:
    """Seed of the policy's initial weights (version 0): the same for every worker of the job."""
    return _derive(INIT_TAG, (job_seed,), "")


def _derive(tag: bytes, integers: tuple[int, ...], group: str) -> int:
    try:
        fields = struct.pack(f"<{len(integers)}Q", *integers)
    except struct.error as error:
        raise ValueError(f"a seed is derived from integers in 0..2**64-1, not from {integers}") from error
    return int.from_bytes(hashlib.sha256(tag + fields + group.encode()).digest()[:4], "little")
