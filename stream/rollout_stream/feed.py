"""What a reader asks of the stream, as values: new entries, one entry, where the group stands. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from rollout_contract.errors import StateLost
from rollout_contract.keys import JobKeys
from rollout_contract.messages import EndMarker
from rollout_stream.calls import Commands
from rollout_stream.spelling import text_of

MAX_DELIVERIES: Final = 5
"""An entry that was given out so often and never acked is set aside: it may be what kills its readers."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry as it came. `payload` is empty for a marker."""

    entry_id: str
    payload: bytes
    is_marker: bool
    deliveries: int = 1


@dataclass(frozen=True, slots=True)
class GroupState:
    """How the job ended (None: it has not), and entries that were delivered in the group and not acked."""

    end: EndMarker | None
    pending: int
    own_pending: int


def read_commands(
    keys: JobKeys, group: str, consumer: str, *, count: int, block_ms: int
) -> Commands[list[Entry]]:
    """New entries, at most `count`, after a wait of at most `block_ms`. StateLost if stream or group are gone.

    Not repeatable: entries whose answer was lost are pending for this consumer, and claimed from there.
    """
    command = (
        "XREADGROUP",
        "GROUP",
        group,
        consumer,
        "COUNT",
        count,
        "BLOCK",
        max(1, block_ms),
        "STREAMS",
        keys.batches,
        ">",
    )

    def parse(answers: list[Any]) -> list[Entry]:
        (answer,) = answers
        if isinstance(answer, Exception):
            if str(answer).startswith(("NOGROUP", "UNBLOCKED")):
                raise StateLost(f"the stream {keys.batches} or its group {group!r} is gone") from answer
            raise answer
        return [] if not answer else [entry_of(e, 1) for e in answer[0][1] if e[1] is not None]

    return Commands("reading batches", (command,), parse, takes_errors=True, is_repeatable=False)


def fetch_commands(keys: JobKeys, entry_id: str, deliveries: int) -> Commands[list[Entry]]:
    """One entry by its id; empty if it is not in the stream any more."""
    command = ("XRANGE", keys.batches, entry_id, entry_id)
    return Commands("reading a batch", (command,), lambda a: [entry_of(e, deliveries) for e in a[0]])


def state_commands(keys: JobKeys, group: str, consumer: str) -> Commands[GroupState]:
    """Whether the job has ended, and what the group still has before it."""
    commands = (
        ("HMGET", keys.control, "job", "end"),
        ("XPENDING", keys.batches, group),
    )

    def parse(answers: list[Any]) -> GroupState:
        for answer in answers:
            if isinstance(answer, Exception):
                raise StateLost(f"the stream {keys.batches} or its group {group!r} is gone") from answer
        (job, end), pending = answers
        if job is None:
            raise StateLost(f"the keys {keys.prefix} are gone: the server was emptied, or they expired")
        held = {text_of(name): int(number) for name, number in (pending[3] or [])}
        return GroupState(
            end=EndMarker.from_json(end) if end else None,
            pending=int(pending[0]),
            own_pending=held.get(consumer, 0),
        )

    return Commands("looking for the end", commands, parse, takes_errors=True)


def newest_version(keys: JobKeys) -> Commands[int]:
    """The newest policy version; 0 before the first."""
    return Commands(
        "reading the newest version", (("HGET", keys.weights, "newest"),), lambda a: int(a[0] or 0)
    )


def entry_of(entry: Sequence[Any], deliveries: int) -> Entry:
    """An entry as the server answers it: id, [field, value, …]."""
    fields = dict(zip(entry[1][::2], entry[1][1::2], strict=True))
    return Entry(text_of(entry[0]), fields.get(b"b", b""), b"e" in fields and b"b" not in fields, deliveries)
