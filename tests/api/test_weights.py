"""Weights over the interface: what is taken, what is refused as a whole, races and repeats, and what comes back."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import io
import json
import pickle
import struct
import tracemalloc
import zipfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from rollout_contract.errors import WeightsRejected
from rollout_contract.spec import RolloutJob
from rollout_stream.aio import AsyncSession, Control, Weights
from rollout_stream.safetensors import parse_header


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


async def stored_keys(control: Control) -> list[bytes]:
    """Keys of chunks: of versions and of uploads."""
    pattern = control._keys.prefix.replace("{", "[{]").replace("}", "[}]")
    return sorted(await control.session.client.execute_command("KEYS", f"{pattern}:*:*"))


async def newest(client: httpx2.AsyncClient, path: str) -> int:
    return int((await client.get(path + "/weights")).json()["latestVersion"])


async def test_what_is_published_comes_back(
    client: httpx2.AsyncClient, path: str, declared: Control, make_weights: Any
) -> None:
    assert (await client.get(path + "/weights")).json() == {
        "latestVersion": 0,
        "initialWorkers": 0,
        "items": [],
    }
    assert (await client.get(path + "/weights/latest")).status_code == 404
    for version, fill in ((1, 7), (2, 8)):
        data = make_weights(fill=fill)
        answer = await client.put(path + "/weights", content=data)
        assert answer.status_code == 201, answer.text
        assert answer.json() == {"policyVersion": version, "sizeBytes": len(data), "digest": sha256(data)}
        assert answer.headers["location"] == f"{path}/weights/{version}"
        for name in (str(version), "latest"):
            fetched = await client.get(f"{path}/weights/{name}")
            assert fetched.content == data
            assert fetched.headers["content-type"] == "application/vnd.safetensors"
            assert fetched.headers["x-policy-version"] == str(version)
            assert fetched.headers["content-length"] == str(len(data))
            assert fetched.headers["etag"] == f'"{sha256(data)}"'
    listed = (await client.get(path + "/weights")).json()
    assert [item["policyVersion"] for item in listed["items"]] == [2, 1]
    assert listed["items"][0]["publisher"] == "gateway"
    assert listed["items"][0]["publishedAt"].endswith("Z")


async def test_workers_are_counted_per_version(
    client: httpx2.AsyncClient, path: str, declared: Control, make_weights: Any, send_beat: Any
) -> None:
    await client.put(path + "/weights", content=make_weights())
    await send_beat(declared, index=0, policy_version=1)
    await send_beat(declared, index=1, policy_version=0)
    await send_beat(declared, index=2, policy_version=1)
    await send_beat(declared, index=3, policy_version=1, state="Finished")
    listed = (await client.get(path + "/weights")).json()
    assert (listed["initialWorkers"], listed["items"][0]["workers"]) == (1, 2)


@pytest.mark.parametrize(
    "content_type",
    [None, "application/octet-stream", "application/x-safetensors", "application/vnd.safetensors"],
)
async def test_content_types_that_are_taken(
    client: httpx2.AsyncClient, path: str, declared: Control, make_weights: Any, content_type: str | None
) -> None:
    headers = {"content-type": content_type} if content_type else {}
    assert (await client.put(path + "/weights", content=make_weights(), headers=headers)).status_code == 201


class Code:
    """Runs when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return (open, (str(self.marker), "w"))


@pytest.mark.probe("P-51")
@pytest.mark.parametrize(
    "content_type", ["application/octet-stream", "application/vnd.safetensors", "application/x-pickle"]
)
@pytest.mark.parametrize("kind", ["pickle", "zip", "in the metadata"])
async def test_weights_that_are_code(
    client: httpx2.AsyncClient,
    path: str,
    declared: Control,
    make_weights: Any,
    tmp_path: Path,
    kind: str,
    content_type: str,
) -> None:
    marker = tmp_path / "marker"
    data = pickle.dumps(Code(marker))
    if kind == "zip":
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w") as file:
            file.writestr("archive/data.pkl", data)
            file.writestr("archive/version", "3")
        data = packed.getvalue()
    elif kind == "in the metadata":
        data = struct.pack("<Q", len(data)) + data
    before = await stored_keys(declared)
    answer = await client.put(path + "/weights", content=data, headers={"content-type": content_type})
    assert answer.status_code == (415 if content_type == "application/x-pickle" else 422)
    assert answer.json()["acceptedFormat"] == "safetensors"
    assert "safetensors" in answer.json()["detail"]
    assert not marker.exists()
    assert await stored_keys(declared) == before
    assert await newest(client, path) == 0


@pytest.mark.probe("P-27")
async def test_everything_that_does_not_fit_is_listed(
    client: httpx2.AsyncClient, path: str, declared: Control, make_weights: Any
) -> None:
    faults: dict[str, Any] = {
        "net.0.weight": ("F32", [4, 3]),  # another shape
        "count": ("F64", []),  # another dtype
        "extra": ("F32", [1]),  # too many
    }  # and net.0.bias is missing
    answer = await client.put(path + "/weights", content=make_weights(tensors=faults))
    assert answer.status_code == 422
    problem = answer.json()
    assert problem["type"] == "urn:rolloutjob:problem:weights-invalid"
    found = {fault["path"]: fault["message"] for fault in problem["errors"]}
    assert found == {
        "net.0.weight": "expected float32[4, 2], found float32[4, 3]",
        "net.0.bias": "missing; expected float32[2]",
        "count": "expected int64[], found float64[]",
        "extra": "not expected; found float32[1]",
    }
    assert await newest(client, path) == 0
    good = {"net.0.weight": ("F32", [4, 2]), "net.0.bias": ("F32", [2]), "count": ("I64", [])}
    alone: list[dict[str, Any]] = [
        good | {"net.0.weight": ("F32", [4, 3])},
        good | {"count": ("F64", [])},
        good | {"extra": ("F32", [1])},
        {name: tensor for name, tensor in good.items() if name != "net.0.bias"},
    ]
    for tensors in alone:
        answer = await client.put(path + "/weights", content=make_weights(tensors=tensors))
        assert answer.status_code == 422
        assert len(answer.json()["errors"]) == 1
    assert await newest(client, path) == 0


async def test_before_the_first_worker_only_the_structure_is_checked(
    client: httpx2.AsyncClient, path: str, control: Control, make_weights: Any
) -> None:
    answer = await client.put(path + "/weights", content=make_weights(tensors={"anything": ("BF16", [3])}))
    assert answer.status_code == 201


def broken(header: object, body: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"\x00" * 7, id="seven bytes"),
        pytest.param(b"\xff" * 64, id="an absurd length"),
        pytest.param(broken(b"{}")[:-1], id="cut in the header"),
        pytest.param(broken(b"[]"), id="a list"),
        pytest.param(broken(b"{" * 5000), id="deep"),
        pytest.param(broken(b"\xff\xfe"), id="no UTF-8"),
        pytest.param(
            broken({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}, b"\0" * 7), id="too short"
        ),
        pytest.param(
            broken({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}, b"\0" * 9), id="too long"
        ),
        pytest.param(
            broken({"a": {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]}}, b"\0" * 12), id="a gap"
        ),
        pytest.param(
            broken({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}, b"\0" * 4),
            id="another size",
        ),
        pytest.param(
            broken({"a": {"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]}}, b"\0" * 8), id="negative"
        ),
        pytest.param(
            broken({"a": {"dtype": "F32", "shape": [True], "data_offsets": [0, 4]}}, b"\0" * 4),
            id="a truth value",
        ),
        pytest.param(
            broken({"a": {"dtype": ["F32"], "shape": [1], "data_offsets": [0, 4]}}, b"\0" * 4),
            id="a list as dtype",
        ),
        pytest.param(
            broken({"a": {"dtype": "Q8", "shape": [1], "data_offsets": [0, 1]}}, b"\0"), id="an unknown dtype"
        ),
        pytest.param(
            broken({"a": {"dtype": "F32", "shape": [2**40] * 32, "data_offsets": [0, 4]}}, b"\0" * 4),
            id="huge",
        ),
        pytest.param(broken({"a": 3}), id="no entry"),
        pytest.param(broken({"\ud800": 3}), id="a name that is no text"),
        pytest.param(
            broken(
                {
                    "a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
                    "b": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
                },
                b"\0" * 4,
            ),
            id="an overlap",
        ),
    ],
)
async def test_what_is_no_safetensors_file_is_refused(
    client: httpx2.AsyncClient, path: str, control: Control, data: bytes
) -> None:
    answer = await client.put(path + "/weights", content=data)
    assert answer.status_code == 422, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert await stored_keys(control) == []
    assert await newest(client, path) == 0


def content_digest(data: bytes) -> str:
    return f"sha-256=:{base64.b64encode(hashlib.sha256(data).digest()).decode()}:"


@pytest.mark.parametrize("piece", [b"[],", b"{},", b'"",', b"1,"])
def test_a_header_takes_no_more_memory_than_it_has_bytes(piece: bytes) -> None:
    """A few times as much at most, whatever it is full of: the gateway has half a gigabyte for everybody."""
    size = 3 * 2**20
    data = broken(b'{"a":[' + piece * (size // len(piece)) + b"0]}")
    tracemalloc.start()
    try:
        with pytest.raises(WeightsRejected):
            parse_header(data)
        assert tracemalloc.get_traced_memory()[1] < 8 * size
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("header", ["content-digest", "x-checksum-sha256"])
async def test_a_digest_is_checked(
    client: httpx2.AsyncClient, path: str, declared: Control, make_weights: Any, header: str
) -> None:
    good, other = make_weights(fill=1), make_weights(fill=2)
    value = content_digest if header == "content-digest" else sha256
    answer = await client.put(path + "/weights", content=good, headers={header: value(other)})
    assert answer.status_code == 422
    problem = answer.json()
    assert problem["type"] == "urn:rolloutjob:problem:digest-mismatch"
    assert (problem["expected"], problem["found"]) == (sha256(other), sha256(good))
    assert await stored_keys(declared) == []
    answer = await client.put(path + "/weights", content=good, headers={header: value(good)})
    assert answer.status_code == 201


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"content-digest": "sha-256=:AAAA:"}, 400),
        ({"content-digest": "sha-512=:AAAA:"}, 400),
        ({"content-digest": "md5"}, 400),
        ({"x-checksum-sha256": "0123"}, 400),
        ({"x-checksum-sha256": "0" * 64, "content-digest": "sha-256=:" + "A" * 43 + "E=:"}, 400),
        ({"if-match": "newest"}, 400),
        ({"if-match": '"1", "2"'}, 400),
        ({"if-match": 'W/"1"'}, 400),
        ({"idempotency-key": "a b"}, 422),
        ({"idempotency-key": ""}, 422),
        ({"idempotency-key": "x" * 129}, 422),
        ({"content-encoding": "gzip"}, 415),
        ({"content-type": "multipart/form-data; boundary=x"}, 415),
        ({"content-type": "application/json"}, 415),
    ],
)
async def test_headers_that_cannot_be_meant(
    client: httpx2.AsyncClient,
    path: str,
    declared: Control,
    make_weights: Any,
    headers: dict[str, str],
    status: int,
) -> None:
    answer = await client.put(path + "/weights", content=make_weights(), headers=headers)
    assert answer.status_code == status, answer.text
    assert await newest(client, path) == 0


@pytest.mark.probe("P-53")
@pytest.mark.parametrize(
    "headers",
    [
        [("if-match", '"0"'), ("if-match", '"7"')],
        [("if-match", '"7"'), ("if-match", '"0"')],
        [("idempotency-key", "a"), ("idempotency-key", "b")],
        [("x-checksum-sha256", "0" * 64), ("x-checksum-sha256", "1" * 64)],
        [("content-type", "application/octet-stream"), ("content-type", "application/x-pickle")],
        [("content-encoding", "identity"), ("content-encoding", "gzip")],
    ],
    ids=lambda headers: headers[0][0],
)
async def test_of_two_headers_none_is_left_out_in_silence(
    client: httpx2.AsyncClient,
    path: str,
    declared: Control,
    make_weights: Any,
    headers: list[tuple[str, str]],
) -> None:
    answer = await client.put(path + "/weights", content=make_weights(), headers=headers)
    assert answer.status_code == 400, answer.text
    assert f"The header {headers[0][0]} stands more than once" in answer.json()["detail"]
    assert await newest(client, path) == 0


async def test_curls_default_type_is_no_type(
    client: httpx2.AsyncClient, path: str, declared: Control, make_weights: Any
) -> None:
    headers = {"content-type": "application/x-www-form-urlencoded"}
    answer = await client.put(path + "/weights", content=make_weights(), headers=headers)
    assert answer.status_code == 201, answer.text
    refused = await client.put(path + "/weights", content=b"token=x&y=z", headers=headers)
    assert refused.status_code in (415, 422), refused.text


@pytest.mark.probe("P-53")
async def test_two_uploads_on_the_same_version(
    client: httpx2.AsyncClient, path: str, declared: Control, make_weights: Any
) -> None:
    for fill in range(4):
        await client.put(path + "/weights", content=make_weights(fill=fill))
    files = [make_weights(fill=11), make_weights(fill=12)]
    calls = [
        client.put(
            path + "/weights", content=data, headers={"if-match": '"4"', "idempotency-key": f"key-{i}"}
        )
        for i, data in enumerate(files)
    ]
    answers = await asyncio.gather(*calls)
    assert sorted(answer.status_code for answer in answers) == [201, 412]
    winner = 0 if answers[0].status_code == 201 else 1
    refused = answers[1 - winner].json()
    assert refused["currentVersion"] == 5
    again = await client.put(
        path + "/weights",
        content=files[winner],
        headers={"if-match": '"4"', "idempotency-key": f"key-{winner}"},
    )
    assert (again.status_code, again.json()["policyVersion"]) == (201, 5)
    assert await newest(client, path) == 5
    assert (await client.get(path + "/weights/5")).content == files[winner]
    keys = await stored_keys(declared)
    assert not [key for key in keys if b":upload:" in key]


async def test_a_key_belongs_to_its_bytes(
    client: httpx2.AsyncClient, path: str, declared: Control, make_weights: Any
) -> None:
    headers = {"idempotency-key": "one"}
    assert (
        await client.put(path + "/weights", content=make_weights(fill=1), headers=headers)
    ).status_code == 201
    answer = await client.put(path + "/weights", content=make_weights(fill=2), headers=headers)
    assert answer.status_code == 422
    assert answer.json()["type"] == "urn:rolloutjob:problem:idempotency-key-reused"
    assert await newest(client, path) == 1


async def test_the_same_key_at_once_makes_one_version(
    client: httpx2.AsyncClient, path: str, declared: Control, make_weights: Any
) -> None:
    calls = [
        client.put(path + "/weights", content=make_weights(), headers={"idempotency-key": "one"})
        for _ in range(3)
    ]
    answers = await asyncio.gather(*calls)
    assert [(answer.status_code, answer.json()["policyVersion"]) for answer in answers] == [(201, 1)] * 3


class TestSizes:
    """`weights.maxBytes` is a bound on bytes that come, however they come."""

    @pytest.fixture
    def manifest(self, make_manifest: Any) -> Any:
        return make_manifest(weights={"maxBytes": "4Ki"})

    async def test_a_length_over_the_limit_is_refused_before_the_body(
        self, client: httpx2.AsyncClient, path: str, control: Control
    ) -> None:
        async def never() -> AsyncIterator[bytes]:
            raise AssertionError("the body was read")
            yield b""

        answer = await client.put(path + "/weights", content=never(), headers={"content-length": "4097"})
        assert answer.status_code == 413
        assert answer.json()["maxBytes"] == 4096

    async def test_chunked_bodies_are_counted(
        self, client: httpx2.AsyncClient, path: str, control: Control, make_weights: Any
    ) -> None:
        async def much() -> AsyncIterator[bytes]:
            yield make_weights(tensors={"a": ("U8", [2**20])})[:4096]
            yield b"\0"
            raise AssertionError("the body was read further")

        answer = await client.put(path + "/weights", content=much())
        assert answer.status_code == 413
        assert await stored_keys(control) == []


class TestStrict:
    """With `Strict` and no bound on staleness nothing can be published."""

    @pytest.fixture
    def manifest(self, make_manifest: Any) -> Any:
        return make_manifest(determinism="Strict", seed=7)

    async def test_publishing_is_refused(
        self, client: httpx2.AsyncClient, path: str, control: Control, make_weights: Any
    ) -> None:
        answer = await client.put(path + "/weights", content=make_weights())
        assert answer.status_code == 409
        assert answer.json()["type"] == "urn:rolloutjob:problem:not-possible"

    async def test_the_seed_stays(self, client: httpx2.AsyncClient, path: str, control: Control) -> None:
        answer = await client.put(path + "/seed", json={"seed": 8})
        assert answer.status_code == 409
        assert (await client.get(path + "/seed")).json() == {"seed": 7, "epoch": 0}


class TestStrictWithStaleness:
    """With `Strict` and a bound, publishing is part of the game."""

    @pytest.fixture
    def manifest(self, make_manifest: Any) -> Any:
        return make_manifest(determinism="Strict", seed=7, weights={"maxStaleness": 0})

    async def test_publishing_is_allowed(
        self, client: httpx2.AsyncClient, path: str, declared: Control, make_weights: Any
    ) -> None:
        assert (await client.put(path + "/weights", content=make_weights())).status_code == 201


@pytest.mark.parametrize(
    ("range_", "status", "piece"),
    [
        ("bytes=0-0", 206, slice(0, 1)),
        ("bytes=8-15", 206, slice(8, 16)),
        ("bytes=10-", 206, slice(10, None)),
        ("bytes=-5", 206, slice(-5, None)),
        ("bytes=0-999999", 206, slice(0, None)),
        ("bytes=-999999", 206, slice(0, None)),
        ("bytes=5-2", 200, slice(None)),
        ("bytes=0-1,4-5", 200, slice(None)),
        ("items=0-1", 200, slice(None)),
        ("bytes=-", 200, slice(None)),
    ],
)
async def test_ranges(
    client: httpx2.AsyncClient,
    path: str,
    declared: Control,
    make_weights: Any,
    range_: str,
    status: int,
    piece: slice,
) -> None:
    data = make_weights(fill=3)
    await client.put(path + "/weights", content=data)
    answer = await client.get(path + "/weights/1", headers={"range": range_})
    assert (answer.status_code, answer.content) == (status, data[piece])
    if status == 206:
        start = range(len(data))[piece][0]
        assert (
            answer.headers["content-range"] == f"bytes {start}-{start + len(answer.content) - 1}/{len(data)}"
        )


async def test_a_range_outside_and_tags(
    client: httpx2.AsyncClient, path: str, declared: Control, make_weights: Any
) -> None:
    data = make_weights()
    await client.put(path + "/weights", content=data)
    answer = await client.get(path + "/weights/1", headers={"range": f"bytes={len(data)}-"})
    assert (answer.status_code, answer.headers["content-range"]) == (416, f"bytes */{len(data)}")
    tag = f'"{sha256(data)}"'
    for value in (tag, f'"x", {tag}', f"W/{tag}", "*"):
        answer = await client.get(path + "/weights/latest", headers={"if-none-match": value})
        assert (answer.status_code, answer.content) == (304, b"")
    answer = await client.get(path + "/weights/1", headers={"range": "bytes=0-1", "if-range": '"other"'})
    assert (answer.status_code, answer.content) == (200, data)
    answer = await client.get(path + "/weights/1", headers={"range": "bytes=0-1", "if-range": tag})
    assert answer.status_code == 206


@pytest.mark.parametrize("version", ["0", "9", "01", "-1", "1e3", "newest", "9" * 30, "1%2F2"])
async def test_a_version_that_is_not_there(
    client: httpx2.AsyncClient, path: str, declared: Control, version: str
) -> None:
    answer = await client.get(f"{path}/weights/{version}")
    assert answer.status_code in (404, 422)


async def test_old_versions_go(
    client: httpx2.AsyncClient, path: str, declared: Control, make_weights: Any
) -> None:
    for fill in range(5):
        await client.put(path + "/weights", content=make_weights(fill=fill))
    answer = await client.get(path + "/weights/1")
    assert answer.status_code == 404
    assert answer.json()["currentVersion"] == 5
    assert "3, 4, 5" in answer.json()["detail"]


async def test_many_chunks_in_little_pieces(
    client: httpx2.AsyncClient, path: str, control: Control, make_weights: Any
) -> None:
    data = make_weights(tensors={"a": ("U8", [20 * 2**20 + 3])}, fill=9)

    async def pieces() -> AsyncIterator[bytes]:
        sizes = [1, 6, 3, 100, 2**16, 7 * 2**20, 2**20 + 1]
        start, i = 0, 0
        while start < len(data):
            size = sizes[i % len(sizes)]
            yield data[start : start + size]
            start, i = start + size, i + 1

    answer = await client.put(
        path + "/weights", content=pieces(), headers={"x-checksum-sha256": sha256(data)}
    )
    assert answer.status_code == 201, answer.text
    fetched = await client.get(path + "/weights/1")
    assert sha256(fetched.content) == sha256(data)
    piece = await client.get(path + "/weights/1", headers={"range": f"bytes={8 * 2**20 - 5}-{8 * 2**20 + 4}"})
    assert piece.content == data[8 * 2**20 - 5 : 8 * 2**20 + 5]


async def test_a_lost_state_is_told(
    client: httpx2.AsyncClient,
    path: str,
    declared: Control,
    make_weights: Any,
    stream: AsyncSession,
    job: RolloutJob,
) -> None:
    await declared.delete()
    answer = await client.put(path + "/weights", content=make_weights())
    assert answer.status_code == 503
    assert answer.headers["retry-after"]
    assert await Weights(stream, job.ref).versions() == ()
