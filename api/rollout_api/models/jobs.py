"""Lists of jobs, and the place of a job's stream."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from rollout_api.models.base import ApiModel, examples
from rollout_contract.spec import RolloutJob


class ListMeta(ApiModel):
    """Where a list goes on."""

    model_config = examples({"continue": ""})

    continue_: Annotated[str, Field(alias="continue")] = ""
    """Ask for the next page with this; empty: this was the last."""
    unknown: list[str] | None = None
    """`namespace/name` of jobs that are there too, but hold what this version of the gateway does not know."""


class JobList(ApiModel):
    """Some jobs."""

    api_version: Literal["rolloutjob.dev/v1alpha1"] = "rolloutjob.dev/v1alpha1"
    kind: Literal["RolloutJobList"] = "RolloutJobList"
    metadata: ListMeta
    items: list[RolloutJob]


class StreamPlace(ApiModel):
    """Where a job's stream is. Without any secret: who reads it has the server's password from elsewhere."""

    model_config = examples(
        {"url": "redis://rollout-redis.rl.svc:6379", "key": "rollout:{rl/cartpole/3f2a9c1d}:batches"}
    )

    url: str
    """`redis[s]://[user@]host:port` or `unix://path`, as the gateway itself reaches it."""
    key: str
    """Of the stream with the batches."""
