"""The frame of a batch: bytes, and nothing but bytes.

Written by workers (through `rollout_stream.codec` or straight from an arena), read by learners, tools and tests. Knows
names, dtypes, shapes and offsets; knows nothing of tensors, sockets or compression libraries (it carries the name of a
compression and both lengths). The layout is described in docs/wire-format.md:

    magic "ROL1" | u32 header length | header (JSON, UTF-8) | zeros up to a multiple of 64 | body

`encode` joins separate buffers into one bytes object, `gather` leaves them apart for a socket, and `header_for` makes the
prefix for a body that already lies where it will be sent from. All three give the same bytes.

Behind this one import: `format` (numbers and names), `records`, `header` (its JSON), `prefix` (what stands before the body),
`checks`, `frames` (whole ones) and `splitting`.
"""

from __future__ import annotations

from rollout_contract.wire.format import (
    ALIGNMENT,
    COMPRESSIONS,
    FORMAT_VERSION,
    HEADER_ROOM,
    ITEM_BYTES,
    JSON_DTYPE,
    KEY_SEPARATOR,
    MAGIC,
    MAX_BUFFERS,
    MAX_DIMENSIONS,
    MAX_HEADER_BYTES,
    MAX_RAW_BYTES,
    BytesLike,
    aligned,
    join_key,
    split_key,
)
from rollout_contract.wire.frames import (
    decode,
    encode,
    gather,
    header_for,
    lay_out,
)
from rollout_contract.wire.records import (
    BatchHeader,
    BufferSpec,
    Frame,
    Leaf,
    layout_of,
)
from rollout_contract.wire.splitting import (
    split,
)

__all__ = [
    "ALIGNMENT",
    "COMPRESSIONS",
    "FORMAT_VERSION",
    "HEADER_ROOM",
    "ITEM_BYTES",
    "JSON_DTYPE",
    "KEY_SEPARATOR",
    "MAGIC",
    "MAX_BUFFERS",
    "MAX_DIMENSIONS",
    "MAX_HEADER_BYTES",
    "MAX_RAW_BYTES",
    "BatchHeader",
    "BufferSpec",
    "BytesLike",
    "Frame",
    "Leaf",
    "aligned",
    "decode",
    "encode",
    "gather",
    "header_for",
    "join_key",
    "lay_out",
    "layout_of",
    "split",
    "split_key",
]
