"""How a job's stream stands: one pipeline's answers as one record.

Read by the operator (status, conditions), the gateway (live numbers) and people. Pure: `Control.read_progress` and its
asyncio twin send the commands.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rollout_contract.errors import StateLost
from rollout_contract.keys import JobKeys
from rollout_contract.messages import EndMarker, Heartbeat, WeightsRecord
from rollout_contract.names import Slot
from rollout_stream.calls import Commands
from rollout_stream.settings import StreamLimits
from rollout_stream.spelling import slot_of_field


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


def progress_commands(keys: JobKeys, *, episodes: int) -> Commands[Progress]:
    """The pipeline behind `read_progress`, with the newest so many episodes."""
    commands: list[tuple[Any, ...]] = [
        ("TIME",),
        ("HGETALL", keys.counters),
        ("HGETALL", keys.budget),
        ("HGETALL", keys.control),
        ("HGETALL", keys.workers),
        ("HGETALL", keys.writers),
        ("SMEMBERS", keys.groups),
        ("XINFO", "GROUPS", keys.batches),
        ("HGETALL", keys.weights),
    ]
    if episodes:
        commands.append(("LRANGE", keys.episodes, -episodes, -1))
    return Commands(
        "reading the job's progress", tuple(commands), lambda a: parse_progress(a, keys), takes_errors=True
    )


def control_commands(keys: JobKeys) -> Commands[ControlState]:
    """The control hash alone."""

    def parse(answers: list[Any]) -> ControlState:
        fields = pairs_of(answers[0])
        if not fields:
            raise StateLost(f"the keys {keys.prefix} are gone: the server was emptied, or they expired")
        return parse_control(fields)

    return Commands("reading the job's control", (("HGETALL", keys.control),), parse)


def parse_progress(answers: Sequence[Any], keys: JobKeys) -> Progress:
    """The record behind the answers to `progress_commands`. StateLost if the job's keys are not there."""
    for answer in answers:
        if isinstance(answer, Exception) and "no such key" not in str(answer):
            raise answer
    seconds, micros = answers[0]
    counters, budget, control = (pairs_of(a) for a in answers[1:4])
    if not (counters and budget and control) or isinstance(answers[7], Exception):
        raise StateLost(f"the keys {keys.prefix} are gone: the server was emptied, or they expired")
    workers = sorted((Heartbeat.from_json(text) for text in pairs_of(answers[4]).values()), key=_slot_order)
    weights = pairs_of(answers[8])
    total = budget.get("total", "")
    return Progress(
        time=int(seconds) + int(micros) / 1e6,
        counters=_counters(counters),
        is_full=counters.get("full") == "1",
        total_frames=int(total) if total else None,
        reserved_frames=int(budget.get("reserved", 0)),
        random_frames_left=int(budget.get("random_left", 0)),
        reservations={
            slot_of_field(k[2:]): int(v.split()[1]) for k, v in budget.items() if k.startswith("r:")
        },
        control=parse_control(control),
        workers=tuple(workers),
        worker_counters=_worker_counters(counters),
        attempts={slot_of_field(k): int(v.split()[0]) for k, v in pairs_of(answers[5]).items()},
        sequences={slot_of_field(k): int(v.split()[1]) for k, v in pairs_of(answers[5]).items()},
        groups=_groups(answers[7], {text_of(name) for name in answers[6]}, counters),
        newest_version=int(weights.get("newest", 0)),
        versions=versions_of(weights),
        episodes=tuple(_episode(text) for text in answers[9]) if len(answers) > 9 else (),
    )


def parse_control(fields: Mapping[str, str]) -> ControlState:
    """The control hash as a record."""
    end = fields.get("end", "")
    return ControlState(
        seed=int(fields["seed"]),
        seed_epoch=int(fields["seed_epoch"]),
        command_epoch=int(fields["command_epoch"]),
        is_paused=fields.get("paused") == "1",
        is_draining=fields.get("draining") == "1",
        limits=StreamLimits(
            max_unacked_frames=_optional(fields.get("max_unacked_frames")),
            max_bytes=_optional(fields.get("max_bytes")),
            on_full=fields.get("on_full", "Block"),  # type: ignore[arg-type]
            keep_versions=int(fields.get("keep_versions", 3)),
            max_episodes=int(fields.get("max_episodes", 2000)),
            claim_idle_seconds=float(fields.get("claim_idle_seconds", 30)),
            max_weights_bytes=_optional(fields.get("max_weights_bytes")),
            max_staleness=_optional(fields.get("max_staleness")),
            on_stale=fields.get("on_stale", "Pace"),  # type: ignore[arg-type]
        ),
        ttl_s=int(fields.get("ttl_ms", 0)) / 1000,
        ended=fields.get("ended", ""),
        end=EndMarker.from_json(end) if end else None,
        notice=fields.get("notice", ""),
        slots=tuple(slot_of_field(field) for field in fields.get("slots", "").split()),
    )


def versions_of(weights: Mapping[str, str]) -> tuple[WeightsRecord, ...]:
    """The versions that a weights hash holds, oldest first."""
    listed = weights.get("versions", "").split()
    return tuple(WeightsRecord.from_json(weights[v]) for v in listed if v in weights)


def pairs_of(answer: Sequence[bytes]) -> dict[str, str]:
    """A hash as the server answers it (field, value, …) as a mapping."""
    texts = [text_of(part) for part in answer]
    return dict(zip(texts[::2], texts[1::2], strict=True))


def text_of(value: bytes | str) -> str:
    """A bulk string as text."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value


_DECIMALS = ("return_sum", "last_append", "full_since")


def _slot_order(record: Heartbeat) -> tuple[str, int]:
    return record.group, record.index


def _counters(fields: Mapping[str, str]) -> Counters:
    names = Counters.__dataclass_fields__
    values: dict[str, Any] = {}
    for name in names:
        if name in fields:
            values[name] = float(fields[name]) if name in _DECIMALS else int(fields[name])
    return Counters(**values)


def _worker_counters(fields: Mapping[str, str]) -> dict[Slot, WorkerCounters]:
    kinds = {
        "frames": "frames",
        "own": "unacked_batches",
        "dropped": "dropped_frames",
        "stale": "stale_frames",
    }
    kinds["bad"] = "bad_batches"
    found: dict[Slot, dict[str, int]] = {}
    for name, value in fields.items():
        kind, _, slot = name.partition(":")
        if slot and kind in kinds:
            found.setdefault(slot_of_field(slot), {})[kinds[kind]] = int(value)
    return {slot: WorkerCounters(**found[slot]) for slot in sorted(found)}


def _groups(
    answer: Sequence[Sequence[Any]], registered: set[str], counters: Mapping[str, str]
) -> tuple[GroupProgress, ...]:
    groups = []
    for entry in answer:
        fields = {text_of(k): v for k, v in zip(entry[::2], entry[1::2], strict=True)}
        name = text_of(fields["name"])
        if name in registered:
            acked = int(counters.get(f"acked:{name}", 0))
            groups.append(GroupProgress(name, int(fields["pending"]), int(fields["consumers"]), acked))
    return tuple(sorted(groups, key=lambda g: g.name))


def _episode(text: bytes) -> EpisodeRecord:
    fields = json.loads(text)
    return EpisodeRecord(
        value=float(fields["return"]),
        length=int(fields["length"]),
        policy_version=int(fields.get("policy_version", 0)),
        frames=int(fields.get("frames", 0)),
        worker=str(fields.get("worker", "")),
    )


def _optional(text: str | None) -> int | None:
    return int(text) if text else None
