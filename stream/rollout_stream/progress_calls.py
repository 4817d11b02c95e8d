"""Reads how a job's stream stands: one pipeline, and its answers as records of `progress`.

Pure: `Control.read_progress` and its asyncio twin send the commands.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rollout_contract.errors import StateLost
from rollout_contract.keys import JobKeys
from rollout_contract.messages import EndMarker, Heartbeat, WeightsRecord
from rollout_contract.names import Slot
from rollout_stream.calls import Commands
from rollout_stream.progress import (
    ControlState,
    Counters,
    EpisodeRecord,
    GroupProgress,
    Progress,
    WorkerCounters,
)
from rollout_stream.settings import StreamLimits
from rollout_stream.spelling import pairs_of, slot_of_field, text_of


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
        init_random_frames=int(fields.get("init_random_frames", 0)),
        groups=tuple(fields.get("groups", "").split()),
    )


def versions_of(weights: Mapping[str, str]) -> tuple[WeightsRecord, ...]:
    """The versions that a weights hash holds, oldest first."""
    listed = weights.get("versions", "").split()
    return tuple(WeightsRecord.from_json(weights[v]) for v in listed if v in weights)


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
        "bad": "bad_batches",
    }
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
