"""The header of a safetensors file, read and checked before a byte of the tensors is taken. Pure.

Called by the upload. The format is an unsigned 64-bit length, that many bytes of JSON (name → dtype, shape, offsets),
and the tensors' bytes without gaps: data and nothing else, so that no upload can hold code.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from rollout_contract.errors import WeightsRejected
from rollout_contract.messages import Layout
from rollout_contract.wire import ITEM_BYTES, MAX_DIMENSIONS

LENGTH_BYTES: Final = 8
MAX_HEADER_BYTES: Final = 16 * 1024 * 1024
"""Room for a hundred thousand parameters; the header is the one part of an upload that is held in memory."""
MAX_TENSORS: Final = 100_000
MAX_PROBLEMS: Final = 200
"""Listed at most; a model of another kind differs in every parameter."""

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
}
"""The format's names of dtypes, in the contract's words."""

_LENGTH = struct.Struct("<Q")
NOT_SAFETENSORS: Final = "the body is no safetensors file, the one format that is taken here"


class NoSafetensors(ValueError):
    """The bytes are another format, or a damaged file. The text says what was found."""


@dataclass(frozen=True, slots=True)
class Header:
    """What a file holds. `size` is that of the whole file."""

    layout: Layout
    size: int


def header_length(first: bytes) -> int:
    """The length of the header's JSON, from the file's first `LENGTH_BYTES`. NoSafetensors for what cannot be one."""
    if len(first) < LENGTH_BYTES:
        raise NoSafetensors(f"{NOT_SAFETENSORS}: it has only {len(first)} bytes")
    (length,) = _LENGTH.unpack(first)
    if not 2 <= length <= MAX_HEADER_BYTES:
        raise NoSafetensors(f"{NOT_SAFETENSORS}: it begins with {first!r}")
    return int(length)


def parse_header(text: bytes) -> Header:
    """The file's contents, from its header. NoSafetensors if it is none; WeightsRejected that lists every tensor whose
    entry contradicts itself.
    """
    entries = _entries(text)
    leaves: dict[str, dict[str, Any]] = {}
    pieces: list[tuple[int, int, str]] = []
    problems: list[str] = []
    for name, entry in entries.items():
        try:
            dtype, shape, start, stop = _entry(entry)
        except ValueError as error:
            problems.append(f"{shown(name)}: {error}")
            continue
        leaves[name] = {"dtype": dtype, "shape": list(shape)}
        pieces.append((start, stop, name))
    problems += _gaps(pieces) if not problems else []
    if problems:
        raise WeightsRejected(clipped(problems))
    body = max((stop for _, stop, _ in pieces), default=0)
    return Header(Layout(leaves), LENGTH_BYTES + len(text) + body)


def clipped(problems: list[str]) -> list[str]:
    """The first of them, and how many more there are."""
    left_out = len(problems) - MAX_PROBLEMS
    return problems if left_out <= 0 else [*problems[:MAX_PROBLEMS], f"… and {left_out} more"]


def shown(name: str) -> str:
    """A tensor's name as it can stand in a message."""
    printable = "".join(c if c.isprintable() else "�" for c in name[:120])
    return printable if len(name) <= 120 else printable + "…"


def _entries(text: bytes) -> dict[str, Any]:
    try:
        document = json.loads(text.decode(), object_pairs_hook=_without_repeats, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise NoSafetensors(f"{NOT_SAFETENSORS}: its header cannot be read") from error
    if not isinstance(document, dict):
        raise NoSafetensors(f"{NOT_SAFETENSORS}: its header is no JSON object")
    metadata = document.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise NoSafetensors(f"{NOT_SAFETENSORS}: its __metadata__ is no object of texts")
    if len(document) > MAX_TENSORS:
        raise NoSafetensors(f"the file has {len(document)} tensors of at most {MAX_TENSORS}")
    if not document:
        raise WeightsRejected(["the file holds no tensors"])
    return document


def _without_repeats(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError("a key stands twice")
        key.encode()  # a lone surrogate is no text that could be sent or stored
        found[key] = value
    return found


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is no JSON")


def _entry(entry: object) -> tuple[str, tuple[int, ...], int, int]:
    """dtype, shape, start and stop of one tensor. ValueError with what is wrong."""
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise ValueError("its entry does not have exactly dtype, shape and data_offsets")
    dtype = DTYPES.get(entry["dtype"]) if isinstance(entry["dtype"], str) else None
    if dtype is None:
        raise ValueError(f"dtype {str(entry['dtype'])[:40]!r} is not one of {', '.join(DTYPES)}")
    shape, offsets = entry["shape"], entry["data_offsets"]
    if not _are_sizes(shape) or len(shape) > MAX_DIMENSIONS:
        raise ValueError(f"its shape is no list of at most {MAX_DIMENSIONS} sizes")
    if not _are_sizes(offsets) or len(offsets) != 2:
        raise ValueError("its data_offsets are not two positions")
    start, stop = offsets
    needed = math.prod(shape) * ITEM_BYTES[dtype]
    if stop - start != needed:
        raise ValueError(
            f"{entry['dtype']}{shape} takes {needed} bytes, its data_offsets hold {stop - start}"
        )
    return dtype, tuple(shape), start, stop


def _are_sizes(value: object) -> bool:
    return isinstance(value, list) and all(type(item) is int and 0 <= item < 2**62 for item in value)


def _gaps(pieces: list[tuple[int, int, str]]) -> list[str]:
    """Tensors that do not begin where the one before ends: room for bytes that nobody looks at."""
    problems, end = [], 0
    for start, stop, name in sorted(pieces):
        if start != end:
            problems.append(f"{shown(name)}: begins at byte {start}, the one before ends at {end}")
        end = max(end, stop)
    return problems
