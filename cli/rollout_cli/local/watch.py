"""Looks at a running job once a second and makes the `View` that is shown: its document, and its numbers from Redis.

Called by `run`. The look itself is two reads; everything else is pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rollout_cli.local.view import View, WorkerRow, view_of_status
from rollout_contract.errors import StateLost, StreamError
from rollout_contract.messages import HEARTBEAT_S, Heartbeat
from rollout_stream.aio import Control
from rollout_stream.progress import Progress

RATE_WINDOW_S = 10.0
RECENT_EPISODES = 100
LOST_AFTER_S = 3 * HEARTBEAT_S


class FrameRate:
    """Frames per second over the last RATE_WINDOW_S."""

    def __init__(self) -> None:
        self._points: deque[tuple[float, int]] = deque()

    def add(self, time_s: float, frames: int) -> float | None:
        """The rate with this count; None as long as there is only one. Begins with the first frame."""
        if frames == 0:
            self._points.clear()
        self._points.append((time_s, frames))
        while len(self._points) > 2 and time_s - self._points[1][0] >= RATE_WINDOW_S:
            self._points.popleft()
        (first_time, first), (last_time, last) = self._points[0], self._points[-1]
        return (last - first) / (last_time - first_time) if last_time > first_time else None


@dataclass
class Watch:
    """The looks at one job. `clock` gives seconds since any moment."""

    control: Control
    clock: Callable[[], float]
    gateway: str = ""
    start_s: float = field(init=False)
    view: View | None = None
    """The newest."""
    _rate: FrameRate = field(default_factory=FrameRate)

    def __post_init__(self) -> None:
        self.start_s = self.clock()

    @property
    def acked_frames(self) -> int:
        """As of the newest look."""
        return self.view.acked_frames if self.view else 0

    async def look(self, document: Mapping[str, Any], **learner: Any) -> View:
        """The job now. `learner`: what the view shows of it. A Redis that is away leaves the last numbers standing."""
        now = self.clock()
        base = View(**view_of_status(document), elapsed_s=now - self.start_s, gateway=self.gateway, **learner)
        try:
            progress = await self.control.read_progress(episodes=RECENT_EPISODES)
        except StreamError as error:
            is_early = (
                isinstance(error, StateLost) and self.view is None
            )  # the reconcile loop has not made the keys yet
            self.view = None if is_early else without_numbers(base, self.view, trouble=str(error))
            return self.view or base
        self.view = with_numbers(base, progress, rate=self._rate.add(now, progress.counters.frames))
        return self.view


def with_numbers(base: View, progress: Progress, *, rate: float | None) -> View:
    """The view with what Redis knows."""
    counters = progress.counters
    alive = [w for w in progress.workers if progress.time - w.seen <= LOST_AFTER_S]
    recent = [e.value for e in progress.episodes]
    return replace(
        base,
        frames=counters.frames,
        total_frames=progress.total_frames,
        frames_per_second=rate,
        episodes=counters.episodes,
        mean_return=sum(recent) / len(recent) if recent else None,
        policy_version=progress.newest_version,
        lag=progress.newest_version - min(w.policy_version for w in alive) if alive else None,
        unacked_frames=counters.unacked_frames,
        acked_frames=counters.acked_frames,
        workers=tuple(_row(w, is_lost=w not in alive) for w in progress.workers),
    )


def without_numbers(base: View, last: View | None, *, trouble: str) -> View:
    """The view with the numbers that were known last, and why there are no newer ones."""
    if last is None:
        return replace(base, trouble=trouble)
    return replace(
        base,
        frames=last.frames,
        total_frames=last.total_frames,
        episodes=last.episodes,
        mean_return=last.mean_return,
        policy_version=last.policy_version,
        unacked_frames=last.unacked_frames,
        acked_frames=last.acked_frames,
        workers=last.workers,
        trouble=trouble,
    )


def _row(worker: Heartbeat, *, is_lost: bool) -> WorkerRow:
    return WorkerRow(
        name=f"{worker.group}-{worker.index}",
        attempt=worker.attempt,
        state="Lost" if is_lost else worker.state,
        frames=worker.frames,
        frames_per_second=0.0 if is_lost else worker.frames_per_second,
        policy_version=worker.policy_version,
        last_error=worker.last_error,
    )


def last_lines(text: str, count: int) -> Sequence[str]:
    """The last lines of a text that are not empty."""
    return [line for line in text.splitlines() if line.strip()][-count:]
