"""Records that travel between the parts through Redis. Who makes and who reads each stands over it.

All are frozen and JSON-able (`to_json` / `from_json` on those that are stored as text); unknown fields are ignored when
read, so that a newer writer does not stop an older reader.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from typing import Any, Self


class _JsonRecord:
    """A frozen dataclass that is stored as one JSON object."""

    def to_json(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"))  # type: ignore[call-overload]

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        document: dict[str, Any] = json.loads(text)
        known = {f.name for f in fields(cls)}  # type: ignore[arg-type]
        return cls(**{k: v for k, v in document.items() if k in known})


class AppendStatus(StrEnum):
    """What became of an append."""

    OK = "ok"
    DUPLICATE = "duplicate"
    """(worker, attempt, sequence) was appended before: nothing was written, the caller goes on."""
    FULL = "full"
    """Above the watermark, or the server is out of memory: nothing was written; try again."""
    FENCED = "fenced"
    """A newer attempt of this worker has written."""
    FINISHED = "finished"
    """The job's frames are complete, or the job was ended: nothing was written."""
    RESEED = "reseed"
    """The seed epoch was raised meanwhile: nothing was written; end the batch's trajectories and append it again."""
    DROPPED = "dropped"
    """Above the watermark with `onFull: DropNewest`: the batch was counted as dropped, the caller goes on with the next."""


class ReserveStatus(StrEnum):
    """Whether a worker may make another batch."""

    GRANTED = "granted"
    WAIT = "wait"
    """Nothing is left to grant, but other workers' reservations are open and may come back."""
    FULL = "full"
    """Unacked frames or bytes are above the low watermark after having been above the high one."""
    FENCED = "fenced"
    FINISHED = "finished"


# Made by the reserve and append scripts; read by the worker's collector loop.
@dataclass(frozen=True, slots=True)
class Reservation:
    """Answer to "may I make another batch?", with the job's news.

    `granted` frames (0 unless `status` is GRANTED), of which the first `random` are to be made with random actions.
    """

    status: ReserveStatus
    granted: int
    random: int
    newest_version: int
    seed: int
    seed_epoch: int
    command_epoch: int
    unacked_frames: int
    own_unacked_batches: int
    max_own_unacked: int | None = None
    """With more unacked batches of its own than this, a worker waits: `weights.maxStaleness` with `onStale: Pace`."""


# Made by the append script; read by the worker's collector loop.
@dataclass(frozen=True, slots=True)
class AppendReply:
    """What became of the batch, and the reservation for the next one (asked for in the same call)."""

    status: AppendStatus
    next: Reservation


@dataclass(frozen=True, slots=True)
class EpisodeSummary:
    """Episodes that ended inside a batch. `newest` holds at most MAX_NEWEST of them as (return, length), oldest first."""

    count: int = 0
    return_sum: float = 0.0
    return_min: float | None = None
    return_max: float | None = None
    length_sum: int = 0
    newest: tuple[tuple[float, int], ...] = ()

    MAX_NEWEST = 256

    @classmethod
    def of(cls, returns: list[float], lengths: list[int]) -> EpisodeSummary:
        """Summary of episodes in the order in which they ended."""
        if not returns:
            return cls()
        newest = tuple(zip(returns, lengths, strict=True))[-cls.MAX_NEWEST :]
        return cls(len(returns), sum(returns), min(returns), max(returns), sum(lengths), newest)


class WorkerState(StrEnum):
    """What a worker is doing, as its heartbeat says."""

    STARTING = "Starting"
    COLLECTING = "Collecting"
    WAITING_FOR_WEIGHTS = "WaitingForWeights"
    BACKPRESSURED = "Backpressured"
    PAUSED = "Paused"
    """Held back by pacing (`maxStaleness`), by a command, or because other workers hold what is left of the budget."""
    DRAINING = "Draining"
    FINISHED = "Finished"
    FAILED = "Failed"


# Made by the worker, every HEARTBEAT_S and with every batch; read by operator and gateway.
@dataclass(frozen=True, slots=True)
class Heartbeat(_JsonRecord):
    """A worker's newest record. Times are the server's, in seconds since 1970, set by the script that stores it."""

    group: str
    index: int
    attempt: int
    state: str
    frames: int = 0
    """Frames that this attempt has appended."""
    frames_per_second: float = 0.0
    policy_version: int = 0
    """Version that the worker acts with now."""
    seed_epoch: int = 0
    sequence: int = 0
    pid: int = 0
    node: str = ""
    rejected_version: int = 0
    """Newest version that did not fit and was not loaded; 0 if none."""
    last_error: str = ""
    started: float = 0.0
    seen: float = 0.0


HEARTBEAT_S = 5.0
"""A worker writes a heartbeat at least this often; absence for three periods means lost."""


class EndKind(StrEnum):
    """Why nothing more comes."""

    FINISHED = "finished"
    FAILED = "failed"
    SUSPENDED = "suspended"


# Made by the operator (or by the append that completes the budget); read by every reader.
@dataclass(frozen=True, slots=True)
class EndMarker(_JsonRecord):
    """Last entry of a stream: ends a reader's iterator once nothing is pending for its group."""

    kind: str
    reason: str = ""
    message: str = ""

    @property
    def text(self) -> str:
        """Reason and message, as far as they were given."""
        return ": ".join(filter(None, (self.reason, self.message)))


# Made by the publish script; read by workers, gateway, learner.
@dataclass(frozen=True, slots=True)
class WeightsRecord(_JsonRecord):
    """One published version. `digest` is the SHA-256 of its bytes in hexadecimal."""

    version: int
    size: int
    digest: str
    chunks: int
    time: float = 0.0
    publisher: str = ""


# Made by the first worker at its start; compared by every other worker, checked by publishers and readers.
@dataclass(frozen=True, slots=True)
class Layout(_JsonRecord):
    """What data or weights look like: per leaf its dtype and shape (of one frame, or of one parameter)."""

    leaves: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Leaf name (nested keys joined by `wire.KEY_SEPARATOR`) → {"dtype": str, "shape": list[int]}."""

    def differences(self, found: Layout) -> list[str]:
        """What `found` has otherwise than this layout, one line per leaf; empty if they are equal."""
        lines = []
        for name in sorted(self.leaves.keys() | found.leaves.keys()):
            ours, theirs = self.leaves.get(name), found.leaves.get(name)
            shown = name.replace("\x1f", ".")
            if theirs is None:
                lines.append(f"{shown}: missing; expected {_text(ours)}")
            elif ours is None:
                lines.append(f"{shown}: not expected; found {_text(theirs)}")
            elif _text(ours) != _text(theirs):
                lines.append(f"{shown}: expected {_text(ours)}, found {_text(theirs)}")
        return lines


def _text(leaf: dict[str, Any] | None) -> str:
    return f"{leaf['dtype']}{list(leaf['shape'])}" if leaf else "nothing"
