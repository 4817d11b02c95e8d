"""Seeds: golden values, distinctness, independence of how environments are spread."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout_contract.seeds import init_seed_of, policy_seed_of, seed_of

GOLDEN = [
    ((0, 0, "default", 0, 0), 2955637511),
    ((7, 0, "cpu", 0, 0), 222982931),
    ((7, 1, "cpu", 31, 2), 2923073116),
    ((2**64 - 1, 0, "g", 2**32, 9999), 428118037),
]


@pytest.mark.parametrize(("address", "seed"), GOLDEN)
def test_golden_seeds(address: tuple[int, int, str, int, int], seed: int) -> None:
    """These never change: runs of years ago must be repeatable."""
    assert seed_of(*address) == seed
    assert (policy_seed_of(7, 0, "cpu", 0, 0), init_seed_of(7)) == (2567483244, 3883549954)


def by_hand(job_seed: int, epoch: int, group: str, env_index: int, attempt: int) -> int:
    """The derivation as the design states it, written a second time with other means."""
    parts = b"".join(n.to_bytes(8, "little") for n in (job_seed, epoch, env_index, attempt))
    digest = hashlib.sha256(b"rolloutjob-seed-v1" + parts + group.encode("utf-8")).digest()
    return digest[0] | digest[1] << 8 | digest[2] << 16 | digest[3] << 24


@given(*[st.integers(0, 2**64 - 1)] * 2, st.text(max_size=12), *[st.integers(0, 2**64 - 1)] * 2)
def test_the_derivation_is_the_documented_one(
    job: int, epoch: int, group: str, env: int, attempt: int
) -> None:
    assert seed_of(job, epoch, group, env, attempt) == by_hand(job, epoch, group, env, attempt)


@pytest.mark.probe("P-21")
def test_neighbouring_jobs_share_no_seed() -> None:
    addresses = [(job, 0, "default", env, 0) for job in range(100) for env in range(32)]
    seeds = [seed_of(*a) for a in addresses]
    assert len(set(seeds)) == 3200
    assert [seed_of(*a) for a in reversed(addresses)] == seeds[::-1]


def test_the_three_kinds_of_seed_differ() -> None:
    assert len({seed_of(7, 0, "", 0, 0), policy_seed_of(7, 0, "", 0, 0), init_seed_of(7)}) == 3


@pytest.mark.parametrize("bad", [(-1, 0, "g", 0, 0), (0, 0, "g", 0, 2**64)])
def test_a_number_that_does_not_fit_is_refused(bad: tuple[int, int, str, int, int]) -> None:
    with pytest.raises(ValueError, match="derived from integers"):
        seed_of(*bad)
