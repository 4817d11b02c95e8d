"""The frame of a batch: bytes, and nothing but bytes.

Written by workers (through `rollout_stream.codec` or straight from an arena), read by learners, tools and tests. Knows
names, dtypes, shapes and offsets; knows nothing of tensors, sockets or compression libraries (it carries the name of a
compression and both lengths). The layout is described in docs/wire-format.md:

    magic "ROL1" | u32 header length | header (JSON, UTF-8) | zeros up to a multiple of 64 | body

`encode` joins separate buffers into one bytes object, `gather` leaves them apart for a socket, and `header_for` makes the
prefix for a body that already lies where it will be sent from. All three give the same bytes.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

import xxhash

from rollout_contract.errors import FrameError
from rollout_contract.messages import EpisodeSummary, Layout
from rollout_contract.names import WorkerId

BytesLike: TypeAlias = bytes | bytearray | memoryview

MAGIC: Final = b"ROL1"
FORMAT_VERSION: Final = 1
ALIGNMENT: Final = 64
"""Every buffer starts at a multiple of this many bytes from the frame's start."""
MAX_HEADER_BYTES: Final = 64 * 1024
HEADER_ROOM: Final = 64 * 1024 + ALIGNMENT
"""Bytes to keep free before a body that `header_for` is used on: no prefix is longer."""
MAX_BUFFERS: Final = 4096
MAX_DIMENSIONS: Final = 32
MAX_RAW_BYTES: Final = 4 * 1024**3
"""Bytes that one frame's buffers may hold once they are unpacked: a bound against damaged or hostile lengths."""
KEY_SEPARATOR: Final = "\x1f"
"""Joins the parts of a nested key. It may stand in no key."""
JSON_DTYPE: Final = "json"
"""Dtype of a buffer that holds JSON text: leaves that are no tensors, as lists nested like the batch's shape."""

ITEM_BYTES: Final[Mapping[str, int]] = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "uint16": 2,
    "int16": 2,
    "uint32": 4,
    "int32": 4,
    "uint64": 8,
    "int64": 8,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
    "complex32": 4,
    "complex64": 8,
    "complex128": 16,
}
"""Bytes per element of every dtype but JSON_DTYPE."""
COMPRESSIONS: Final = ("none", "zstd", "lz4")

_PREFIX = struct.Struct("<4sI")
_DIGEST_HEAD = b'{"digest":"'
_NO_DIGEST = b"0" * 16
_DIGEST_AT = _PREFIX.size + len(_DIGEST_HEAD)
_MAX_INTEGER = 2**63 - 1


@dataclass(frozen=True, slots=True)
class BufferSpec:
    """Where one leaf lies in the body, and what it is.

    `offset` counts from the body's start, `length` are the bytes stored, `raw_length` those after decompression.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    length: int
    raw_length: int
    compression: str = "none"


@dataclass(frozen=True, slots=True)
class BatchHeader:
    """What a frame says about its batch. `shape` is `[num_envs, num_steps]`, `frames` their product.

    `policy_version` is (first, last) version that acted inside the batch; `part` is (number, count) where a batch was
    split along its environments.
    """

    job: str
    worker: WorkerId
    sequence: int
    shape: tuple[int, ...]
    frames: int
    policy_version: tuple[int, int] = (0, 0)
    seed_epoch: int = 0
    episodes: EpisodeSummary = field(default_factory=EpisodeSummary)
    buffers: tuple[BufferSpec, ...] = ()
    part: tuple[int, int] = (0, 1)
    version: int = FORMAT_VERSION


@dataclass(frozen=True, slots=True)
class Frame:
    """A checked frame: its header, and its body as a view on the bytes it came from."""

    header: BatchHeader
    body: memoryview

    def buffer(self, spec: BufferSpec) -> memoryview:
        """The stored bytes of one leaf (compressed, if its spec says so), without a copy."""
        return self.body[spec.offset : spec.offset + spec.length]


@dataclass(frozen=True, slots=True)
class Leaf:
    """One leaf before it has a place: its name, what it is, and its stored bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: BytesLike
    compression: str = "none"
    raw_length: int | None = None
    """Bytes before compression; None where `data` is not compressed."""

    @property
    def length(self) -> int:
        """Bytes stored."""
        return _size_of(self.data)


def aligned(size: int) -> int:
    """The next multiple of ALIGNMENT that is not below `size`."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def join_key(parts: Sequence[str]) -> str:
    """A nested key as one name. ValueError if a part is empty or holds the separator."""
    for part in parts:
        if not isinstance(part, str) or not part or KEY_SEPARATOR in part:
            raise ValueError(
                f"a key's part is a non-empty str without {KEY_SEPARATOR!r}, not {part!r} (in {tuple(parts)!r})"
            )
    if not parts:
        raise ValueError("a key has at least one part")
    return KEY_SEPARATOR.join(parts)


def split_key(name: str) -> tuple[str, ...]:
    """The parts of a nested key: the inverse of `join_key`."""
    return tuple(name.split(KEY_SEPARATOR))


def lay_out(leaves: Sequence[Leaf]) -> tuple[tuple[BufferSpec, ...], int]:
    """Where each leaf goes in a body, one after the other at multiples of ALIGNMENT, and the body's size in bytes."""
    specs, end = [], 0
    for leaf in leaves:
        offset = aligned(end)
        length = leaf.length
        raw = length if leaf.raw_length is None else leaf.raw_length
        specs.append(
            BufferSpec(leaf.name, leaf.dtype, tuple(leaf.shape), offset, length, raw, leaf.compression)
        )
        end = offset + length
    return tuple(specs), end


def gather(header: BatchHeader, leaves: Sequence[Leaf]) -> list[BytesLike]:
    """The frame as a list of buffers to send one after the other: the leaves' own memory, nothing copied.

    `header.buffers` is ignored and made from the leaves. FrameError if the header would be too long or a leaf's bytes do
    not match its dtype and shape.
    """
    specs, size = lay_out(leaves)
    pieces = list(_pieces(specs, leaves))
    return [_prefix_of(replace(header, buffers=specs), pieces, size), *pieces]


def encode(header: BatchHeader, leaves: Sequence[Leaf]) -> bytes:
    """The frame as one bytes object, by a single join. See `gather`."""
    return b"".join(gather(header, leaves))


def header_for(header: BatchHeader, body: BytesLike) -> bytes:
    """The prefix of a frame whose body already lies in its place: magic, length, header, padding.

    Its length is a multiple of ALIGNMENT and at most HEADER_ROOM. Written into the bytes right before `body`, prefix and
    body are one frame, and the body was not copied. `header.buffers` says where each leaf lies in `body`. FrameError if
    a spec does not fit the body.
    """
    view = memoryview(body).cast("B")
    _check_buffers(header.buffers, len(view), what="to encode")
    return _prefix_of(header, [view], len(view))


def decode(frame: BytesLike, *, max_raw_bytes: int = MAX_RAW_BYTES) -> Frame:
    """Checks magic, version, sizes, bounds and digest, and gives the header and a view on the body.

    Reads nothing that it has not checked and allocates nothing in proportion to a number that it has not checked.
    FrameError that names what is wrong, for every other input.
    """
    view = memoryview(frame).cast("B")
    text, start = _header_text(view)
    if view[len(text) + _PREFIX.size : start].tobytes().strip(b"\0"):
        raise FrameError("the padding behind the header is not zero: the frame is damaged")
    document = _parse_json(text)
    version = document.get("version")
    if version != FORMAT_VERSION or isinstance(version, bool):
        raise FrameError(f"format version {version!r:.40}: this reader knows version {FORMAT_VERSION} only")
    body = view[start:]
    size = _integer(document, "body")
    if size != len(body):
        raise FrameError(
            f"the body has {len(body)} bytes, its header says {size}: the frame is truncated or damaged"
        )
    found, said = _digest_of(view[:start], [body]), text[len(_DIGEST_HEAD) : len(_DIGEST_HEAD) + 16]
    if found != said:
        raise FrameError(
            f"digest {found.decode()} instead of {bytes(said).decode(errors='replace')}: the bytes were changed"
        )
    header = _header_of(document)
    _check_buffers(header.buffers, len(body), what="to read", max_raw_bytes=max_raw_bytes)
    _check_tree(header)
    return Frame(header, body)


def split(
    header: BatchHeader, leaves: Sequence[Leaf], *, max_bytes: int
) -> list[tuple[BatchHeader, list[Leaf]]]:
    """Parts of a batch, along its environments, none of whose frames is over `max_bytes`; one part if it fits.

    Sequence numbers run on from the header's, episodes stay with the first part. Leaves must be uncompressed and have
    the number of environments as their first dimension. FrameError if a single environment is over the limit.
    """
    num_envs = header.shape[0]
    fixed = HEADER_ROOM + ALIGNMENT * len(leaves)
    if fixed + sum(leaf.length for leaf in leaves) <= max_bytes or num_envs == 0:
        return [(header, list(leaves))]
    per_env = max(1, sum(_largest_row(leaf, num_envs) for leaf in leaves))
    room = max(0, max_bytes - fixed) // per_env
    if room < 1:
        raise FrameError(
            f"one environment's share of the batch takes {per_env} bytes of at most {max(0, max_bytes - fixed)}:"
            " raise stream.maxFrameBytes or lower collector.framesPerBatch"
        )
    starts = range(0, num_envs, room)
    parts = []
    for number, first in enumerate(starts):
        last = min(first + room, num_envs)
        shape = (last - first, *header.shape[1:])
        part = replace(
            header,
            sequence=header.sequence + number,
            shape=shape,
            frames=math.prod(shape),
            part=(number, len(starts)),
            episodes=header.episodes if number == 0 else EpisodeSummary(),
        )
        parts.append((part, [_rows(leaf, first, last, num_envs) for leaf in leaves]))
    return parts


def layout_of(header: BatchHeader) -> Layout:
    """What one frame of a batch looks like: per leaf its dtype, and its shape without the batch's dimensions.

    Both sides compare this: a worker declares it before its first batch, a reader checks every batch against it.
    """
    dims = len(header.shape)
    return Layout({b.name: {"dtype": b.dtype, "shape": list(b.shape[dims:])} for b in header.buffers})


def _largest_row(leaf: Leaf, num_envs: int) -> int:
    """Bytes of the environment that takes most of a leaf. Tensors' rows are equal, texts are not."""
    if leaf.dtype == JSON_DTYPE:
        return max(
            (len(json.dumps(row, separators=(",", ":"))) + 2 for row in json.loads(bytes(leaf.data))),
            default=0,
        )
    return leaf.length // num_envs


def _rows(leaf: Leaf, first: int, last: int, num_envs: int) -> Leaf:
    if leaf.compression != "none" or not leaf.shape or leaf.shape[0] != num_envs:
        raise FrameError(
            f"{_shown(leaf.name)}: only an uncompressed leaf of {num_envs} rows can be split, not {leaf.shape}"
        )
    shape = (last - first, *leaf.shape[1:])
    if leaf.dtype == JSON_DTYPE:
        rows = json.loads(bytes(leaf.data))[first:last]
        return replace(
            leaf, shape=shape, data=json.dumps(rows, separators=(",", ":")).encode(), raw_length=None
        )
    step = leaf.length // num_envs
    return replace(
        leaf, shape=shape, data=memoryview(leaf.data).cast("B")[first * step : last * step], raw_length=None
    )


def _size_of(data: BytesLike) -> int:
    return data.nbytes if isinstance(data, memoryview) else len(data)


def _pieces(specs: Sequence[BufferSpec], leaves: Sequence[Leaf]) -> Iterator[BytesLike]:
    end = 0
    for spec, leaf in zip(specs, leaves, strict=True):
        if spec.offset > end:
            yield bytes(spec.offset - end)
        if spec.length:
            yield leaf.data if isinstance(leaf.data, bytes) else memoryview(leaf.data).cast("B")
        end = spec.offset + spec.length
    _check_buffers(specs, end, what="to encode")


def _prefix_of(header: BatchHeader, pieces: Sequence[BytesLike], body_size: int) -> bytes:
    _check_tree(header)
    text = _header_json(header, body_size)
    if len(text) > MAX_HEADER_BYTES:
        header = replace(header, episodes=replace(header.episodes, newest=()))
        text = _header_json(header, body_size)
    if len(text) > MAX_HEADER_BYTES:
        raise FrameError(
            f"the header of {len(header.buffers)} leaves takes {len(text)} bytes of at most {MAX_HEADER_BYTES}: "
            "use fewer or shorter keys"
        )
    prefix = bytearray(aligned(_PREFIX.size + len(text)))
    _PREFIX.pack_into(prefix, 0, MAGIC, len(text))
    prefix[_PREFIX.size : _PREFIX.size + len(text)] = text
    prefix[_DIGEST_AT : _DIGEST_AT + 16] = _digest_of(memoryview(prefix), pieces)
    return bytes(prefix)


def _digest_of(prefix: memoryview, pieces: Sequence[BytesLike]) -> bytes:
    """xxh3-64 in hexadecimal over the whole frame, with the digest's own place as zeros."""
    state = xxhash.xxh3_64()
    state.update(prefix[:_DIGEST_AT])
    state.update(_NO_DIGEST)
    state.update(prefix[_DIGEST_AT + 16 :])
    for piece in pieces:
        state.update(piece)
    return state.hexdigest().encode()


def _header_json(header: BatchHeader, body_size: int) -> bytes:
    episodes = header.episodes
    document = {
        "digest": _NO_DIGEST.decode(),
        "version": header.version,
        "job": header.job,
        "worker": [header.worker.group, header.worker.index, header.worker.attempt],
        "sequence": header.sequence,
        "shape": list(header.shape),
        "frames": header.frames,
        "policy_version": list(header.policy_version),
        "seed_epoch": header.seed_epoch,
        "part": list(header.part),
        "episodes": {
            "count": episodes.count,
            "return_sum": _finite(episodes.return_sum),
            "return_min": _finite(episodes.return_min),
            "return_max": _finite(episodes.return_max),
            "length_sum": episodes.length_sum,
            "newest": [[_finite(value), length] for value, length in episodes.newest],
        },
        "body": body_size,
        "buffers": [
            [b.name, b.dtype, list(b.shape), b.offset, b.length, b.raw_length, b.compression]
            for b in header.buffers
        ],
    }
    return json.dumps(document, separators=(",", ":"), allow_nan=False).encode()


def _finite(value: float | None) -> float | None:
    """JSON has no NaN: what is not finite travels as null."""
    return None if value is None or not math.isfinite(value) else value


def _header_text(view: memoryview) -> tuple[bytes, int]:
    """The header's JSON and the body's start, both inside of the view."""
    if len(view) < _PREFIX.size:
        raise FrameError(f"{len(view)} bytes are no frame: it has at least {_PREFIX.size}")
    magic, length = _PREFIX.unpack_from(view)
    if magic != MAGIC:
        raise FrameError(f"magic {magic!r} instead of {MAGIC!r}: these bytes are no frame of ours")
    if not len(_DIGEST_HEAD) + 16 < length <= MAX_HEADER_BYTES:
        raise FrameError(
            f"a header of {length} bytes: allowed are {len(_DIGEST_HEAD) + 17} to {MAX_HEADER_BYTES}"
        )
    start = aligned(_PREFIX.size + length)
    if start > len(view):
        raise FrameError(f"the frame ends after {len(view)} bytes, inside of its header of {length}")
    text = view[_PREFIX.size : _PREFIX.size + length].tobytes()
    if not text.startswith(_DIGEST_HEAD):
        raise FrameError("the header does not begin with its digest: the frame is damaged")
    return text, start


def _parse_json(text: bytes) -> dict[str, Any]:
    try:
        document = json.loads(text.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise FrameError(f"the header is no JSON: {error}") from error
    if not isinstance(document, dict):
        raise FrameError(f"the header is a JSON {type(document).__name__}, not an object")
    return document


def _header_of(document: dict[str, Any]) -> BatchHeader:
    worker = _list(document, "worker", 3)
    if not isinstance(worker[0], str):
        raise FrameError(f"header field worker: {worker!r:.80} is not [group, index, attempt]")
    job = document.get("job")
    if not isinstance(job, str):
        raise FrameError(f"header field job: {job!r:.80} is not a string")
    first, last = _integers(_list(document, "policy_version", 2), "policy_version")
    part, parts = _integers(_list(document, "part", 2), "part")
    index, attempt = _integers(worker[1:], "worker")
    buffers = _list(document, "buffers")
    if len(buffers) > MAX_BUFFERS:
        raise FrameError(f"{len(buffers)} buffers: at most {MAX_BUFFERS} are allowed")
    shape = _integers(_list(document, "shape"), "shape")
    header = BatchHeader(
        job=job,
        worker=WorkerId(worker[0], index, attempt),
        sequence=_integer(document, "sequence"),
        shape=shape,
        frames=_integer(document, "frames"),
        policy_version=(first, last),
        seed_epoch=_integer(document, "seed_epoch"),
        episodes=_episodes_of(document.get("episodes")),
        buffers=tuple(_spec_of(entry) for entry in buffers),
        part=(part, parts),
    )
    if len(shape) > MAX_DIMENSIONS or math.prod(shape) != header.frames:
        raise FrameError(
            f"header field frames: {header.frames} is not the product of shape {list(shape)!r:.80}"
        )
    return header


def _episodes_of(document: object) -> EpisodeSummary:
    if not isinstance(document, dict):
        raise FrameError(f"header field episodes: {document!r:.80} is not an object")
    newest = _list(document, "newest")
    if len(newest) > EpisodeSummary.MAX_NEWEST:
        raise FrameError(
            f"header field episodes: {len(newest)} newest ones, at most {EpisodeSummary.MAX_NEWEST} are allowed"
        )
    pairs = []
    for pair in newest:
        if not isinstance(pair, list) or len(pair) != 2:
            raise FrameError(f"header field episodes.newest: {pair!r:.80} is not [return, length]")
        value = _number(pair[0], "episodes.newest")
        pairs.append((math.nan if value is None else value, _integers(pair[1:], "episodes.newest")[0]))
    total = _number(document.get("return_sum"), "episodes.return_sum")
    return EpisodeSummary(
        count=_integer(document, "count"),
        return_sum=math.nan if total is None else total,
        return_min=_number(document.get("return_min"), "episodes.return_min"),
        return_max=_number(document.get("return_max"), "episodes.return_max"),
        length_sum=_integer(document, "length_sum"),
        newest=tuple(pairs),
    )


def _spec_of(entry: object) -> BufferSpec:
    if not isinstance(entry, list) or len(entry) != 7:
        raise FrameError(f"header field buffers: {entry!r:.80} is not a buffer's seven fields")
    name, dtype, shape, offset, length, raw, compression = entry
    if not isinstance(name, str) or not isinstance(dtype, str) or not isinstance(compression, str):
        raise FrameError(f"header field buffers: name, dtype or compression of {entry!r:.80} is not a string")
    if not isinstance(shape, list):
        raise FrameError(f"{_shown(name)}: shape {shape!r:.80} is not a list")
    offset, length, raw = _integers([offset, length, raw], _shown(name))
    return BufferSpec(name, dtype, _integers(shape, _shown(name)), offset, length, raw, compression)


def _check_buffers(
    specs: Sequence[BufferSpec], body_size: int, *, what: str, max_raw_bytes: int = MAX_RAW_BYTES
) -> None:
    """Every buffer known, inside of the body, aligned, without overlap, and as long as dtype and shape say."""
    names: set[str] = set()
    for spec in specs:
        shown = _shown(spec.name)
        if not spec.name or spec.name in names:
            raise FrameError(f"{shown}: an empty or repeated name cannot be had {what}")
        names.add(spec.name)
        _check_lengths(spec, shown)
        if spec.offset % ALIGNMENT or spec.offset < 0 or spec.offset + spec.length > body_size:
            raise FrameError(
                f"{shown}: bytes {spec.offset}..{spec.offset + spec.length} are not aligned to {ALIGNMENT}"
                f" inside of a body of {body_size}"
            )
    end, before = 0, ""
    for spec in sorted((s for s in specs if s.length), key=lambda s: s.offset):
        if spec.offset < end:
            raise FrameError(f"{_shown(spec.name)}: overlaps with {_shown(before)}")
        end, before = spec.offset + spec.length, spec.name
    if (raw := sum(spec.raw_length for spec in specs)) > max_raw_bytes:
        raise FrameError(f"the buffers hold {raw} bytes unpacked, at most {max_raw_bytes} are allowed")


def _check_tree(header: BatchHeader) -> None:
    """Every leaf has the batch's shape first, and no leaf lies where another one has its parents."""
    dims = len(header.shape)
    names = {spec.name for spec in header.buffers}
    for spec in header.buffers:
        if spec.shape[:dims] != header.shape:
            raise FrameError(
                f"{_shown(spec.name)}: shape {list(spec.shape)} does not begin with the batch's {list(header.shape)}"
            )
        parts = split_key(spec.name)
        if not all(parts) or any(KEY_SEPARATOR.join(parts[:n]) in names for n in range(1, len(parts))):
            raise FrameError(f"{_shown(spec.name)}: a part of the key is empty, or is a leaf itself")


def _check_lengths(spec: BufferSpec, shown: str) -> None:
    if spec.compression not in COMPRESSIONS:
        raise FrameError(
            f"{shown}: compression {spec.compression!r:.40}; known are {', '.join(COMPRESSIONS)}"
        )
    if spec.compression == "none" and spec.length != spec.raw_length:
        raise FrameError(
            f"{shown}: {spec.length} bytes stored but {spec.raw_length} unpacked, without compression"
        )
    if len(spec.shape) > MAX_DIMENSIONS:
        raise FrameError(f"{shown}: {len(spec.shape)} dimensions, at most {MAX_DIMENSIONS} are allowed")
    if spec.dtype == JSON_DTYPE:
        return
    item = ITEM_BYTES.get(spec.dtype)
    if item is None:
        raise FrameError(
            f"{shown}: dtype {spec.dtype!r:.40}; known are {', '.join(ITEM_BYTES)} and {JSON_DTYPE}"
        )
    if math.prod(spec.shape) * item != spec.raw_length:
        raise FrameError(f"{shown}: {spec.raw_length} bytes are no {spec.dtype}{list(spec.shape)}")


def _integer(document: Mapping[str, Any], key: str) -> int:
    return _integers([document.get(key)], key)[0]


def _integers(values: Sequence[object], where: str) -> tuple[int, ...]:
    checked: list[int] = []
    for value in values:
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _MAX_INTEGER:
            raise FrameError(
                f"header field {where}: {value!r:.40} is not an integer from 0 to {_MAX_INTEGER}"
            )
        checked.append(value)
    return tuple(checked)


def _number(value: object, where: str) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise FrameError(f"header field {where}: {value!r:.40} is not a number")
    return float(value) if abs(value) < 1e308 else math.nan


def _list(document: Mapping[str, Any], key: str, length: int | None = None) -> list[Any]:
    value = document.get(key)
    if not isinstance(value, list) or (length is not None and len(value) != length):
        raise FrameError(
            f"header field {key}: {value!r:.80} is not a list" + (f" of {length}" if length else "")
        )
    return value


def _shown(name: str) -> str:
    return f"leaf {name.replace(KEY_SEPARATOR, '.')!r:.200}"
