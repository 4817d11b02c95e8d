"""Weights: whole or invisible, refused as a whole, kept while they are read, the same bits at the other end."""

from __future__ import annotations

import hashlib
import json
import struct
import threading

import pytest
import torch

from rollout_contract.errors import VersionConflict, WeightsError, WeightsRejected
from rollout_contract.messages import Layout
from rollout_stream import StreamLimits, WeightsReader, aio, codec, publishing, safetensors


def tiny(value: int = 0) -> bytes:
    return safetensors.build_header([("w", "uint8", (4,))]) + bytes([value]) * 4


def keys_of(rig, what):
    return [k for k in rig.redis.execute_command("KEYS", f"*{rig.job.name}*") if what in k]


class Tied(torch.nn.Module):
    """Tied weights, a buffer, and a dtype that NumPy does not know."""

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(7, 3)
        self.head = torch.nn.Linear(3, 7, bias=False)
        self.head.weight = self.embed.weight
        self.norm = torch.nn.BatchNorm1d(3)
        self.small = torch.nn.Parameter(torch.randn(5).bfloat16())


def test_a_module_arrives_bit_for_bit(rig):
    rig.open(None)
    stream = rig.stream()
    module = Tied()
    assert stream.weights.publish(module) == 1
    other = Tied()
    other.load_state_dict(stream.weights.get(1), strict=True)
    for name, tensor in module.state_dict().items():
        assert torch.equal(other.state_dict()[name], tensor)
        assert other.state_dict()[name].dtype == tensor.dtype
    assert stream.weights.latest().version == 1


@pytest.mark.parametrize("wrap", [
    lambda m: torch.compile(m, backend="eager"), torch.nn.DataParallel,
    lambda m: torch.nn.DataParallel(torch.compile(m, backend="eager")),
], ids=["compiled", "on several devices", "both"])  # fmt: skip
def test_what_is_wrapped_around_a_module_changes_no_name(wrap):
    module = Tied()
    assert codec.unwrapped(wrap(module)) is module
    assert codec.state_bytes(wrap(module)) == codec.state_bytes(module)
    assert codec.layout_of_state(wrap(module)) == codec.layout_of_state(module)


def test_a_state_that_holds_more_than_tensors_is_refused_with_its_names():
    class Noted(Tied):
        def get_extra_state(self):
            return {"epoch": 3}

    for ask in (codec.layout_of_state, codec.state_bytes):
        with pytest.raises(WeightsRejected, match="_extra_state: not a tensor but a dict"):
            ask(Noted())


@pytest.mark.parametrize(
    "tensor",
    [
        pytest.param(torch.tensor(3.0), id="scalar"),
        pytest.param(torch.empty(0, 5), id="empty"),
        pytest.param(torch.randn(4, 6).t(), id="not contiguous"),
        pytest.param(torch.tensor([True, False]), id="bool"),
        pytest.param(torch.tensor([2**63 - 1, -(2**63)]), id="int64"),
        pytest.param(torch.randn(3).to(torch.float8_e4m3fn), id="float8"),
        pytest.param(torch.randint(-128, 127, (3,), dtype=torch.int8), id="quantised int8"),
        pytest.param(torch.randn(3, dtype=torch.complex128), id="complex"),
        pytest.param(torch.randn(3, dtype=torch.complex64).conj(), id="a conjugated view"),
        pytest.param(torch.tensor([1, 2, 3], dtype=torch.uint16), id="uint16"),
    ],
)
def test_every_kind_of_tensor_survives(tensor):
    data = codec.state_bytes({"odd": torch.zeros(1, dtype=torch.uint8), "x": tensor})
    found = codec.state_of(data)["x"]
    assert (found.dtype, found.shape) == (tensor.dtype, tensor.shape)
    assert torch.equal(
        found.contiguous().reshape(-1).view(torch.uint8),
        tensor.resolve_conj().contiguous().reshape(-1).view(torch.uint8),
    )


@pytest.mark.probe("P-27")
def test_what_does_not_fit_is_refused_with_every_problem(rig):
    rig.open(None)
    state = {"a": torch.zeros(3), "b": torch.zeros(2, 2), "c": torch.zeros(1), "gone": torch.zeros(1)}
    rig.writer().declare_layout("weights", codec.layout_of_state(state))
    stream = rig.stream()
    wrong = {
        "a": torch.zeros(4),
        "b": torch.zeros(2, 2, dtype=torch.float64),
        "c": torch.zeros(1),
        "more": torch.zeros(1),
    }
    with pytest.raises(WeightsRejected) as caught:
        stream.weights.publish(wrong)
    assert list(caught.value.problems) == [
        "a: expected float32[3], found float32[4]",
        "b: expected float32[2, 2], found float64[2, 2]",
        "gone: missing; expected float32[1]",
        "more: not expected; found float32[1]",
    ]
    assert stream.weights.latest() is None
    assert keys_of(rig, b"upload") == []
    assert stream.weights.publish(state) == 1


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize(
    "dtype",
    [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.float8_e5m2],
    ids=lambda d: str(d).removeprefix("torch."),
)
def test_one_value_that_is_not_finite_is_found_in_every_dtype(value, dtype):
    tensor = torch.ones(1000).to(dtype)
    codec.check_finite({"w": tensor, "empty": torch.empty(0), "whole": torch.ones(3, dtype=torch.int32)})
    tensor[567] = value
    with pytest.raises(WeightsRejected, match="w: 1 of"):
        codec.check_finite({"w": tensor})


def test_values_that_are_not_finite_are_refused_unless_allowed(rig):
    rig.open(None)
    weights = rig.stream().weights
    state = {
        "fine": torch.ones(3),
        "bad": torch.tensor([1.0, float("nan"), float("-inf")]),
        "int": torch.ones(2).long(),
    }
    for given in (state, codec.state_bytes(state, allow_nonfinite=True)):
        with pytest.raises(WeightsRejected, match="bad: 2 of 3 values are not finite"):
            weights.publish(given)
    assert weights.publish(state, allow_nonfinite=True) == 1
    with pytest.raises(WeightsRejected, match="extra: not a tensor but a dict"):
        weights.publish({"extra": {}})


@pytest.mark.probe("P-53")
def test_two_publishers_and_one_repeat(rig):
    rig.open(None)
    weights = rig.stream().weights
    for value in range(4):
        weights.publish(tiny(value))
    assert weights.publish(tiny(9), expected_version=4, idempotency_key="mine") == 5
    with pytest.raises(VersionConflict, match="newest policy version is 5, not 4"):
        weights.publish(tiny(8), expected_version=4, idempotency_key="theirs")
    assert weights.publish(tiny(9), expected_version=4, idempotency_key="mine") == 5
    assert [r.version for r in weights.versions()] == [3, 4, 5]
    assert keys_of(rig, b"upload") == []


def test_publishers_in_threads_get_versions_of_their_own(rig):
    rig.open(None, limits=StreamLimits(keep_versions=50))
    stream = rig.stream()
    versions: list[int] = []

    def publish():
        for _ in range(5):
            versions.append(stream.weights.publish(tiny()))

    threads = [threading.Thread(target=publish) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert sorted(versions) == list(range(1, 21))


def test_old_versions_go_but_not_while_they_are_read(rig):
    rig.open(None, limits=StreamLimits(keep_versions=2))
    stream = rig.stream()
    stream.weights.publish(tiny(1))
    lease = stream.weights._calls.lease("slow", 1, 30.0)
    stream.session.run(lease)
    for value in range(2, 7):
        stream.weights.publish(tiny(value))
    assert [r.version for r in stream.weights.versions()] == [1, 5, 6]
    assert stream.weights.fetch(1).data == tiny(1)
    stream.session.run(stream.weights._calls.lease("slow", None, 0))
    stream.weights.publish(tiny(7))
    assert [r.version for r in stream.weights.versions()] == [6, 7]
    assert len(keys_of(rig, b"weights:")) == 2
    with pytest.raises(WeightsError, match="version 1 is not kept"):
        stream.weights.fetch(1)


def test_a_reader_that_died_holds_a_version_for_a_bounded_time(rig, tools):
    rig.open(None, limits=StreamLimits(keep_versions=2))
    weights = rig.stream().weights
    weights.publish(tiny(1))
    weights.session.run(weights._calls.lease("dead", 1, 0.01))
    tools.wait_until(lambda: weights.publish(tiny()) and weights.versions()[0].version > 1)


@pytest.mark.probe("P-31")
def test_chunks_that_are_missing_or_changed_are_never_loaded(rig):
    rig.open(None)
    weights = rig.stream().weights
    size = publishing.CHUNK_BYTES + 1000
    data = safetensors.build_header([("w", "uint8", (size,))]) + bytes(size)
    weights.publish(data)
    assert weights.fetch().data == data
    assert weights.latest().chunks == 2
    chunk = rig.keys.weights_chunk(1, 1)
    rig.redis.execute_command("SETRANGE", chunk, 5, "x")
    with pytest.raises(WeightsRejected, match="digest"):
        weights.fetch()
    rig.redis.execute_command("DEL", chunk)
    with pytest.raises(WeightsError, match="not kept"):
        weights.fetch()
    reader = WeightsReader(weights.session, rig.job)
    with pytest.raises(WeightsError, match="version 9"):
        reader.fetch(9)


def test_more_bytes_than_allowed_are_refused(rig):
    rig.open(None, limits=StreamLimits(max_weights_bytes=100))
    with pytest.raises(WeightsRejected, match="more than 100 bytes"):
        rig.stream().weights.publish(safetensors.build_header([("w", "uint8", (200,))]) + bytes(200))


@pytest.mark.probe("P-51")
@pytest.mark.parametrize(
    ("data", "message"),
    [
        pytest.param(b"\x80\x04\x95" + bytes(50), "pickle", id="pickle"),
        pytest.param(b"PK\x03\x04" + bytes(50), "pickle or a zip", id="zip"),
        pytest.param(struct.pack("<Q", 5) + b"[1,2]", "JSON list", id="a list"),
        pytest.param(struct.pack("<Q", 4) + b"nope", "no JSON", id="no json"),
        pytest.param(struct.pack("<Q", 2**40), "header would take", id="a huge header"),
        pytest.param(tiny()[:-1], "cut off", id="cut"),
        pytest.param(tiny() + b"x", "header says", id="too long"),
        pytest.param(b"", "cut off", id="nothing"),
    ],
)
def test_other_bytes_than_safetensors_are_refused(rig, data, message):
    rig.open(None)
    weights = rig.stream().weights
    with pytest.raises(WeightsRejected, match=message):
        weights.publish(data, allow_nonfinite=True)
    assert weights.latest() is None
    assert keys_of(rig, b"upload") == []


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        pytest.param(
            {"w": {"dtype": "F99", "shape": [1], "data_offsets": [0, 4]}}, "dtype 'F99'", id="dtype"
        ),
        pytest.param(
            {"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}, "no float32", id="length"
        ),
        pytest.param(
            {"w": {"dtype": "F32", "shape": "x", "data_offsets": [0, 4]}}, "no list of sizes", id="shape"
        ),
        pytest.param(
            {"w": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}}, "gaps and overlaps", id="gap"
        ),
        pytest.param(
            {"w": {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}},
            r"no \[start, end\]",
            id="backwards",
        ),
        pytest.param({"w": 3}, "no object", id="number"),
        pytest.param({"__metadata__": ["pt"]}, "is to map text to text", id="metadata that is no mapping"),
        pytest.param({"__metadata__": None}, "is to map text to text", id="metadata that is null"),
        pytest.param(
            {"__metadata__": {"format": "pt", "epoch": 3}}, "'epoch' is to be text, and is 3", id="metadata"
        ),
    ],
)
def test_a_header_that_lies_is_refused(fields, message):
    with pytest.raises(WeightsRejected, match=message):
        parsed(json.dumps(fields))


def parsed(text: str) -> safetensors.WeightsHeader:
    return safetensors.parse_header(struct.pack("<Q", len(text)) + text.encode())


@pytest.mark.parametrize(
    ("text", "key"),
    [
        pytest.param('{"w": ENTRY, "w": ENTRY}', "w", id="a tensor"),
        pytest.param('{"w": {"dtype": "F32", "dtype": "U8"}}', "dtype", id="a tensor's field"),
        pytest.param('{"__metadata__": {"a": "1", "a": "2"}}', "a", id="metadata"),
    ],
)
def test_a_key_that_stands_twice_is_refused(text, key):
    entry = '{"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}'
    with pytest.raises(WeightsRejected, match=f"the key '{key}' stands twice in one object"):
        parsed(text.replace("ENTRY", entry))


def test_notes_are_no_tensors():
    entry = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
    assert list(parsed(json.dumps({"__metadata__": {"format": "pt"}, "w": entry})).entries) == ["w"]


# --- the asyncio twin


@pytest.fixture
async def session(rig):
    rig.open(None)
    async with aio.AsyncSession.connect(rig.server.url) as opened:
        yield opened


async def test_an_upload_in_small_pieces_is_the_same_version(rig, session):
    size = 2 * publishing.CHUNK_BYTES + 77
    data = safetensors.build_header([("w", "uint8", (size,))]) + bytes(n % 251 for n in range(1000)) * (
        size // 1000 + 1
    )
    data = data[: len(safetensors.build_header([("w", "uint8", (size,))])) + size]
    weights = aio.Weights(session, rig.job)
    async with weights.upload() as upload:
        for start in range(0, len(data), 700_001):
            await upload.write(data[start : start + 700_001])
        assert await weights.latest() is None, "nothing is visible before the end"
        record = await upload.publish(expected=0, publisher="gateway")
    assert (record.version, record.size, record.chunks, record.publisher) == (1, len(data), 3, "gateway")
    assert record.digest == hashlib.sha256(data).hexdigest() == upload.digest
    assert b"".join([part async for part in weights.read(record)]) == data
    assert (
        b"".join([part async for part in weights.read(record, 8_388_600, 8_388_700)])
        == data[8_388_600:8_388_700]
    )
    assert rig.stream().weights.fetch(1).data == data


async def test_bytes_one_by_one_are_understood(rig, session):
    async with aio.Weights(session, rig.job).upload() as upload:
        for byte in tiny(5):
            await upload.write(bytes([byte]))
        assert (await upload.publish()).version == 1


@pytest.mark.probe("P-31")
async def test_an_upload_that_is_cut_off_leaves_nothing(rig, session):
    size = 3 * publishing.CHUNK_BYTES
    head = safetensors.build_header([("w", "uint8", (size,))])
    upload = aio.Weights(session, rig.job).upload()
    await upload.write(head + bytes(2 * publishing.CHUNK_BYTES))
    with pytest.raises(WeightsRejected, match="cut off"):
        await upload.publish()
    assert len(keys_of(rig, b"upload")) == 2
    await upload.discard()
    await upload.discard()
    assert keys_of(rig, b"upload") == keys_of(rig, b"weights:") == []


async def test_a_layout_that_does_not_fit_is_refused_with_the_first_bytes(rig, session):
    rig.writer().declare_layout("weights", Layout({"w": {"dtype": "uint8", "shape": [5]}}))
    upload = aio.Weights(session, rig.job).upload()
    with pytest.raises(WeightsRejected, match=r"w: expected uint8\[5\], found uint8\[4\]"):
        await upload.write(tiny())


async def test_conflicts_and_repeats_over_the_twin(rig, session):
    weights = aio.Weights(session, rig.job)
    for key, expected, version in (("a", 0, 1), ("b", 1, 2), ("b", 1, 2)):
        async with weights.upload() as upload:
            await upload.write(tiny())
            assert (await upload.publish(expected=expected, idempotency_key=key)).version == version
    async with weights.upload() as upload:
        await upload.write(tiny())
        with pytest.raises(VersionConflict):
            await upload.publish(expected=1, idempotency_key="c")
    assert keys_of(rig, b"upload") == []
