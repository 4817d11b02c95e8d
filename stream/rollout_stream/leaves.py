"""A frame's leaves made ready to use, without torch: unpacked, and JSON read and checked.

Called by the reader's thread for every batch, so that a leaf that cannot be read is noticed before the batch is handed
out, and unpacking costs the learner's thread nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from rollout_contract.errors import FrameError
from rollout_contract.wire import JSON_DTYPE, KEY_SEPARATOR, BytesLike, Frame
from rollout_stream.compression import unpacked

Contents: TypeAlias = Mapping[str, BytesLike | list[Any]]


def contents_of(frame: Frame) -> Contents:
    """Per leaf its raw bytes (the frame's own memory where it is not compressed), or its values for a JSON leaf.

    FrameError if a leaf does not unpack, or its JSON is not nested like its shape.
    """
    contents: dict[str, BytesLike | list[Any]] = {}
    for spec in frame.header.buffers:
        data = unpacked(frame, spec)
        contents[spec.name] = _values(spec.name, data, spec.shape) if spec.dtype == JSON_DTYPE else data
    return contents


def _values(name: str, data: BytesLike, shape: Sequence[int]) -> list[Any]:
    shown = repr(name.replace(KEY_SEPARATOR, "."))
    try:
        value = json.loads(bytes(data))
    except (ValueError, RecursionError) as error:
        raise FrameError(f"leaf {shown}: its bytes are no JSON ({error})") from error
    if not _has_shape(value, shape):
        raise FrameError(f"leaf {shown}: its JSON is no lists of shape {list(shape)}")
    values: list[Any] = value
    return values


def _has_shape(value: object, shape: Sequence[int]) -> bool:
    if not shape:
        return True
    return (
        isinstance(value, list)
        and len(value) == shape[0]
        and all(_has_shape(part, shape[1:]) for part in value)
    )
