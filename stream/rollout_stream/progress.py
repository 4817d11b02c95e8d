"""How a job's stream stands, as records: for the operator (status, conditions), the gateway (live numbers) and people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rollout_contract.messages import EndMarker, Heartbeat, WeightsRecord
from rollout_contract.names import Slot
from rollout_stream.settings import StreamLimits


@dataclass(frozen=True, slots=True)
class Counters:
    """What was counted since the job was opened, in the same step as it happened."""

    frames: int = 0
    batches: int = 0
    bytes: int = 0
    acked_frames: int = 0
    """Acked by every registered group, and so gone from the stream."""
    acked_batches: int = 0
    acked_bytes: int = 0
    unacked_frames: int = 0
    """In the stream: lacking the ack of a registered group, or with none registered."""
    unacked_batches: int = 0
    unacked_bytes: int = 0
    episodes: int = 0
    return_sum: float = 0.0
    length_sum: int = 0
    dropped_frames: int = 0
    """Refused or aged out by `onFull`, or dropped by a reader as stale."""
    dropped_batches: int = 0
    duplicates: int = 0
    """Appends that were recognised as repeated."""
    fenced: int = 0
    """Appends of attempts that had a successor."""
    bad: int = 0
    """Entries that were no frames, or were delivered too often."""
    bad_frames: int = 0
    oom: int = 0
    """Appends that the server had no memory for."""
    policy_version: int = 0
    """Newest version that acted in any batch."""
    last_append: float = 0.0
    """Server time of the newest append, in seconds since 1970; 0 if there was none."""
    full_since: float = 0.0


@dataclass(frozen=True, slots=True)
class WorkerCounters:
    """What was counted of one slot."""

    frames: int = 0
    unacked_batches: int = 0
    dropped_frames: int = 0
    stale_frames: int = 0
    """Of the dropped ones: older than `maxStaleness`."""
    bad_batches: int = 0


@dataclass(frozen=True, slots=True)
class ControlState:
    """What the job is told to do now."""

    seed: int
    seed_epoch: int
    command_epoch: int
    is_paused: bool
    is_draining: bool
    limits: StreamLimits
    ttl_s: float
    ended: str = ""
    """An EndKind, or empty."""
    end: EndMarker | None = None
    notice: str = ""
    """What readers are told while nothing comes, such as that the job stands still; empty if all is well."""
    slots: tuple[Slot, ...] = ()
    """The job's workers, where their number cannot change."""
    init_random_frames: int = 0
    """Frames of the whole job that are to be random."""
    groups: tuple[str, ...] = ()
    """Consumer groups that the job has from its start; readers may bring others."""


@dataclass(frozen=True, slots=True)
class GroupProgress:
    """One consumer group. `pending`: entries delivered and not acked; `acked_frames`: since it was registered."""

    name: str
    pending: int
    consumers: int
    acked_frames: int


@dataclass(frozen=True, slots=True)
class EpisodeRecord:
    """One finished episode; `frames` are those that the job had appended by then."""

    value: float
    """The undiscounted return."""
    length: int
    policy_version: int
    frames: int
    worker: str


@dataclass(frozen=True, slots=True)
class Progress:
    """Everything live about a job."""

    time: float
    """The server's clock when this was read, in seconds since 1970."""
    counters: Counters
    is_full: bool
    """Above the high watermark, or not yet back under the low one."""
    total_frames: int | None
    reserved_frames: int
    random_frames_left: int
    reservations: Mapping[Slot, int]
    """Frames of each open reservation."""
    control: ControlState
    workers: tuple[Heartbeat, ...]
    """Newest heartbeat of every slot that ever had one, in order of (group, index)."""
    worker_counters: Mapping[Slot, WorkerCounters]
    attempts: Mapping[Slot, int]
    """Highest attempt that joined or was announced, per slot."""
    sequences: Mapping[Slot, int]
    """Sequence of the newest batch, per slot."""
    groups: tuple[GroupProgress, ...]
    newest_version: int
    versions: tuple[WeightsRecord, ...]
    """Versions that can be fetched, oldest first."""
    episodes: tuple[EpisodeRecord, ...] = field(default=())
    """The newest ones that were asked for, oldest first."""

    @property
    def is_complete(self) -> bool:
        """Whether all of the job's frames are appended."""
        return self.total_frames is not None and self.counters.frames >= self.total_frames
