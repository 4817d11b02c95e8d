"""Names fit, are unique, and can be read back."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout_contract.keys import JobKeys
from rollout_contract.names import (
    JOB_NAME,
    MAX_ATTEMPT,
    MAX_INDEX,
    MAX_JOB_NAME,
    WORKER_GROUP_NAME,
    JobRef,
    WorkerId,
    pod_name,
    trajectory_base,
    worker_of_pod,
)

job_names = st.from_regex(JOB_NAME, fullmatch=True)
workers = st.builds(
    WorkerId,
    group=st.from_regex(WORKER_GROUP_NAME, fullmatch=True),
    index=st.integers(0, MAX_INDEX),
    attempt=st.integers(0, MAX_ATTEMPT),
)


@pytest.mark.probe("P-40")
def test_the_longest_names_fit_a_label() -> None:
    worker = WorkerId("g" * 12, MAX_INDEX, MAX_ATTEMPT)
    assert len(pod_name("j" * MAX_JOB_NAME, worker)) <= 63


@given(job_names, workers)
def test_a_pod_name_is_read_back(job: str, worker: WorkerId) -> None:
    assert worker_of_pod(job, pod_name(job, worker)) == worker
    assert len(pod_name(job, worker)) <= 63


@given(job_names, workers, job_names, workers)
def test_no_two_workers_share_a_pod_name(job_a: str, a: WorkerId, job_b: str, b: WorkerId) -> None:
    if (job_a, a) != (job_b, b):
        assert pod_name(job_a, a) != pod_name(job_b, b)


@pytest.mark.parametrize("pod", ["", "other-cpu-0-0", "job-cpu-0", "job-cpu-0-x", "job-cpu-a-0-0"])
def test_a_foreign_pod_name_is_refused(pod: str) -> None:
    with pytest.raises(ValueError, match="not the name of a worker pod"):
        worker_of_pod("job", pod)


@pytest.mark.probe("P-15")
@given(
    st.lists(
        st.tuples(st.integers(0, 7), st.integers(0, MAX_INDEX), st.integers(0, MAX_ATTEMPT)), unique=True
    )
)
def test_trajectory_ids_of_two_attempts_never_meet(addresses: list[tuple[int, int, int]]) -> None:
    bases = sorted(trajectory_base(*a) for a in addresses)
    assert all(0 <= b < 2**63 for b in bases)
    assert all(later - earlier >= 2**32 for earlier, later in itertools.pairwise(bases))


@pytest.mark.parametrize("address", [(8, 0, 0), (0, 1 << 14, 0), (0, 0, 1 << 14), (-1, 0, 0)])
def test_an_impossible_address_is_refused(address: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="no trajectory ids"):
        trajectory_base(*address)


def test_every_key_is_in_the_jobs_slot() -> None:
    keys = JobKeys.of(JobRef("rl", "cartpole", "3f2a9c1d-0000-4000-8000-000000000000"))
    assert keys.batches == "rollout:{rl/cartpole/3f2a9c1d}:batches"
    names = [n for n in dir(JobKeys) if isinstance(getattr(JobKeys, n), property)]
    values = [getattr(keys, n) for n in names] + [keys.weights_chunk(1, 0), keys.upload_chunk("u", 0)]
    assert len(values) == len(set(values)) > 10
    assert all(v.startswith("rollout:{rl/cartpole/3f2a9c1d}:") for v in values)
