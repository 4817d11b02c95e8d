"""The frame of a batch: round trips, the same bytes on every way, and errors for everything else."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollout_contract import wire
from rollout_contract.errors import FrameError
from rollout_contract.messages import EpisodeSummary
from rollout_contract.names import WorkerId

WORKER = WorkerId("cpu", 3, 1)


def header(**changes):
    fields = {"job": "0f1e-uid", "worker": WORKER, "sequence": 7, "shape": (2, 3), "frames": 6, **changes}
    return wire.BatchHeader(**fields)


def leaf(name="observation", dtype="float32", shape=(2, 3), **changes):
    size = math.prod(shape) * wire.ITEM_BYTES.get(dtype, 1)
    return wire.Leaf(name, dtype, shape, bytes(n % 251 for n in range(size)), **changes)


keys = st.lists(
    st.text(
        st.characters(exclude_characters=wire.KEY_SEPARATOR, exclude_categories=["Cs"]),
        min_size=1,
        max_size=12,
    ),
    min_size=1,
    max_size=3,
).map(wire.join_key)
summaries = st.lists(
    st.tuples(st.floats(allow_nan=False, allow_infinity=False, width=32), st.integers(0, 10**6))
).map(lambda pairs: EpisodeSummary.of([p[0] for p in pairs], [p[1] for p in pairs]))


@st.composite
def batches(draw):
    shape = (draw(st.integers(0, 4)), draw(st.integers(0, 3)))
    leaves = []
    for name in draw(st.lists(keys, unique_by=lambda key: wire.split_key(key)[0], max_size=5)):
        dtype = draw(st.sampled_from([*wire.ITEM_BYTES, wire.JSON_DTYPE]))
        trailing = tuple(draw(st.lists(st.integers(0, 3), max_size=3)))
        if dtype == wire.JSON_DTYPE:
            leaves.append(wire.Leaf(name, dtype, shape, b'["text"]'))
        else:
            leaves.append(leaf(name, dtype, (*shape, *trailing)))
    fields = header(
        shape=shape,
        frames=math.prod(shape),
        sequence=draw(st.integers(0, 2**53)),
        policy_version=(draw(st.integers(0, 2**40)), draw(st.integers(0, 2**40))),
        seed_epoch=draw(st.integers(0, 2**31)),
        episodes=draw(summaries),
    )
    return fields, leaves


@given(batches())
def test_what_is_encoded_is_decoded(batch):
    fields, leaves = batch
    frame = wire.decode(wire.encode(fields, leaves))
    assert replace(frame.header, buffers=()) == fields
    assert [(s.name, s.dtype, s.shape) for s in frame.header.buffers] == [
        (x.name, x.dtype, x.shape) for x in leaves
    ]
    assert [bytes(frame.buffer(spec)) for spec in frame.header.buffers] == [bytes(x.data) for x in leaves]
    assert all(spec.offset % wire.ALIGNMENT == 0 for spec in frame.header.buffers)


@given(batches())
def test_three_ways_give_the_same_bytes(batch):
    fields, leaves = batch
    whole = wire.encode(fields, leaves)
    assert b"".join(wire.gather(fields, leaves)) == whole
    frame = wire.decode(whole)
    prefix = wire.header_for(replace(fields, buffers=frame.header.buffers), frame.body)
    assert len(prefix) % wire.ALIGNMENT == 0
    assert prefix + bytes(frame.body) == whole


def test_a_body_in_place_is_not_copied():
    block = bytearray(wire.HEADER_ROOM + 256)
    body = memoryview(block)[wire.HEADER_ROOM :]
    body[:24] = bytes(range(24))
    specs = (
        wire.BufferSpec("a", "float32", (2, 3), 0, 24, 24),
        wire.BufferSpec("b", "uint8", (2, 3, 2), 64, 12, 12),
    )
    prefix = wire.header_for(header(buffers=specs), body)
    start = wire.HEADER_ROOM - len(prefix)
    block[start : wire.HEADER_ROOM] = prefix
    frame = wire.decode(memoryview(block)[start:])
    assert bytes(frame.buffer(frame.header.buffers[0])) == bytes(range(24))
    body[:4] = b"\xff" * 4
    assert bytes(frame.body[:4]) == b"\xff" * 4, "the frame's body is the block's memory"


@settings(max_examples=400)
@given(st.data())
def test_damage_is_a_frame_error_and_nothing_else(data):
    frame = bytearray(
        wire.encode(
            header(), [leaf(), leaf("next\x1freward", "float64", (2, 3, 1)), leaf("e", "int64", (2, 3, 0))]
        )
    )
    kind = data.draw(st.sampled_from(["flip", "cut", "grow", "noise"]))
    if kind == "flip":
        for _ in range(data.draw(st.integers(1, 4))):
            at = data.draw(st.integers(0, len(frame) - 1))
            frame[at] ^= data.draw(st.integers(1, 255))
        if bytes(frame) == wire.encode(
            header(), [leaf(), leaf("next\x1freward", "float64", (2, 3, 1)), leaf("e", "int64", (2, 3, 0))]
        ):
            return
    elif kind == "cut":
        del frame[data.draw(st.integers(0, len(frame) - 1)) :]
    elif kind == "grow":
        frame += data.draw(st.binary(min_size=1, max_size=200))
    else:
        frame = bytearray(data.draw(st.binary(max_size=300)))
    with pytest.raises(FrameError):
        wire.decode(frame)


def forged(change, change_text=lambda text: text) -> bytes:
    """A frame whose header was changed (as a document, then as text) and whose digest is right."""
    good = wire.encode(header(), [leaf(), leaf("b", "int64", (2, 3))])
    length = int.from_bytes(good[4:8], "little")
    document = json.loads(good[8 : 8 + length])
    body = good[wire.aligned(8 + length) :]
    change(document)
    document["digest"] = "0" * 16
    text = change_text(json.dumps(document, separators=(",", ":"))).encode()
    prefix = bytearray(wire.aligned(8 + len(text)))
    prefix[:8] = b"ROL1" + len(text).to_bytes(4, "little")
    prefix[8 : 8 + len(text)] = text
    prefix[19:35] = wire.prefix.digest_of(memoryview(prefix), [body])
    return bytes(prefix) + body


def put(*path_and_value):
    *path, last, value = path_and_value

    def change(document):
        for key in path:
            document = document[key]
        document[last] = value

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param(put("version", 2), "format version 2", id="another version"),
        pytest.param(put("version", True), "format version True", id="version true"),
        pytest.param(put("frames", 7), "not the product of shape", id="frames"),
        pytest.param(put("sequence", -1), "sequence", id="negative"),
        pytest.param(put("sequence", 2**64), "sequence", id="too large"),
        pytest.param(put("sequence", 1.5), "sequence", id="no integer"),
        pytest.param(put("worker", ["cpu", 1]), "worker", id="worker"),
        pytest.param(put("job", 3), "job", id="job"),
        pytest.param(put("policy_version", None), "policy_version", id="null"),
        pytest.param(put("episodes", []), "episodes", id="episodes"),
        pytest.param(put("episodes", "newest", [[1.0, 2]] * 257), "257 newest", id="too many episodes"),
        pytest.param(put("episodes", "newest", [["a", 2]]), "not a number", id="a return that is text"),
        pytest.param(put("buffers", {}), "buffers", id="buffers"),
        pytest.param(put("buffers", [[]] * 5000), "5000 buffers", id="too many buffers"),
        pytest.param(put("buffers", 0, 1, "float31"), "dtype 'float31'", id="dtype"),
        pytest.param(put("buffers", 0, 2, [2, 4]), "no float32", id="shape"),
        pytest.param(put("buffers", 0, 2, [2**40, 2**40]), "no float32", id="a huge shape"),
        pytest.param(put("buffers", 0, 2, [1] * 99), "99 dimensions", id="dimensions"),
        pytest.param(put("buffers", 0, 3, 32), "not aligned", id="alignment"),
        pytest.param(put("buffers", 0, 3, 2**60), "inside of a body", id="offset outside"),
        pytest.param(put("buffers", 1, 3, 0), "overlaps with", id="overlap"),
        pytest.param(put("buffers", 0, 4, 23), "without compression", id="lengths differ"),
        pytest.param(put("buffers", 0, 6, "gzip"), "compression 'gzip'", id="compression"),
        pytest.param(put("buffers", 1, 0, "observation"), "repeated name", id="one name twice"),
        pytest.param(put("buffers", 0, [1, 2]), "seven fields", id="a short buffer"),
        pytest.param(
            put("buffers", 0, 2, [3, 2]), "does not begin with the batch's", id="another batch shape"
        ),
        pytest.param(put("buffers", 1, 0, "observation\x1fb"), "is a leaf itself", id="a leaf below a leaf"),
        pytest.param(put("buffers", 1, 0, "a\x1f\x1fb"), "is empty", id="an empty part"),
        pytest.param(put("body", 5), "its header says 5", id="body size"),
        pytest.param(
            lambda d: [d.pop(k) for k in list(d) if k != "digest"],
            "format version",
            id="nothing but a digest",
        ),
    ],
)
def test_a_header_that_lies_is_named(change, message):
    with pytest.raises(FrameError, match=message):
        wire.decode(forged(change))


@pytest.mark.parametrize(
    ("text", "again"),
    [
        pytest.param('"frames":6', '"frames":6,"frames":6', id="at the top"),
        pytest.param('"count":0', '"count":0,"count":0', id="below"),
    ],
)
def test_a_key_that_stands_twice_is_refused(text, again):
    def change(written: str) -> str:
        assert text in written
        return written.replace(text, again)

    key = text.split(":")[0].strip('"')
    with pytest.raises(FrameError, match=f"the key '{key}' stands twice in one object"):
        wire.decode(forged(lambda document: None, change_text=change))


def test_lengths_that_unpack_to_too_much_are_refused():
    def bomb(document):
        document["buffers"][0][1:] = ["uint8", [2, 3, 2**31], 0, 24, 6 * 2**31, "zstd"]

    with pytest.raises(FrameError, match="at most"):
        wire.decode(forged(bomb))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        pytest.param(b"", "0 bytes", id="nothing"),
        pytest.param(b"PK\x03\x04" + bytes(100), "magic", id="a zip"),
        pytest.param(
            b"ROL1" + (2**31).to_bytes(4, "little") + bytes(100),
            "header of 2147483648 bytes",
            id="a huge header",
        ),
        pytest.param(
            b"ROL1" + (60000).to_bytes(4, "little") + bytes(100),
            "inside of its header",
            id="cut in the header",
        ),
        pytest.param(
            b"ROL1" + (60000).to_bytes(4, "little") + b"[" * 60100,
            "does not begin with its digest",
            id="brackets",
        ),
    ],
)
def test_other_bytes_are_named(data, message):
    with pytest.raises(FrameError, match=message):
        wire.decode(data)


def test_a_deep_header_is_an_error_and_no_recursion():
    text = b'{"digest":"' + b"0" * 16 + b'","a":' + b"[" * 60000
    with pytest.raises(FrameError, match="no JSON"):
        wire.decode(b"ROL1" + len(text).to_bytes(4, "little") + text + bytes(200))


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        pytest.param(wire.Leaf("a", "float32", (2, 3), bytes(23)), "no float32", id="wrong length"),
        pytest.param(wire.Leaf("a", "text", (2, 3), b"x"), "dtype 'text'", id="unknown dtype"),
        pytest.param(wire.Leaf("", "uint8", (2, 3), b"xxxxxx"), "empty or repeated", id="no name"),
    ],
)
def test_what_could_not_be_read_is_not_written(bad, message):
    with pytest.raises(FrameError, match=message):
        wire.encode(header(), [bad])


def test_a_long_header_first_loses_the_newest_episodes_then_is_an_error():
    episodes = EpisodeSummary.of([0.1 * n for n in range(256)], [10**9 + n for n in range(256)])
    leaves = [leaf(f"{n:04}" + "k" * 200, "uint8", (0, 3)) for n in range(270)]
    fields = header(shape=(0, 3), frames=0, episodes=episodes)
    found = wire.decode(wire.encode(fields, leaves)).header.episodes
    assert (found.count, found.newest) == (256, ())
    with pytest.raises(FrameError, match="fewer or shorter keys"):
        wire.encode(fields, [*leaves, *(leaf(f"x{n:04}" + "k" * 200, "uint8", (0, 3)) for n in range(100))])


def test_numbers_that_are_not_finite_travel_as_null():
    episodes = EpisodeSummary.of([float("inf"), 1.0], [3, 4])
    found = wire.decode(wire.encode(header(episodes=episodes), [])).header.episodes
    assert math.isnan(found.newest[0][0])
    assert found.newest[1] == (1.0, 4)


@given(st.integers(1, 9), st.integers(1, 4), st.integers(67_500, 80_000))
def test_a_split_batch_has_all_rows_once_and_fits(num_envs, num_steps, limit):
    shape = (num_envs, num_steps)
    rows = [[f"{e}-{t}" for t in range(num_steps)] for e in range(num_envs)]
    leaves = [
        leaf("a", "int64", (*shape, 25)),
        leaf("b", "uint8", shape),
        wire.Leaf("t", wire.JSON_DTYPE, shape, json.dumps(rows).encode()),
    ]
    whole = header(shape=shape, frames=num_envs * num_steps, episodes=EpisodeSummary.of([1.0], [2]))
    parts = wire.split(whole, leaves, max_bytes=limit)
    frames = [wire.decode(wire.encode(*part)) for part in parts]
    assert all(len(wire.encode(*part)) <= limit for part in parts)
    assert [f.header.sequence for f in frames] == list(range(7, 7 + len(parts)))
    assert sum(f.header.frames for f in frames) == whole.frames
    assert sum(f.header.episodes.count for f in frames) == 1
    for index in (0, 1):
        assert b"".join(bytes(f.buffer(f.header.buffers[index])) for f in frames) == leaves[index].data
    assert [row for f in frames for row in json.loads(bytes(f.buffer(f.header.buffers[2])))] == rows


def test_an_environment_above_the_limit_is_an_error_that_says_what_to_change():
    with pytest.raises(FrameError, match=r"stream\.maxFrameBytes"):
        wire.split(header(), [leaf("a", "int64", (2, 3, 10000))], max_bytes=100_000)


@pytest.mark.parametrize(
    "parts", [(), ("",), ("a\x1fb",), ("a", 3)], ids=["none", "empty", "separator", "no text"]
)
def test_keys_that_cannot_be_joined_are_refused(parts):
    with pytest.raises(ValueError, match="key"):
        wire.join_key(parts)


def test_a_layout_has_the_shapes_of_one_frame():
    frame = wire.decode(wire.encode(header(), [leaf("a", "float32", (2, 3, 4)), leaf("b", "bool", (2, 3))]))
    assert wire.layout_of(frame.header).leaves == {
        "a": {"dtype": "float32", "shape": [4]},
        "b": {"dtype": "bool", "shape": []},
    }


def test_the_format_is_what_the_documentation_shows():
    """Golden bytes: a change that breaks them is a new format version."""
    fields = wire.BatchHeader(
        job="0f1e2d3c",
        worker=WorkerId("cpu", 3, 1),
        sequence=7,
        shape=(2, 3),
        frames=6,
        policy_version=(4, 5),
        seed_epoch=1,
        episodes=EpisodeSummary.of([1.5], [12]),
    )
    leaves = [
        wire.Leaf("next\x1freward", "float32", (2, 3, 1), bytes(range(24))),
        wire.Leaf("done", "bool", (2, 3), bytes([0, 1, 0, 0, 0, 1])),
    ]
    frame = wire.encode(fields, leaves)
    text = (Path(__file__).parents[2] / "docs" / "wire-format.md").read_text(encoding="utf-8")
    documented = text.split("```json\n")[1].split("\n```")[0].replace("\n ", "")
    assert len(frame) == 518
    assert frame[:8] == b"ROL1" + (390).to_bytes(4, "little")
    assert frame[8:398].decode() == documented
    assert frame[398:448] == bytes(50)
    assert frame[448:] == bytes(range(24)) + bytes(40) + bytes([0, 1, 0, 0, 0, 1])
