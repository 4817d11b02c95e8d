"""What a local run shows: one frozen record, and its words for a pipe. Pure.

Made by `watch` once a second, drawn by `screen`. Numbers are `None` where they are not known (yet).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """One worker, by its newest heartbeat."""

    name: str
    attempt: int
    state: str
    frames: int
    frames_per_second: float
    policy_version: int
    last_error: str = ""


@dataclass(frozen=True, slots=True)
class ConditionRow:
    """One condition of the job."""

    type: str
    status: str
    reason: str
    message: str = ""


@dataclass(frozen=True, slots=True)
class View:
    """The job at one moment. Rates are per second, `percent` is of `total_frames`."""

    job: str
    state: str
    elapsed_s: float
    gateway: str = ""
    """URL of the REST interface."""
    frames: int = 0
    total_frames: int | None = None
    frames_per_second: float | None = None
    episodes: int = 0
    mean_return: float | None = None
    """Of the last 100 episodes."""
    policy_version: int = 0
    lag: int | None = None
    """Versions that the slowest worker is behind."""
    unacked_frames: int = 0
    acked_frames: int = 0
    workers: tuple[WorkerRow, ...] = ()
    ready_workers: str = ""
    worker_restarts: int = 0
    conditions: tuple[ConditionRow, ...] = ()
    trouble: str = ""
    """Why there are no numbers."""
    learner: str = ""
    """Its state; empty: there is none."""
    learner_restarts: int = 0
    learner_lines: tuple[str, ...] = field(default=(), repr=False)

    @property
    def percent(self) -> float | None:
        """How much of the frames is there."""
        return 100.0 * self.frames / self.total_frames if self.total_frames else None


QUIET = frozenset({"Accepted", "RedisReady", "WorkersReady", "Ready", "Reproducible"})
"""Conditions that are right when True; every other is right when False."""


def remarkable(conditions: Iterable[ConditionRow]) -> list[ConditionRow]:
    """The conditions that say something is not as it should be."""
    return [c for c in conditions if c.status == ("False" if c.type in QUIET else "True")]


def plain_line(view: View) -> str:
    """The view in one line."""
    parts = [clock(view.elapsed_s), view.state, f"{view.frames:,} frames"]
    if view.percent is not None:
        parts[-1] += f" ({view.percent:.0f} %)"
    if view.frames_per_second is not None:
        parts.append(f"{view.frames_per_second:,.0f} frames/s")
    if view.mean_return is not None:
        parts.append(f"return {view.mean_return:.1f}")
    parts.append(f"workers {view.ready_workers or '0/0'}")
    parts.append(f"policy {view.policy_version}" + (f" (lag {view.lag})" if view.lag else ""))
    if view.worker_restarts or view.learner_restarts:
        parts.append(f"restarts {view.worker_restarts}+{view.learner_restarts}")
    if view.trouble:
        parts.append(view.trouble)
    parts += [
        f"{c.type}={c.status} {c.reason}" for c in remarkable(view.conditions) if c.type not in _IN_STATE
    ]
    return " | ".join(parts)


_IN_STATE = frozenset({"Complete", "Failed", "Ready", "WorkersReady", "Suspended", "Accepted"})
"""Conditions that the state and the count of workers show already."""


def clock(seconds: float) -> str:
    """`1:02:03` or `2:03`."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


@dataclass(frozen=True, slots=True)
class Result:
    """What a learner may leave for the end, as `result.json` in `ROLLOUT_RUN_DIR`; all of it is optional.

    `{"mean_return": 487.5, "frames": 81920, "curve": "curve.png"}`; other keys are kept and not shown. A relative
    `curve` is meant from the run's directory.
    """

    mean_return: float | None = None
    curve: str | None = None

    @classmethod
    def of(cls, document: object) -> Result:
        """The result that a document holds; what is not of the right type is left out."""
        if not isinstance(document, dict):
            return cls()
        mean, curve = document.get("mean_return"), document.get("curve")
        is_number = isinstance(mean, int | float) and not isinstance(mean, bool)
        return cls(
            mean_return=float(mean) if is_number and mean is not None else None,
            curve=curve if isinstance(curve, str) else None,
        )


def summary(view: View, result: Result, *, curve: str | None) -> list[str]:
    """The last lines of a run: what came out of it."""
    mean = result.mean_return if result.mean_return is not None else view.mean_return
    average = view.frames / view.elapsed_s if view.elapsed_s > 0 else 0.0
    percent = f" ({view.percent:.0f} % of {view.total_frames:,})" if view.percent is not None else ""
    lines = [f"{view.job}: {view.state} after {clock(view.elapsed_s)}"]
    if mean is not None:
        lines.append(f"  return             {mean:.2f} (mean of the last 100 episodes)")
    lines.append(f"  frames             {view.frames:,}{percent}, {view.episodes:,} episodes")
    lines.append(f"  frames per second  {average:,.0f} (over the whole run)")
    lines.append(
        f"  restarts           {view.worker_restarts} of workers, {view.learner_restarts} of the learner"
    )
    if curve:
        lines.append(f"  curve              {curve}")
    return lines


def view_of_status(document: Mapping[str, Any]) -> dict[str, Any]:
    """What of a view comes from the job's own document (the YAML shape of a RolloutJob)."""
    metadata, status = document["metadata"], document.get("status") or {}
    groups = status.get("workerGroups") or ()
    return {
        "job": f"{metadata.get('namespace', 'default')}/{metadata['name']}",
        "state": status.get("state") or "Pending",
        "ready_workers": status.get("readyWorkers") or "",
        "worker_restarts": sum(g.get("failures", 0) + g.get("disruptions", 0) for g in groups),
        "total_frames": document["spec"]["collector"].get("totalFrames"),
        "conditions": tuple(
            ConditionRow(c["type"], c["status"], c["reason"], c.get("message") or "")
            for c in status.get("conditions") or ()
        ),
    }
