"""A frame's prefix, both ways: magic, length, header with its digest, zeros up to the body."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import replace

import xxhash

from rollout_contract.errors import FrameError
from rollout_contract.wire.checks import check_tree
from rollout_contract.wire.format import MAGIC, MAX_HEADER_BYTES, BytesLike, aligned
from rollout_contract.wire.header import DIGEST_HEAD, NO_DIGEST, header_json
from rollout_contract.wire.records import BatchHeader

_PREFIX = struct.Struct("<4sI")
_DIGEST_AT = _PREFIX.size + len(DIGEST_HEAD)
_DIGEST_END = _DIGEST_AT + len(NO_DIGEST)
_SHORTEST = len(DIGEST_HEAD) + len(NO_DIGEST) + 1


def prefix_of(header: BatchHeader, pieces: Sequence[BytesLike], body_size: int) -> bytes:
    """The prefix of a frame whose body are these pieces. FrameError where header or leaves do not fit."""
    check_tree(header)
    text = header_json(header, body_size)
    if len(text) > MAX_HEADER_BYTES:
        header = replace(header, episodes=replace(header.episodes, newest=()))
        text = header_json(header, body_size)
    if len(text) > MAX_HEADER_BYTES:
        raise FrameError(
            f"the header of {len(header.buffers)} leaves takes {len(text)} bytes of at most {MAX_HEADER_BYTES}: "
            "use fewer or shorter keys"
        )
    prefix = bytearray(aligned(_PREFIX.size + len(text)))
    _PREFIX.pack_into(prefix, 0, MAGIC, len(text))
    prefix[_PREFIX.size : _PREFIX.size + len(text)] = text
    prefix[_DIGEST_AT:_DIGEST_END] = digest_of(memoryview(prefix), pieces)
    return bytes(prefix)


def digest_of(prefix: memoryview, pieces: Sequence[BytesLike]) -> bytes:
    """xxh3-64 in hexadecimal over the whole frame, with the digest's own place as zeros."""
    state = xxhash.xxh3_64()
    state.update(prefix[:_DIGEST_AT])
    state.update(NO_DIGEST)
    state.update(prefix[_DIGEST_END:])
    for piece in pieces:
        state.update(piece)
    return state.hexdigest().encode()


def read_prefix(view: memoryview) -> tuple[bytes, int]:
    """The header's text and the body's start, both inside of the view. FrameError for bytes that are no frame."""
    if len(view) < _PREFIX.size:
        raise FrameError(f"{len(view)} bytes are no frame: it has at least {_PREFIX.size}")
    magic, length = _PREFIX.unpack_from(view)
    if magic != MAGIC:
        raise FrameError(f"magic {magic!r} instead of {MAGIC!r}: these bytes are no frame of ours")
    if not _SHORTEST <= length <= MAX_HEADER_BYTES:
        raise FrameError(f"a header of {length} bytes: allowed are {_SHORTEST} to {MAX_HEADER_BYTES}")
    start = aligned(_PREFIX.size + length)
    if start > len(view):
        raise FrameError(f"the frame ends after {len(view)} bytes, inside of its header of {length}")
    text = view[_PREFIX.size : _PREFIX.size + length].tobytes()
    if not text.startswith(DIGEST_HEAD):
        raise FrameError("the header does not begin with its digest: the frame is damaged")
    if view[_PREFIX.size + length : start].tobytes().strip(b"\0"):
        raise FrameError("the padding behind the header is not zero: the frame is damaged")
    return text, start


def check_digest(prefix: memoryview, body: memoryview) -> None:
    """FrameError where the bytes are not those that the digest in the prefix was taken of."""
    found, said = digest_of(prefix, [body]), prefix[_DIGEST_AT:_DIGEST_END].tobytes()
    if found != said:
        raise FrameError(
            f"digest {found.decode()} instead of {said.decode(errors='replace')}: the bytes were changed"
        )
