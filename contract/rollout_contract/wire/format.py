"""The numbers of the format: what a frame may be at most, its dtypes and compressions, alignment, and names of leaves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

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


def shown(name: str) -> str:
    """A leaf in an error's words."""
    return f"leaf {name.replace(KEY_SEPARATOR, '.')!r:.200}"
