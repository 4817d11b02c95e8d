"""Reserve, append, ack and release against a plain Python model, in any order that hypothesis comes up with."""

from __future__ import annotations

import contextlib
import uuid
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rollout_contract import wire
from rollout_contract.keys import JobKeys
from rollout_contract.messages import AppendStatus, ReserveStatus
from rollout_contract.names import JobRef, Slot, WorkerId
from rollout_stream import Control, JobSettings, StreamLimits, StreamWriter
from rollout_stream.calls import JobCalls
from rollout_stream.session import Session


@dataclass
class Model:
    """What the scripts promise, in the fewest words."""

    total: int | None
    random_left: int
    high: int | None
    groups: tuple[str, ...]
    frames: int = 0
    reservations: dict[int, list[int]] = field(default_factory=dict)
    """slot → [frames, random]."""
    entries: dict[str, tuple[int, int, set[str]]] = field(default_factory=dict)
    """id → (frames, slot, groups that have acked)."""
    full: bool = False
    random_made: int = 0

    @property
    def unacked(self) -> int:
        return sum(frames for frames, _, _ in self.entries.values())

    @property
    def reserved(self) -> int:
        return sum(frames for frames, _ in self.reservations.values())

    @property
    def is_complete(self) -> bool:
        return self.total is not None and self.frames >= self.total

    def latch(self) -> bool:
        if self.high is not None:
            self.full = self.unacked > 0.8 * self.high if self.full else self.unacked >= self.high
        return self.full

    def grant(self, slot: int, want: int, *, top_up: bool) -> tuple[str, int, int]:
        if self.is_complete:
            return "finished", 0, 0
        if self.latch():
            return "full", 0, 0
        held = self.reservations.get(slot)
        if held and held[0] > want and not top_up:
            frames, random = want, min(held[1], want)
            self.random_left += held[1] - random
            self.reservations[slot] = [frames, random]
            if not frames:
                del self.reservations[slot]
        held = self.reservations.get(slot)
        if held is None or (top_up and held[0] < want):
            had = held[0] if held else 0
            left = None if self.total is None else self.total - self.frames - self.reserved
            more = want - had if left is None else min(want - had, left)
            if more > 0:
                if held:
                    self.random_left += held[1]
                random = min(had + more, self.random_left)
                self.random_left -= random
                self.reservations[slot] = [had + more, random]
        held = self.reservations.get(slot)
        return ("granted", *held) if held and held[0] > 0 else ("wait", 0, 0)

    def append(
        self, slot: int, entry: str | None, frames: int, want: int
    ) -> tuple[str, tuple[str, int, int]]:
        if self.is_complete:
            return "finished", ("finished", 0, 0)
        if self.latch():
            return "full", ("full", 0, 0)
        granted, random = self.reservations.pop(slot, [0, 0])
        assert entry is not None
        self.entries[entry] = (frames, slot, set())
        self.frames += frames
        made = min(random, frames)
        self.random_made += made
        if granted > frames:
            self.reservations[slot] = [granted - frames, random - made]
        else:
            self.random_left += random - made
        return "ok", self.grant(slot, want, top_up=True)

    def ack(self, group: str, entry: str) -> None:
        _frames, _slot, acked = self.entries[entry]
        acked.add(group)
        if acked == set(self.groups):
            del self.entries[entry]
        self.latch()

    def release(self, slot: int) -> int:
        frames, random = self.reservations.pop(slot, [0, 0])
        self.random_left += random
        return frames


actions = st.lists(
    st.one_of(
        st.tuples(st.just("reserve"), st.integers(0, 2), st.integers(1, 20)),
        st.tuples(st.just("append"), st.integers(0, 2), st.integers(1, 20), st.integers(0, 20)),
        st.tuples(st.just("repeat"), st.integers(0, 2)),
        st.tuples(st.just("ack"), st.integers(0, 1), st.integers(0, 30)),
        st.tuples(st.just("replace"), st.integers(0, 2)),
        st.tuples(st.just("release"), st.integers(0, 2)),
    ),
    min_size=1,
    max_size=40,
)


class Side:
    """The real thing: three slots on one server."""

    def __init__(self, session: Session, model: Model) -> None:
        self.session = session
        self.job = JobRef("tests", f"m{uuid.uuid4().hex[:8]}", str(uuid.uuid4()))
        self.keys = JobKeys.of(self.job)
        self.calls = JobCalls(self.keys)
        self.control = Control(session, self.job)
        self.control.open_job(
            JobSettings(
                uid=self.job.uid,
                seed=1,
                total_frames=model.total,
                init_random_frames=model.random_left,
                groups=model.groups,
                limits=StreamLimits(max_unacked_frames=model.high),
            )
        )
        self.writers = [StreamWriter(session, self.job, WorkerId("cpu", n, 0)) for n in range(3)]
        self.last = [None, None, None]

    def read(self, group: str) -> None:
        self.session.client.execute_command(
            "XREADGROUP", "GROUP", group, "c", "STREAMS", self.keys.batches, ">"
        )

    def append(self, slot: int, frames: int, want: int):
        writer = self.writers[slot]
        header = wire.BatchHeader(
            job=self.job.uid,
            worker=writer.worker,
            sequence=writer.next_sequence,
            shape=(frames, 1),
            frames=frames,
        )
        self.last[slot] = (header, wire.encode(header, []))
        return writer.append(*self.last[slot], want=want)

    def newest_id(self) -> str:
        return self.session.client.execute_command("XREVRANGE", self.keys.batches, "+", "-", "COUNT", 1)[0][
            0
        ].decode()


def answer_of(reservation) -> tuple[str, int, int]:
    return reservation.status.value, reservation.granted, reservation.random


@pytest.fixture
def session(rig):
    return rig.control.session


@settings(
    max_examples=120,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(
    total=st.one_of(st.none(), st.integers(1, 120)),
    random_frames=st.integers(0, 60),
    high=st.one_of(st.none(), st.integers(5, 60)),
    groups=st.sampled_from([("a",), ("a", "b")]),
    steps=actions,
)
def test_the_scripts_do_what_the_model_does(session, total, random_frames, high, groups, steps):
    model = Model(total, random_frames, high, groups)
    side = Side(session, model)
    try:
        for step in steps:
            take(step, model, side)
            compare(model, side, random_frames)
    finally:
        side.control.delete()


def take(step, model: Model, side: Side) -> None:
    match step:
        case ("reserve", slot, want):
            assert answer_of(side.writers[slot].reserve(want)) == model.grant(slot, want, top_up=False)
        case ("append", slot, frames, want):
            append_both(model, side, slot, frames, want)
        case ("repeat", slot):
            repeat_both(model, side, slot)
        case ("ack", number, which):
            group = model.groups[number % len(model.groups)]
            waiting = [entry for entry, (_, _, acked) in model.entries.items() if group not in acked]
            if waiting:
                side.read(group)
                entry = waiting[which % len(waiting)]
                side.session.run(side.calls.ack(group, [entry]))
                model.ack(group, entry)
        case ("replace", slot):
            old = side.writers[slot]
            side.writers[slot] = StreamWriter(
                side.session, side.job, WorkerId("cpu", slot, old.worker.attempt + 1)
            )
            assert side.writers[slot].next_sequence == old.next_sequence
            assert old.reserve(5).status == ReserveStatus.FENCED
            side.last[slot] = None
        case ("release", slot):
            attempt = side.writers[slot].worker.attempt
            assert side.writers[slot].release() == model.release(slot)
            side.writers[slot] = StreamWriter(side.session, side.job, WorkerId("cpu", slot, attempt + 1))
            side.last[slot] = None


def append_both(model: Model, side: Side, slot: int, frames: int, want: int) -> None:
    granted = model.reservations.get(slot, [0, 0])[0]
    if model.total is not None:
        frames = min(frames, granted + model.total - model.frames - model.reserved)
        if frames <= 0 and not model.is_complete:
            return
    frames = max(frames, 1)
    reply = side.append(slot, frames, want)
    entry = None
    with contextlib.suppress(IndexError):
        newest = side.session.client.execute_command("XREVRANGE", side.keys.batches, "+", "-", "COUNT", 2)
        entry = (
            next(e[0].decode() for e in newest if e[1][0] == b"b")
            if reply.status == AppendStatus.OK
            else None
        )
    expected = model.append(slot, entry, frames, want)
    assert (reply.status.value, answer_of(reply.next)) == expected
    if reply.status != AppendStatus.OK:
        side.last[slot] = None


def repeat_both(model: Model, side: Side, slot: int) -> None:
    last = side.last[slot]
    if last is None:
        return
    writer = side.writers[slot]
    writer.next_sequence -= 1
    want = model.reservations.get(slot, [7, 0])[0]
    reply = writer.append(*last, want=want)
    assert reply.status == AppendStatus.DUPLICATE
    assert answer_of(reply.next) == model.grant(slot, want, top_up=False)


def compare(model: Model, side: Side, random_frames: int) -> None:
    progress = side.control.read_progress()
    counters = progress.counters
    in_stream = side.session.client.execute_command("XRANGE", side.keys.batches, "-", "+")
    own: dict[Slot, int] = {}
    for _, slot, _ in model.entries.values():
        own[Slot("cpu", slot)] = own.get(Slot("cpu", slot), 0) + 1
    assert {
        "frames": counters.frames,
        "reserved": progress.reserved_frames,
        "random left": progress.random_frames_left,
        "unacked": counters.unacked_frames,
        "entries": [e[0].decode() for e in in_stream if e[1][0] == b"b"],
        "reservations": {slot.index: frames for slot, frames in progress.reservations.items()},
        "own": {slot: c.unacked_batches for slot, c in progress.worker_counters.items() if c.unacked_batches},
        "ended": progress.control.ended == "finished",
    } == {
        "frames": model.frames,
        "reserved": model.reserved,
        "random left": model.random_left,
        "unacked": model.unacked,
        "entries": list(model.entries),
        "reservations": {slot: frames for slot, (frames, _) in model.reservations.items()},
        "own": own,
        "ended": model.is_complete,
    }
    reserved_random = sum(random for _, random in model.reservations.values())
    assert model.random_made + reserved_random + progress.random_frames_left == random_frames
