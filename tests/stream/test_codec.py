"""TensorDicts through the stream: values, dtypes, shapes, order and nesting come back as they were."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import NonTensorData, NonTensorStack, TensorDict

from rollout_contract import wire
from rollout_contract.errors import FrameError
from rollout_contract.names import WorkerId
from rollout_stream import codec
from rollout_stream.compression import compressed


def through(data: TensorDict, compression: str = "none") -> TensorDict:
    leaves = [compressed(leaf, compression) for leaf in codec.leaves_of(data)]
    header = wire.BatchHeader(
        job="u",
        worker=WorkerId("cpu", 0, 0),
        sequence=1,
        shape=tuple(data.batch_size),
        frames=math.prod(data.batch_size),
    )
    return codec.data_of(wire.decode(wire.encode(header, leaves)))


@pytest.mark.probe("P-06")
def test_values_types_and_structure_survive():
    data = TensorDict(
        {
            "observation": {
                "cam": torch.full((2, 3, 2, 2), 255, dtype=torch.uint8),
                "pos": {
                    "x": torch.full((2, 3), 2.0**53 - 1, dtype=torch.float64),
                    "n": torch.full((2, 3), 2**53 + 1, dtype=torch.int64),
                },
                "on": torch.ones(2, 3, 1, dtype=torch.bool),
            },
            "action": torch.zeros(2, 3, 0),
            ("next", "reward"): torch.full((2, 3, 1), 0.1, dtype=torch.float64),
        },
        [2, 3],
    )
    found = through(data)
    assert list(found.keys(include_nested=True)) == list(data.keys(include_nested=True))
    assert found["observation", "pos", "n"][0, 0].item() == 9007199254740993
    assert found["observation", "pos", "x"][1, 2].item() == 9007199254740991.0
    assert found["next", "reward"][0, 0].item() == 0.1
    for key in data.keys(include_nested=True, leaves_only=True):
        assert found[key].dtype == data[key].dtype
        assert torch.equal(found[key], data[key])


@given(
    dtype=st.sampled_from([d for n, d in codec.DTYPES.items() if n != "complex32"]),
    trailing=st.lists(st.integers(0, 3), max_size=3),
    transpose=st.booleans(),
    compression=st.sampled_from(wire.COMPRESSIONS),
)
def test_every_dtype_and_shape_survives_bit_for_bit(dtype, trailing, transpose, compression):
    shape = (3, 2, *trailing)
    size = math.prod(shape) * dtype.itemsize
    raw = torch.tensor([n % 2 if dtype == torch.bool else n % 120 for n in range(size)], dtype=torch.uint8)
    tensor = raw.view(dtype).view(shape) if size else torch.empty(shape, dtype=dtype)
    data = TensorDict({"x": tensor.transpose(0, 1) if transpose else tensor}, [2, 3] if transpose else [3, 2])
    found = through(data, compression)["x"]
    assert (found.dtype, found.shape) == (data["x"].dtype, data["x"].shape)
    if size:
        assert torch.equal(found.contiguous().view(torch.uint8), data["x"].contiguous().view(torch.uint8))


@pytest.mark.probe("P-07")
def test_texts_follow_the_rules_for_tensors():
    texts = [["w0-s0", "w0-s1"], ["w1-s0", "w1-s1"], ["same", "same"]]
    data = TensorDict({"x": torch.zeros(3, 2)}, [3, 2])
    data["text"] = NonTensorStack.from_list(texts)
    found = through(data)
    assert found.get("text").tolist() == texts
    assert [found[i, j]["text"] for i in range(3) for j in range(2)] == [t for row in texts for t in row]
    same = TensorDict({"text": NonTensorData("hello", batch_size=[3, 2])}, [3, 2])
    assert through(same).get("text").tolist() == [["hello"] * 2] * 3


@pytest.mark.parametrize("value", [object(), {1, 2}, float("nan")], ids=["an object", "a set", "NaN"])
def test_what_is_neither_tensor_nor_json_is_refused_with_its_key(value):
    data = TensorDict({"next": TensorDict({"info": NonTensorData(value, batch_size=[2, 3])}, [2, 3])}, [2, 3])
    with pytest.raises(FrameError, match=r"'next\.info'"):
        codec.leaves_of(data)


def test_leaves_are_mapped_and_not_copied():
    data = TensorDict({"a": torch.randn(4, 5, 3), "b": torch.randint(0, 9, (4, 5))}, [4, 5])
    assert [leaf.data.obj.ctypes.data for leaf in codec.leaves_of(data)] == [
        data["a"].data_ptr(),
        data["b"].data_ptr(),
    ]
    header = wire.BatchHeader(job="u", worker=WorkerId("c", 0, 0), sequence=1, shape=(4, 5), frames=20)
    frame = wire.decode(bytearray(wire.encode(header, codec.leaves_of(data))))
    found = codec.data_of(frame)
    first = frame.header.buffers[1].offset - frame.header.buffers[0].offset
    assert found["b"].data_ptr() - found["a"].data_ptr() == first
    frame.body[0:4] = b"\0\0\0\0"
    assert found["a"][0, 0, 0].item() == 0.0


@pytest.mark.parametrize("kind", ["zstd", "lz4"])
def test_compression_is_used_where_it_pays(kind):
    frames = wire.Leaf("pixels", "uint8", (2, 500_000), bytes(1_000_000))
    noise = wire.Leaf(
        "noise", "uint8", (2, 700_000), bytes(torch.randint(0, 256, (1_400_000,), dtype=torch.uint8).numpy())
    )
    small = wire.Leaf("small", "uint8", (2, 3), bytes(6))
    assert compressed(frames, kind).length < 100_000
    assert compressed(noise, kind) is noise
    assert compressed(small, kind) is small
    assert compressed(frames, "none") is frames


@pytest.mark.parametrize("kind", ["zstd", "lz4"])
@pytest.mark.parametrize("claim", [1000, 2000, 10**9], ids=["right", "more", "a billion"])
def test_packed_bytes_that_lie_about_their_size_are_frame_errors(kind, claim):
    packed = compressed(wire.Leaf("x", "uint8", (1, 1000), bytes(1000)), kind)
    leaf = wire.Leaf("x", "uint8", (1, 1, claim), packed.data, kind, claim)
    header = wire.BatchHeader(job="u", worker=WorkerId("c", 0, 0), sequence=1, shape=(1, 1), frames=1)
    frame = wire.decode(wire.encode(header, [leaf]))
    if claim == 1000:
        assert codec.data_of(frame)["x"].sum() == 0
    else:
        with pytest.raises(FrameError, match="x"):
            codec.data_of(frame)


@given(st.binary(max_size=300), st.sampled_from(["zstd", "lz4"]))
def test_noise_does_not_unpack(data, kind):
    leaf = wire.Leaf("x", "uint8", (1, 1, 5000), data, kind, 5000)
    header = wire.BatchHeader(job="u", worker=WorkerId("c", 0, 0), sequence=1, shape=(1, 1), frames=1)
    with pytest.raises(FrameError):
        codec.data_of(wire.decode(wire.encode(header, [leaf])))
