"""How a job is, and each of its workers."""

from __future__ import annotations

from rollout_api.models.base import ApiModel, examples
from rollout_api.models.live import Live, LiveError
from rollout_contract.messages import WorkerState
from rollout_contract.status import Condition, LastFailure, State, WorkerGroupStatus


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

    model_config = examples(
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
