"""The container of weights: its header, read, checked and written. Pure, and without torch.

The format is an unsigned 64-bit length, that many bytes of JSON (name → dtype, shape, offsets), and the tensors' bytes
without gaps: data and nothing else, so that no weights can hold code. Used by publishers, readers and the gateway.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rollout_contract.errors import WeightsRejected
from rollout_contract.json_text import RepeatedKey, without_repeats
from rollout_contract.messages import Layout
from rollout_contract.wire import ITEM_BYTES, MAX_DIMENSIONS

MAX_HEADER_BYTES: Final = 16 * 1024 * 1024
MAX_TENSORS: Final = 100_000
MAX_PROBLEMS: Final = 200
NOTES: Final = "__metadata__"
"""The one name that describes no tensor: text by names, which nobody here reads."""

DTYPES: Final[Mapping[str, str]] = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "U16": "uint16",
    "I16": "int16",
    "U32": "uint32",
    "I32": "int32",
    "U64": "uint64",
    "I64": "int64",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F16": "float16",
    "BF16": "bfloat16",
    "F32": "float32",
    "F64": "float64",
    "C64": "complex64",
    "C128": "complex128",
}
"""The format's names of dtypes in the contract's words. C128 is an addition of ours."""
NAMES: Final[Mapping[str, str]] = {ours: theirs for theirs, ours in DTYPES.items()}

_LENGTH = struct.Struct("<Q")
_NOT = "this is no safetensors file, the one format that weights have"


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor: `start` and `end` are offsets from the file's start."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class WeightsHeader:
    """What a file holds. `size` is the whole file's, `start` where the tensors' bytes begin."""

    entries: Mapping[str, Entry]
    start: int
    size: int

    @property
    def layout(self) -> Layout:
        """Dtype and shape of every tensor."""
        return Layout({n: {"dtype": e.dtype, "shape": list(e.shape)} for n, e in self.entries.items()})


def build_header(tensors: Sequence[tuple[str, str, Sequence[int]]]) -> bytes:
    """The bytes before the tensors, for (name, dtype, shape) in the order in which their bytes follow."""
    document: dict[str, Any] = {}
    end = 0
    for name, dtype, shape in tensors:
        start, end = end, end + math.prod(shape) * ITEM_BYTES[dtype]
        document[name] = {"dtype": NAMES[dtype], "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(document, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return _LENGTH.pack(len(text)) + text


def header_size(head: bytes | bytearray | memoryview) -> int | None:
    """Bytes of length and header together; None as long as fewer than eight are there. WeightsRejected if it cannot be."""
    if len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack_from(head)
    if bytes(head[:4]) == b"PK\x03\x04" or bytes(head[:1]) == b"\x80":
        raise WeightsRejected([f"{_NOT}: it looks like a pickle or a zip, which could hold code"])
    if not 2 <= length <= MAX_HEADER_BYTES:
        raise WeightsRejected([f"{_NOT}: its header would take {length} bytes of at most {MAX_HEADER_BYTES}"])
    return _LENGTH.size + int(length)


_MOST_MARKS: Final = {b"{": MAX_TENSORS + 2, b"[": 2 * MAX_TENSORS, b'"': 12 * MAX_TENSORS}
"""Counted before anything is made of a header: a heap of empty lists takes twenty times its bytes as objects."""


def parse_header(head: bytes | bytearray | memoryview) -> WeightsHeader:
    """The header, from at least its own bytes. WeightsRejected with every problem of its structure."""
    size = header_size(head)
    if size is None or len(head) < size:
        raise WeightsRejected([f"{_NOT}: it ends after {len(head)} bytes, inside of its header"])
    text = bytes(head[_LENGTH.size : size])
    for mark, most in _MOST_MARKS.items():
        if text.count(mark) > most:
            raise WeightsRejected(
                [f"{_NOT}: its header has more {mark.decode()} than {MAX_TENSORS} tensors need"]
            )
    try:
        document = json.loads(text.decode("utf-8"), object_pairs_hook=without_repeats)
    except RepeatedKey as error:
        raise WeightsRejected([f"the header: {error}, so it does not say which one counts"]) from error
    except (ValueError, RecursionError) as error:
        raise WeightsRejected([f"{_NOT}: its header is no JSON ({error})"]) from error
    if not isinstance(document, dict):
        raise WeightsRejected([f"{_NOT}: its header is a JSON {type(document).__name__}"])
    problems = _problems_of_notes(document.pop(NOTES, {}))
    if len(document) > MAX_TENSORS:
        raise WeightsRejected([f"{len(document)} tensors: at most {MAX_TENSORS} are allowed"])
    entries: dict[str, Entry] = {}
    for name, fields in document.items():
        entry = _entry_of(fields, size)
        if isinstance(entry, str):
            problems.append(f"{name:.200}: {entry}")
        else:
            entries[name] = entry
    problems = problems or _gaps(entries, size)
    if problems:
        raise WeightsRejected(problems[:MAX_PROBLEMS])
    end = max((entry.end for entry in entries.values()), default=size)
    return WeightsHeader(entries, size, end)


def problems_of(header: WeightsHeader, layout: Layout | None) -> list[str]:
    """What does not fit the job's layout, every key with expected and found; empty if all fits or none is declared."""
    return layout.differences(header.layout)[:MAX_PROBLEMS] if layout is not None else []


def _problems_of_notes(notes: object) -> list[str]:
    if not isinstance(notes, dict):
        return [f"{NOTES}: it is to map text to text, and is {notes!r:.80}"]
    return [
        f"{NOTES}: {name!r:.80} is to be text, and is {value!r:.80}"
        for name, value in notes.items()
        if not isinstance(value, str)
    ]


def _entry_of(fields: object, base: int) -> Entry | str:
    if not isinstance(fields, dict):
        return "its description is no object"
    dtype: Any = fields.get("dtype")
    shape: Any = fields.get("shape")
    offsets: Any = fields.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in DTYPES:
        return f"dtype {dtype!r:.40}; known are {', '.join(DTYPES)}"
    if not _are_sizes(shape) or len(shape) > MAX_DIMENSIONS:
        return f"shape {shape!r:.80} is no list of sizes"
    if not _are_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        return f"data_offsets {offsets!r:.80} are no [start, end]"
    known = DTYPES[dtype]
    if math.prod(shape) * ITEM_BYTES[known] != offsets[1] - offsets[0]:
        return f"{offsets[1] - offsets[0]} bytes are no {known}{shape}"
    return Entry(known, tuple(shape), base + offsets[0], base + offsets[1])


def _are_sizes(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(n, int) and not isinstance(n, bool) and 0 <= n < 2**53 for n in value
    )


def _gaps(entries: Mapping[str, Entry], end: int) -> list[str]:
    problems = []
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].start, item[1].end)):
        if entry.start != end:
            problems.append(
                f"{name:.200}: its bytes begin at {entry.start} instead of {end}: gaps and overlaps are not allowed"
            )
        end = entry.end
    return problems
