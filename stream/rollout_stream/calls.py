"""Every question to the server as a value: which script or commands, with which arguments, and how the answer is read.

Pure. `Session` and `AsyncSession` run these values, so that the synchronous classes and their asyncio twins share all
that they say to the server and all that they understand of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeAlias, TypeVar

from rollout_contract.keys import JobKeys
from rollout_contract.messages import (
    AppendReply,
    EndMarker,
    Heartbeat,
    Layout,
    Reservation,
)
from rollout_contract.names import Slot, WorkerId
from rollout_contract.wire import BatchHeader
from rollout_stream.scripts import Script, keys_of, script
from rollout_stream.settings import JobSettings, StreamLimits
from rollout_stream.spelling import (
    decimal,
    episode_texts,
    heartbeat_text,
    limit_fields,
    parse_append,
    parse_reservation,
    slot_field,
)

T = TypeVar("T")
Command: TypeAlias = tuple[Any, ...]

MAX_IDS: Final = 256
"""Entries acked by one call."""


@dataclass(frozen=True, slots=True)
class ScriptCall(Generic[T]):
    """One script to run. `is_repeatable`: running it again after a lost answer does no harm."""

    doing: str
    script: Script
    keys: tuple[str, ...]
    args: Command
    parse: Callable[[Any], T]
    is_repeatable: bool = True


@dataclass(frozen=True, slots=True)
class Commands(Generic[T]):
    """Plain commands to send in one go. `takes_errors`: the answers given to `parse` may be the driver's exceptions."""

    doing: str
    commands: tuple[Command, ...]
    parse: Callable[[list[Any]], T]
    takes_errors: bool = False
    is_repeatable: bool = True


Call: TypeAlias = ScriptCall[T] | Commands[T]


@dataclass(frozen=True, slots=True)
class Joined:
    """Answer to a worker process that begins. `sequence` is the slot's last one, `server_time` in seconds since 1970."""

    is_fenced: bool
    known_attempt: int
    sequence: int
    server_time: float


@dataclass(frozen=True, slots=True)
class Acked:
    """What an ack did: entries that were pending in the group, entries that went away, unacked frames left."""

    acked: int
    removed: int
    unacked_frames: int


@dataclass(frozen=True, slots=True)
class SeedState:
    """The job's seed and how often it was changed."""

    seed: int
    epoch: int
    was_set: bool = True
    """False where another epoch was expected: nothing was changed."""


class JobCalls:
    """The calls of one job."""

    def __init__(self, keys: JobKeys) -> None:
        self.keys = keys
        self._all = keys_of(keys)

    def _script(
        self, doing: str, name: str, *args: Any, parse: Callable[[Any], T], repeatable: bool = True
    ) -> ScriptCall[T]:
        return ScriptCall(doing, script(name), self._all, args, parse, repeatable)

    # --- the job's life

    def open_job(self, settings: JobSettings) -> ScriptCall[bool]:
        slots = " ".join(slot_field(slot) for slot in settings.slots)
        random = settings.init_random_frames
        fields = {**limit_fields(settings.limits), "seed": settings.seed, "slots": slots, "notice": "",
                  "init_random_frames": random, "random_given": random, "groups": " ".join(settings.groups)}  # fmt: skip
        pairs = [part for pair in fields.items() for part in pair]
        return self._script(
            "opening the job's stream", "open_job",
            settings.uid, settings.ttl_s * 1000, "" if settings.total_frames is None else settings.total_frames,
            random, len(fields), *pairs, *settings.groups, parse=_is_one,
        )  # fmt: skip

    def finish(self, marker: EndMarker) -> ScriptCall[bool]:
        return self._script(
            "ending the stream", "finish", marker.kind, marker.to_json(), parse=lambda a: int(a[0]) == 1
        )

    def reopen(self) -> ScriptCall[bool]:
        return self._script("resuming the stream", "reopen", parse=_is_one)

    def touch(self, ttl_s: float | None = None) -> ScriptCall[int]:
        """Answers the time to live in milliseconds."""
        ttl = "" if ttl_s is None else max(1, int(ttl_s * 1000))
        return self._script("renewing the job's keys", "touch", ttl, parse=int)

    def delete(self) -> ScriptCall[int]:
        return self._script("deleting the job's keys", "delete", parse=int)

    def register(self, group: str) -> ScriptCall[bool]:
        return self._script(f"registering group {group!r}", "register", group, parse=_is_one)

    def unregister(self, group: str) -> ScriptCall[bool]:
        return self._script(f"removing group {group!r}", "unregister", group, parse=_is_one)

    # --- control

    def set_seed(self, seed: int, expected_epoch: int | None) -> ScriptCall[SeedState]:
        expected = "" if expected_epoch is None else expected_epoch
        return self._script(
            "setting the seed", "set_seed", seed, expected,
            parse=lambda a: SeedState(int(a[1]), int(a[2]), int(a[0]) == 1), repeatable=expected_epoch is not None,
        )  # fmt: skip

    def command(self, flags: Mapping[str, bool]) -> ScriptCall[int]:
        pairs = [part for name, value in flags.items() for part in (name, int(value))]
        return self._script("giving a command", "command", *pairs, parse=int)

    def set_limits(self, limits: StreamLimits | None, total_frames: str) -> ScriptCall[bool]:
        fields = limit_fields(limits) if limits else {}
        pairs = [part for pair in fields.items() for part in pair]
        return self._script("setting limits", "set_limits", total_frames, "", *pairs, parse=_is_one)

    def set_random(self, frames: int) -> ScriptCall[bool]:
        return self._script("setting the random frames", "set_limits", "", frames, parse=_is_one)

    def set_groups(self, known: Sequence[str], groups: Sequence[str]) -> list[ScriptCall[bool]]:
        """The calls, in order, that make these groups of those that the job had from its start."""
        text = " ".join(groups)
        return [
            *(self.register(group) for group in groups),
            *(self.unregister(group) for group in sorted(set(known) - set(groups))),
            self._script("noting the groups", "set_limits", "", "", "groups", text, parse=_is_one),
        ]

    def declare(self, what: str, layout: Layout) -> ScriptCall[Layout]:
        text = layout.to_json()
        return self._script(f"declaring the {what} layout", "declare", what, text, parse=Layout.from_json)

    def layout(self, what: str) -> Commands[Layout | None]:
        return Commands(
            f"reading the {what} layout",
            (("HGET", self.keys.layout, what),),
            lambda answers: Layout.from_json(answers[0]) if answers[0] else None,
        )

    # --- writers

    def join(self, worker: WorkerId) -> ScriptCall[Joined]:
        return self._script(
            "joining the stream", "join", slot_field(worker.slot), worker.attempt, parse=_joined
        )

    def reserve(self, worker: WorkerId, sequence: int, want: int) -> ScriptCall[Reservation]:
        slot = slot_field(worker.slot)
        return self._script(
            "reserving frames", "reserve", slot, worker.attempt, sequence, want, parse=parse_reservation
        )  # fmt: skip

    def release(self, slot: Slot, attempt: int) -> ScriptCall[int]:
        return self._script("releasing a reservation", "release", slot_field(slot), attempt, parse=int)

    def heartbeat(self, record: Heartbeat) -> ScriptCall[Reservation]:
        slot = slot_field(Slot(record.group, record.index))
        return self._script(
            "writing a heartbeat", "heartbeat", slot, record.attempt, heartbeat_text(record), parse=parse_reservation
        )  # fmt: skip

    def refused(self, worker: WorkerId, record: Heartbeat | None) -> ScriptCall[AppendReply]:
        slot = slot_field(worker.slot)
        text = heartbeat_text(record) if record else ""
        return self._script("writing a heartbeat", "refused", slot, text, parse=parse_append)

    def announce(self, workers: Sequence[WorkerId]) -> ScriptCall[int]:
        """Answers how many of them are newer than what was known of their slots."""
        pairs = [part for worker in workers for part in (slot_field(worker.slot), worker.attempt)]
        return self._script("announcing attempts", "announce", *pairs, parse=int)

    def next_attempt(self, slot: Slot) -> Commands[int]:
        return Commands(
            "reading the newest attempt",
            (("HGET", self.keys.writers, slot_field(slot)),),
            lambda answers: int(answers[0].split()[0]) + 1 if answers[0] else 0,
        )

    def append_args(
        self, header: BatchHeader, size: int, want: int, record: Heartbeat | None, *, is_cut: bool
    ) -> Command:
        """Keys and arguments of the append script, which runs behind the entry's own XADD (see append.lua)."""
        episodes, worker = header.episodes, header.worker
        return (
            len(self._all), *self._all, slot_field(worker.slot), worker.attempt, header.sequence, header.frames, size, want,
            episodes.count, decimal(episodes.return_sum), episodes.length_sum, header.policy_version[1],
            heartbeat_text(record) if record else "", "" if is_cut else header.seed_epoch, *episode_texts(header),
        )  # fmt: skip

    # --- readers

    def ack(self, group: str, ids: Sequence[str]) -> ScriptCall[Acked]:
        return self._script(
            "acking batches", "ack", group, *ids, parse=lambda a: Acked(int(a[0]), int(a[1]), int(a[2]))
        )  # fmt: skip

    def bad(self, group: str, entry: str, *, reason: str, size: int, head: bytes) -> ScriptCall[bool]:
        return self._script(
            "setting a bad entry aside", "bad", group, entry, reason, size, head, parse=_is_one
        )

    def claim(
        self, group: str, consumer: str, *, idle_ms: int, most: int, held: Sequence[str]
    ) -> ScriptCall[list[tuple[str, int]]]:
        """Answers (entry, times delivered)."""
        return self._script(
            "taking over batches", "claim", group, consumer, idle_ms, most, *held,
            parse=lambda a: [(entry.decode(), int(times)) for entry, times in a],
        )  # fmt: skip

    def renew(
        self,
        group: str,
        consumer: str,
        entries: Sequence[str],
        *,
        idle_ms: int = 0,
        deliveries: int | None = None,
    ) -> ScriptCall[list[str]]:
        """Answers the entries that the consumer holds no more."""
        times = "" if deliveries is None else deliveries
        return self._script(
            "renewing claims", "renew", group, consumer, idle_ms, times, *entries,
            parse=lambda a: [entry.decode() for entry in a],
        )  # fmt: skip

    def leave(self, group: str, consumer: str) -> ScriptCall[bool]:
        return self._script("leaving the group", "leave", group, consumer, parse=_is_one)

    def drop(self, group: str, entry: str) -> ScriptCall[bool]:
        return self._script("dropping a stale batch", "drop", group, entry, parse=_is_one)

    def notice(self, text: str) -> ScriptCall[bool]:
        return self._script("telling the readers", "set_limits", "", "", "notice", text, parse=_is_one)

    # --- weights

    def publish(
        self, upload: str, *, expected: int | None, idempotency_key: str, chunks: int, record: str
    ) -> ScriptCall[list[bytes]]:
        prefix = self.keys.upload_chunk(upload, 0).rsplit(":", 1)[0]
        wanted = "" if expected is None else expected
        return self._script(
            "publishing weights", "publish", prefix, wanted, idempotency_key, chunks, record, parse=list
        )  # fmt: skip

    def lease(self, reader: str, version: int | None, seconds: float) -> ScriptCall[bytes | None]:
        wanted = "" if version is None else version
        return self._script("reading weights", "lease", reader, wanted, seconds, parse=lambda a: a)


def _joined(answer: Sequence[bytes]) -> Joined:
    return Joined(answer[0] == b"fenced", int(answer[1]), int(answer[2]), float(answer[3]))


def _is_one(answer: Any) -> bool:
    return int(answer) == 1
