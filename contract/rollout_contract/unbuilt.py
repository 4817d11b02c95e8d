"""What the schema allows and this version does not run yet: one row each, to be deleted when it is built.

Asked by the operator (`Accepted=False`, reason `NotImplemented`) and by the local run (exit code 2), never ignored.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple

from rollout_contract.errors import Fault
from rollout_contract.spec_enums import ApplyAt, CollectorMode, Coordination, OnStale
from rollout_contract.spec_models import RolloutJobSpec


class Unbuilt(NamedTuple):
    """A field, how to read it, whether its value is one that is not built, and what works instead."""

    path: str
    value: Callable[[RolloutJobSpec], object]
    is_unbuilt: Callable[[object], bool]
    instead: str


def _is_set(value: object) -> bool:
    return value is not None


def _is_not(built: object) -> Callable[[object], bool]:
    return lambda value: value != built


TABLE: tuple[Unbuilt, ...] = (
    Unbuilt("spec.collector.mode", lambda s: s.collector.mode, _is_not(CollectorMode.SYNC), "Use mode Sync."),
    Unbuilt(
        "spec.collector.coordination",
        lambda s: s.collector.coordination,
        _is_not(Coordination.INDEPENDENT),
        "Use coordination Independent.",
    ),
    Unbuilt(
        "spec.collector.preemptionThresholdPercent",
        lambda s: s.collector.preemption_threshold_percent,
        _is_set,
        "Remove it.",
    ),
    Unbuilt("spec.env.tasks", lambda s: s.env.tasks, _is_set, "Use one kind of environment and kwargs."),
    Unbuilt("spec.stream.shards", lambda s: s.stream.shards, _is_not(1), "Use 1 shard."),
    Unbuilt(
        "spec.stream.rateLimit", lambda s: s.stream.rate_limit, _is_set, "Use maxUnackedFrames and maxBytes."
    ),
    Unbuilt(
        "spec.weights.onStale", lambda s: s.weights.on_stale, lambda v: v is OnStale.DROP, "Use Pace or Tag."
    ),
    Unbuilt(
        "spec.weights.applyAt", lambda s: s.weights.apply_at, _is_not(ApplyAt.BATCH), "Use applyAt Batch."
    ),
)


def not_built(spec: RolloutJobSpec) -> list[Fault]:
    """What of the spec this version does not run yet, with what to use instead; empty if it runs all of it."""
    return [
        Fault(path=row.path, value=_plain(value), message=f"{_said(value)} is not built yet. {row.instead}")
        for row in TABLE
        if row.is_unbuilt(value := row.value(spec))
    ]


def _plain(value: object) -> object:
    if isinstance(value, StrEnum):
        return value.value
    return value if isinstance(value, str | int) else None


def _said(value: object) -> str:
    return str(value) if isinstance(value, str | int) else "this"
