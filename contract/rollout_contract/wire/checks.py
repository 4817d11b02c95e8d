"""Whether a header's leaves fit one another, the batch and the body: asked by whoever writes and by whoever reads."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rollout_contract.errors import FrameError
from rollout_contract.wire.format import (
    ALIGNMENT,
    COMPRESSIONS,
    ITEM_BYTES,
    JSON_DTYPE,
    KEY_SEPARATOR,
    MAX_DIMENSIONS,
    MAX_RAW_BYTES,
    shown,
    split_key,
)
from rollout_contract.wire.records import BatchHeader, BufferSpec


def check_buffers(
    specs: Sequence[BufferSpec], body_size: int, *, what: str, max_raw_bytes: int = MAX_RAW_BYTES
) -> None:
    """Every buffer known, inside of the body, aligned, without overlap, and as long as dtype and shape say."""
    names: set[str] = set()
    for spec in specs:
        name = shown(spec.name)
        if not spec.name or spec.name in names:
            raise FrameError(f"{name}: an empty or repeated name cannot be had {what}")
        names.add(spec.name)
        _check_lengths(spec, name)
        if spec.offset % ALIGNMENT or spec.offset < 0 or spec.offset + spec.length > body_size:
            raise FrameError(
                f"{name}: bytes {spec.offset}..{spec.offset + spec.length} are not aligned to {ALIGNMENT}"
                f" inside of a body of {body_size}"
            )
    end, before = 0, ""
    for spec in sorted((s for s in specs if s.length), key=lambda s: s.offset):
        if spec.offset < end:
            raise FrameError(f"{shown(spec.name)}: overlaps with {shown(before)}")
        end, before = spec.offset + spec.length, spec.name
    if (raw := sum(spec.raw_length for spec in specs)) > max_raw_bytes:
        raise FrameError(f"the buffers hold {raw} bytes unpacked, at most {max_raw_bytes} are allowed")


def check_tree(header: BatchHeader) -> None:
    """Every leaf has the batch's shape first, and no leaf lies where another one has its parents."""
    dims = len(header.shape)
    names = {spec.name for spec in header.buffers}
    for spec in header.buffers:
        if spec.shape[:dims] != header.shape:
            raise FrameError(
                f"{shown(spec.name)}: shape {list(spec.shape)} does not begin with the batch's {list(header.shape)}"
            )
        parts = split_key(spec.name)
        if not all(parts) or any(KEY_SEPARATOR.join(parts[:n]) in names for n in range(1, len(parts))):
            raise FrameError(f"{shown(spec.name)}: a part of the key is empty, or is a leaf itself")


def _check_lengths(spec: BufferSpec, name: str) -> None:
    if spec.compression not in COMPRESSIONS:
        raise FrameError(f"{name}: compression {spec.compression!r:.40}; known are {', '.join(COMPRESSIONS)}")
    if spec.compression == "none" and spec.length != spec.raw_length:
        raise FrameError(
            f"{name}: {spec.length} bytes stored but {spec.raw_length} unpacked, without compression"
        )
    if len(spec.shape) > MAX_DIMENSIONS:
        raise FrameError(f"{name}: {len(spec.shape)} dimensions, at most {MAX_DIMENSIONS} are allowed")
    if spec.dtype == JSON_DTYPE:
        return
    item = ITEM_BYTES.get(spec.dtype)
    if item is None:
        raise FrameError(
            f"{name}: dtype {spec.dtype!r:.40}; known are {', '.join(ITEM_BYTES)} and {JSON_DTYPE}"
        )
    if math.prod(spec.shape) * item != spec.raw_length:
        raise FrameError(f"{name}: {spec.raw_length} bytes are no {spec.dtype}{list(spec.shape)}")
