"""How the contract's records are spelled in the server's hashes, as arguments of scripts, and in their answers. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rollout_contract.messages import AppendReply, AppendStatus, Heartbeat, Reservation, ReserveStatus
from rollout_contract.names import Slot
from rollout_contract.wire import BatchHeader
from rollout_stream.settings import StreamLimits


def slot_field(slot: Slot) -> str:
    """A slot as it stands in hashes: `<group>/<index>`."""
    return f"{slot.group}/{slot.index}"


def slot_of_field(field: str) -> Slot:
    """The inverse of `slot_field`."""
    group, _, index = field.rpartition("/")
    return Slot(group, int(index))


def limit_fields(limits: StreamLimits) -> dict[str, Any]:
    """Fields of the control hash; an unset limit is an empty string."""
    return {name: "" if value is None else value for name, value in asdict(limits).items()}


def heartbeat_text(record: Heartbeat) -> str:
    """The record as JSON, open at its end: the script adds the server's time as `seen`."""
    document = asdict(record)
    document.pop("seen")
    return json.dumps(document, separators=(",", ":"))[:-1] + ',"seen":'


def episode_texts(header: BatchHeader) -> list[str]:
    """One JSON object per newest episode, open at its end: the script adds the job's frames so far as `frames`."""
    base = {"policy_version": header.policy_version[1], "worker": str(header.worker.slot)}
    return [
        json.dumps({"return": json.loads(decimal(value)), "length": length, **base}, separators=(",", ":"))[
            :-1
        ]
        + ',"frames":'
        for value, length in header.episodes.newest
    ]


def parse_reservation(answer: Sequence[bytes]) -> Reservation:
    """The reservation that `news` in flow.lua wrote."""
    status, granted, random, newest, seed, epoch, command, unacked, own = answer[:9]
    pace = answer[10]
    return Reservation(
        status=ReserveStatus(status.decode()),
        granted=int(granted),
        random=int(random),
        newest_version=int(newest),
        seed=int(seed),
        seed_epoch=int(epoch),
        command_epoch=int(command),
        unacked_frames=int(unacked),
        own_unacked_batches=int(own),
        max_own_unacked=int(pace) if pace else None,
    )


def parse_append(answer: Sequence[Any]) -> AppendReply:
    """The reply that append.lua wrote."""
    return AppendReply(AppendStatus(answer[0].decode()), parse_reservation(answer[1]))


def decimal(value: float) -> str:
    """A number that the server can add and JSON can hold: what is not finite counts as 0."""
    return repr(float(value)) if abs(value) < 1e300 else "0"


def pairs_of(answer: Sequence[bytes]) -> dict[str, str]:
    """A hash as the server answers it (field, value, …) as a mapping."""
    texts = [text_of(part) for part in answer]
    return dict(zip(texts[::2], texts[1::2], strict=True))


def text_of(value: bytes | str) -> str:
    """A bulk string as text."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value
