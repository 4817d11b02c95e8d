"""The job's seed, and what is derived from it."""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, Field

from rollout_api.models.base import ApiModel, examples
from rollout_contract.fields import MAX_SEED


class EnvSeed(ApiModel):
    """The seed of one environment, as derived from the job's."""

    model_config = examples(
        {"group": "default", "worker": 0, "attempt": 0, "envIndex": 3, "seed": 2271560481}
    )

    group: str
    worker: int
    attempt: int
    env_index: int
    """Counted over all workers of the group."""
    seed: int


class Seed(ApiModel):
    """The job's seed and its epoch."""

    model_config = examples({"seed": 7, "epoch": 0})

    seed: int
    epoch: int
    """Counts the changes; stands in every batch."""
    env_seeds: list[EnvSeed] | None = None
    """Where they were asked for."""


class NewSeed(ApiModel):
    """What to seed the job's environments with from the next batch on."""

    model_config = ConfigDict(strict=True) | examples({"seed": 11})

    seed: Annotated[int, Field(ge=0, le=MAX_SEED)]
