"""What Redis counts of a job."""

from __future__ import annotations

from rollout_api.models.base import Age, ApiModel, examples


class LiveProgress(ApiModel):
    """How far the job is, as Redis counts."""

    model_config = examples(
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

    model_config = examples(
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

    model_config = examples(
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

    model_config = examples({"seed": 7, "epoch": 0, "minWorkerEpoch": 0, "ageSeconds": 0.4})

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

    model_config = examples({"reason": "StreamUnavailable", "detail": "The stream's server does not answer."})

    reason: str
    detail: str
