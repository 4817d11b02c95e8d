"""What one look at a job found: the records that `observe` makes and that the planner and the conditions read. Pure.

Pods are bucketed once, by slot; the stream is either facts of one moment or the trouble that kept us from them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from rollout_contract.messages import HEARTBEAT_S, EndKind, EndMarker, Heartbeat
from rollout_contract.names import Slot
from rollout_contract.status import ConditionStatus, Reason
from rollout_operator.pods import PodView

LOST_AFTER_S = 60.0
"""A pod that is still there so long after its grace has ended is on a node that does not answer: it counts as gone."""
HEARTBEAT_LOST_S = 3 * HEARTBEAT_S
"""A heartbeat that is older belongs to a worker that is lost, or gone."""


@dataclass(frozen=True, slots=True)
class StreamFacts:
    """The job's state in Redis, read in one pipeline. Times are the server's, in seconds since 1970."""

    is_open: bool
    """Whether the job's keys are there."""
    key: str
    frames: int = 0
    total_frames: int | None = None
    """The budget as the stream holds it."""
    in_tune: bool = True
    """Whether the limits and the budget that the stream holds are those of the spec."""
    episodes: int = 0
    dropped_frames: int = 0
    unacked_frames: int = 0
    unacked_bytes: int = 0
    max_unacked_frames: int | None = None
    """The high watermark in force."""
    is_backpressured: bool = False
    last_frame_time: float | None = None
    end: EndMarker | None = None
    """The end marker that stands at the end of the stream: nothing is taken while it does."""
    heartbeats: Mapping[Slot, Heartbeat] = field(default_factory=dict)
    attempts: Mapping[Slot, int] = field(default_factory=dict)
    """The highest attempt that was given, per slot: it was announced, or has joined by itself."""
    reservations: Mapping[Slot, int] = field(default_factory=dict)
    """Frames that a slot has reserved and not appended."""
    newest_version: int = 0
    version_times: Mapping[int, float] = field(default_factory=dict)
    """When each version that is still kept was published."""
    seed: int | None = None
    seed_epoch: int = 0
    server_time: float = 0.0

    @property
    def is_complete(self) -> bool:
        """Whether all frames of the budget are appended, or the stream was ended as finished."""
        if self.end is not None and self.end.kind != EndKind.SUSPENDED:
            return self.end.kind == EndKind.FINISHED
        return self.total_frames is not None and self.frames >= self.total_frames

    @property
    def is_paused_by_marker(self) -> bool:
        """Whether a `suspended` marker ends the stream for the time being."""
        return self.end is not None and self.end.kind == EndKind.SUSPENDED

    @property
    def last_frame_age(self) -> float | None:
        """Seconds since the last append, by the server's clock; None: there was none."""
        return None if self.last_frame_time is None else max(0.0, self.server_time - self.last_frame_time)

    def fresh_heartbeat(self, pod: PodView) -> Heartbeat | None:
        """The newest record of exactly this pod's attempt, if it is no older than HEARTBEAT_LOST_S."""
        beat = self.heartbeats.get(pod.slot)
        if beat is None or beat.attempt != pod.worker.attempt:
            return None
        return beat if self.server_time - beat.seen <= HEARTBEAT_LOST_S else None


@dataclass(frozen=True, slots=True)
class StreamTrouble:
    """Why the stream's facts are not known, or must not be relied on. `message` holds no credentials.

    `status` is what the condition RedisReady has: Unknown where the server does not tell what we need to know.
    """

    reason: Reason
    message: str
    status: ConditionStatus = ConditionStatus.FALSE


@dataclass(frozen=True)
class SlotView:
    """The pods of one slot, newest attempt first."""

    slot: Slot
    pods: tuple[PodView, ...]
    now: float

    @cached_property
    def live(self) -> PodView | None:
        """The newest pod that runs or will run."""
        return next((pod for pod in self.pods if pod.alive), None)

    @cached_property
    def surplus(self) -> tuple[PodView, ...]:
        """Pods that run although a newer attempt does: their writes are fenced, they must go."""
        return tuple(pod for pod in self.pods if pod.alive and pod is not self.live)

    @cached_property
    def occupied(self) -> bool:
        """Whether a process of this slot may still run, so that no other may be started."""
        return any(not pod.ended and not is_lost(pod, self.now) for pod in self.pods)

    @cached_property
    def last_ended(self) -> PodView | None:
        """The newest pod that has ended, unless a newer attempt is there: what the next attempt follows on."""
        newest = self.pods[0] if self.pods else None
        return newest if newest is not None and newest.ended else None

    @property
    def highest_attempt(self) -> int:
        """Of all pods of the slot; -1: there are none."""
        return max((pod.worker.attempt for pod in self.pods), default=-1)


def is_lost(pod: PodView, now: float) -> bool:
    """Whether a pod should have been gone for so long that its node cannot be alive."""
    return pod.deletion_requested is not None and now > pod.deletion_requested + pod.grace_s + LOST_AFTER_S


@dataclass(frozen=True)
class Observed:
    """One look at a job's surroundings. Compare and copy freely: nothing in it changes."""

    pods: tuple[PodView, ...]
    stream: StreamFacts | StreamTrouble

    @property
    def facts(self) -> StreamFacts | None:
        """The stream's facts, None in trouble."""
        return self.stream if isinstance(self.stream, StreamFacts) else None

    @cached_property
    def _by_time(self) -> dict[float, Mapping[Slot, SlotView]]:
        return {}

    def slots(self, now: float) -> Mapping[Slot, SlotView]:
        """The slots that have pods, made once for each `now`."""
        if now not in self._by_time:
            self._by_time[now] = bucket(self.pods, now)
        return self._by_time[now]


def bucket(pods: Iterable[PodView], now: float) -> dict[Slot, SlotView]:
    """Pods by slot, newest attempt first."""
    by_slot: dict[Slot, list[PodView]] = {}
    for pod in pods:
        by_slot.setdefault(pod.slot, []).append(pod)
    return {slot: SlotView(slot, _newest_first(by_slot[slot]), now) for slot in sorted(by_slot)}


def _newest_first(pods: list[PodView]) -> tuple[PodView, ...]:
    if len(pods) > 1:
        pods.sort(key=lambda p: (-p.worker.attempt, p.name, p.uid))
    return tuple(pods)
