"""What the gateway answers: the models of the REST interface, beside the job itself (which is the contract's).

Field names are camelCase outside, as in the resource. Durations are in seconds, sizes in bytes, times RFC 3339 in UTC.
Every model has an example: a client that is generated from the schema shows them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from rollout_contract.fields import MAX_SEED
from rollout_contract.messages import WorkerState
from rollout_contract.spec import RolloutJob
from rollout_contract.status import Condition, LastFailure, State, WorkerGroupStatus

Age = Annotated[
    float, Field(ge=0, description="Seconds since this part was read, or last changed at its source.")
]


def _examples(example: dict[str, Any]) -> ConfigDict:
    return ConfigDict(json_schema_extra={"examples": [example]})


class ApiModel(BaseModel):
    """Base: camelCase outside, snake_case inside; only fields that are declared are taken."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        serialize_by_alias=True,
        extra="forbid",
        use_attribute_docstrings=True,
    )


class ListMeta(ApiModel):
    """Where a list goes on."""

    model_config = _examples({"continue": ""})

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

    model_config = _examples(
        {"url": "redis://rollout-redis.rl.svc:6379", "key": "rollout:{rl/cartpole/3f2a9c1d}:batches"}
    )

    url: str
    """`redis[s]://[user@]host:port` or `unix://path`, as the gateway itself reaches it."""
    key: str
    """Of the stream with the batches."""


class LiveProgress(ApiModel):
    """How far the job is, as Redis counts."""

    model_config = _examples(
        {
            "frames": 42106,
            "totalFrames": 100000,
            "percent": 42.1,
            "framesPerSecond": 18500.0,
            "batches": 329,
            "episodes": 419,
            "workers": 2,
            "ageSeconds": 0.4,
        }
    )

    frames: int
    """Appended to the stream, by the whole job."""
    total_frames: int | None = None
    percent: float | None = None
    """Of `totalFrames`; unset for a job without."""
    frames_per_second: float
    """Sum of what the workers that are alive report."""
    batches: int
    episodes: int
    """Finished in all."""
    workers: int
    """Whose heartbeat is fresh."""
    age_seconds: Age


class LiveStream(ApiModel):
    """The stream between workers and learners."""

    model_config = _examples(
        {
            "unackedFrames": 8192,
            "unackedBytes": 655360,
            "maxUnackedFrames": 65536,
            "ackedFrames": 33914,
            "droppedFrames": 0,
            "duplicates": 0,
            "badEntries": 0,
            "groups": ["learner"],
            "ageSeconds": 0.4,
        }
    )

    unacked_frames: int
    unacked_bytes: int
    max_unacked_frames: int | None = None
    acked_frames: int
    dropped_frames: int
    """Never delivered, because of `onFull`."""
    duplicates: int
    """Appends that were recognised as repeats."""
    bad_entries: int
    """Entries that were no frames."""
    groups: list[str]
    """Registered consumer groups."""
    age_seconds: Age


class LiveWeights(ApiModel):
    """Policy versions: the newest, and what workers act with."""

    model_config = _examples(
        {"latestVersion": 118, "minLoadedVersion": 117, "maxLoadedVersion": 118, "lag": 1, "ageSeconds": 2.5}
    )

    latest_version: int
    """0: nothing was published, the policy is what its entrypoint makes."""
    min_loaded_version: int | None = None
    max_loaded_version: int | None = None
    lag: int
    """Versions that the slowest worker is behind."""
    age_seconds: Age | None = None
    """Since the newest version was published."""


class LiveSeed(ApiModel):
    """The job's seed in force."""

    model_config = _examples({"seed": 7, "epoch": 0, "minWorkerEpoch": 0, "ageSeconds": 0.4})

    seed: int
    epoch: int
    min_worker_epoch: int | None = None
    """The lowest epoch that a worker still collects in."""
    age_seconds: Age


class Live(ApiModel):
    """Numbers from Redis, each part with its age."""

    progress: LiveProgress
    stream: LiveStream
    weights: LiveWeights
    seed: LiveSeed
    recent_return: float | None = None
    """Mean return of the newest episodes (at most 100)."""


class LiveError(ApiModel):
    """Why there are no live numbers."""

    model_config = _examples(
        {"reason": "StreamUnavailable", "detail": "The stream's server does not answer."}
    )

    reason: str
    detail: str


class JobStatus(ApiModel):
    """A job's condition and its numbers: the resource's half, and Redis' half (`live`, null if Redis is away)."""

    namespace: str
    name: str
    uid: str
    generation: int
    observed_generation: int | None = None
    """The generation that the conditions speak about; lower than `generation`: not seen yet."""
    suspend: bool
    state: State | None = None
    ready_workers: str | None = None
    start_time: str | None = None
    completion_time: str | None = None
    conditions: list[Condition]
    worker_groups: list[WorkerGroupStatus]
    last_failure: LastFailure | None = None
    live: Live | None
    live_error: LiveError | None = None
    """Why `live` is null."""


class Worker(ApiModel):
    """One worker, by its newest heartbeat."""

    model_config = _examples(
        {
            "group": "default",
            "index": 0,
            "attempt": 0,
            "node": "node-1",
            "state": "Collecting",
            "isLost": False,
            "frames": 21000,
            "framesPerSecond": 9250.0,
            "policyVersion": 118,
            "rejectedVersion": 0,
            "seedEpoch": 0,
            "sequence": 164,
            "lastError": "",
            "startedAt": "2026-01-01T10:00:00Z",
            "lastSeenSeconds": 0.8,
        }
    )

    group: str
    index: int
    attempt: int
    node: str
    state: WorkerState | str
    is_lost: bool
    """Nothing was heard from it for three heartbeats."""
    frames: int
    """Appended by this attempt."""
    frames_per_second: float
    policy_version: int
    rejected_version: int
    """Newest version that it could not load; 0: none."""
    seed_epoch: int
    sequence: int
    last_error: str
    started_at: str | None = None
    last_seen_seconds: float


class WorkerList(ApiModel):
    """One row per worker, in order of (group, index)."""

    items: list[Worker]


class WeightsVersion(ApiModel):
    """One published version of the policy's weights."""

    model_config = _examples(
        {
            "policyVersion": 118,
            "sizeBytes": 18904,
            "digest": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
            "publishedAt": "2026-01-01T10:00:00Z",
            "publisher": "learner",
            "workers": 2,
        }
    )

    policy_version: int
    size_bytes: int
    digest: str
    """SHA-256 of the bytes, in hexadecimal."""
    published_at: str | None = None
    publisher: str = ""
    workers: int
    """That act with it now."""


class WeightsList(ApiModel):
    """The versions that are kept, newest first."""

    latest_version: int
    """0: nothing was published."""
    initial_workers: int
    """Workers that still act with version 0, which the policy's entrypoint made."""
    items: list[WeightsVersion]


class Published(ApiModel):
    """What became of an upload."""

    model_config = _examples(
        {
            "policyVersion": 119,
            "sizeBytes": 18904,
            "digest": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        }
    )

    policy_version: int
    size_bytes: int
    digest: str
    """SHA-256 of the bytes, in hexadecimal."""


class EnvSeed(ApiModel):
    """The seed of one environment, as derived from the job's."""

    model_config = _examples(
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

    model_config = _examples({"seed": 7, "epoch": 0})

    seed: int
    epoch: int
    """Counts the changes; stands in every batch."""
    env_seeds: list[EnvSeed] | None = None
    """Where they were asked for."""


class NewSeed(ApiModel):
    """What to seed the job's environments with from the next batch on."""

    model_config = ConfigDict(strict=True) | _examples({"seed": 11})

    seed: Annotated[int, Field(ge=0, le=MAX_SEED)]


class Quantiles(ApiModel):
    """Of a number over the newest episodes."""

    mean: float
    min: float
    p10: float
    p25: float
    p50: float
    p75: float
    p90: float
    max: float


class CurvePoint(ApiModel):
    """Some consecutive episodes as one point of a plot."""

    model_config = _examples(
        {"frames": 40960, "episodes": 16, "meanReturn": 182.4, "meanLength": 182.4, "policyVersion": 40}
    )

    frames: int
    """Frames of the job when the last of them ended."""
    episodes: int
    mean_return: float
    mean_length: float
    policy_version: int
    """That made the last of them."""


class Episodes(ApiModel):
    """Returns and lengths of the newest episodes: their spread, and a curve."""

    total: int
    """Finished since the job began."""
    count: int
    """Newest ones that these numbers are of."""
    returns: Quantiles | None
    """Null without episodes."""
    lengths: Quantiles | None
    curve: list[CurvePoint]


class Health(ApiModel):
    """Whether the gateway, or what it needs, works."""

    model_config = _examples({"status": "ok", "checks": {"store": "ok", "stream": "ok"}})

    status: Literal["ok", "failing"]
    checks: dict[str, str] = {}
    """What was asked, and `ok` or what is wrong."""
