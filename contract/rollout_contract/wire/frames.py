"""Frames whole: from a header and leaves to bytes, and back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from rollout_contract.errors import FrameError
from rollout_contract.wire.checks import check_buffers, check_tree
from rollout_contract.wire.format import MAX_RAW_BYTES, BytesLike, aligned
from rollout_contract.wire.header import body_size_of, header_of, parse_header
from rollout_contract.wire.prefix import check_digest, prefix_of, read_prefix
from rollout_contract.wire.records import BatchHeader, BufferSpec, Frame, Leaf


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
    return [prefix_of(replace(header, buffers=specs), pieces, size), *pieces]


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
    check_buffers(header.buffers, len(view), what="to encode")
    return prefix_of(header, [view], len(view))


def decode(frame: BytesLike, *, max_raw_bytes: int = MAX_RAW_BYTES) -> Frame:
    """Checks magic, version, sizes, bounds and digest, and gives the header and a view on the body.

    Reads nothing that it has not checked and allocates nothing in proportion to a number that it has not checked.
    FrameError that names what is wrong, for every other input.
    """
    view = memoryview(frame).cast("B")
    text, start = read_prefix(view)
    document, body = parse_header(text), view[start:]
    size = body_size_of(document)
    if size != len(body):
        raise FrameError(
            f"the body has {len(body)} bytes, its header says {size}: the frame is truncated or damaged"
        )
    check_digest(view[:start], body)
    header = header_of(document)
    check_buffers(header.buffers, len(body), what="to read", max_raw_bytes=max_raw_bytes)
    check_tree(header)
    return Frame(header, body)


def _pieces(specs: Sequence[BufferSpec], leaves: Sequence[Leaf]) -> Iterator[BytesLike]:
    end = 0
    for spec, leaf in zip(specs, leaves, strict=True):
        if spec.offset > end:
            yield bytes(spec.offset - end)
        if spec.length:
            yield leaf.data if isinstance(leaf.data, bytes) else memoryview(leaf.data).cast("B")
        end = spec.offset + spec.length
    check_buffers(specs, end, what="to encode")
