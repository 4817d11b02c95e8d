"""What the gateway answers: the models of the REST interface, beside the job itself (which is the contract's).

Field names are camelCase outside, as in the resource. Durations are in seconds, sizes in bytes, times RFC 3339 in UTC.
Every model has an example: a client that is generated from the schema shows them. There is a
module for each module of routes.
"""

from __future__ import annotations

from rollout_api.models.base import Age, ApiModel
from rollout_api.models.episodes import CurvePoint, Episodes, Quantiles
from rollout_api.models.health import Health
from rollout_api.models.jobs import JobList, ListMeta, StreamPlace
from rollout_api.models.live import Live, LiveError, LiveProgress, LiveSeed, LiveStream, LiveWeights
from rollout_api.models.seed import EnvSeed, NewSeed, Seed
from rollout_api.models.status import JobStatus, Worker, WorkerList
from rollout_api.models.weights import Published, WeightsList, WeightsVersion

__all__ = [
    "Age",
    "ApiModel",
    "CurvePoint",
    "EnvSeed",
    "Episodes",
    "Health",
    "JobList",
    "JobStatus",
    "ListMeta",
    "Live",
    "LiveError",
    "LiveProgress",
    "LiveSeed",
    "LiveStream",
    "LiveWeights",
    "NewSeed",
    "Published",
    "Quantiles",
    "Seed",
    "StreamPlace",
    "WeightsList",
    "WeightsVersion",
    "Worker",
    "WorkerList",
]
