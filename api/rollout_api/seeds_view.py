"""The seed of each environment, as its worker derives it from the job's. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from rollout_api.models import EnvSeed
from rollout_contract.messages import Heartbeat
from rollout_contract.seeds import seed_of
from rollout_contract.spec import RolloutJobSpec

MAX_ENV_SEEDS: Final = 10_000


def derived_seeds(
    spec: RolloutJobSpec, workers: Iterable[Heartbeat], *, seed: int, epoch: int
) -> list[EnvSeed]:
    """The seeds of all environments of these workers, in order of (group, index), at most MAX_ENV_SEEDS."""
    num_envs = spec.env.envs_per_worker
    found: list[EnvSeed] = []
    for worker in sorted(workers, key=lambda beat: (beat.group, beat.index)):
        for env_index in range(worker.index * num_envs, (worker.index + 1) * num_envs):
            if len(found) == MAX_ENV_SEEDS:
                return found
            found.append(
                EnvSeed(
                    group=worker.group,
                    worker=worker.index,
                    attempt=worker.attempt,
                    env_index=env_index,
                    seed=seed_of(seed, epoch, worker.group, env_index, worker.attempt),
                )
            )
    return found
