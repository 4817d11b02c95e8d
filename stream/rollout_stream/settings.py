"""What a job's stream is opened with, and its limits that can be changed while it runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from rollout_contract.names import Slot

OnFull: TypeAlias = Literal["Block", "DropNewest", "TrimAcked"]
OnStale: TypeAlias = Literal["Pace", "Drop", "Tag"]


@dataclass(frozen=True, slots=True)
class StreamLimits:
    """How far workers may run ahead of the learner, and what is kept. None: no bound.

    The low watermark is 80 % of each high one. `on_full` holds what an append above the high watermark does.
    """

    max_unacked_frames: int | None = None
    max_bytes: int | None = 4 * 1024**3
    """Unacked bytes of the whole job."""
    on_full: OnFull = "Block"
    keep_versions: int = 3
    """Weights versions kept, at least 2."""
    max_episodes: int = 2000
    """Newest episodes kept for curves."""
    claim_idle_seconds: float = 30.0
    """An entry that its reader has not acked or renewed for so long goes to another reader of the group."""
    max_weights_bytes: int | None = 4 * 1024**3
    max_staleness: int | None = None
    """Weights versions that a batch may lag behind."""
    on_stale: OnStale = "Pace"
    """Who sees to it: the workers (Pace), the readers, by dropping what is older (Drop), or nobody (Tag)."""


@dataclass(frozen=True, slots=True)
class JobSettings:
    """What `open_job` needs. Uid, time to live and slots are fixed once the job is open."""

    uid: str
    seed: int
    total_frames: int | None = None
    """Frames that the job appends in all, exactly. None: endless."""
    init_random_frames: int = 0
    """Frames of the whole job that are made with random actions, exactly so many."""
    ttl_s: int = 86_400
    """Every key's time to live, renewed by each append."""
    groups: tuple[str, ...] = ()
    """Consumer groups that exist before the first batch."""
    slots: tuple[Slot, ...] = ()
    """The job's workers, where their number cannot change (`determinism: Strict`): what `rounds` waits for."""
    limits: StreamLimits = field(default_factory=StreamLimits)
