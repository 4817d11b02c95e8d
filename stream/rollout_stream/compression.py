"""Compresses leaves where it pays, and unpacks them within the lengths that the header states.

Called by the worker before a frame is made and by the codec when one is read. The libraries are imported when they are
first needed: a stream without compression does not need them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from rollout_contract.errors import FrameError
from rollout_contract.wire import KEY_SEPARATOR, BufferSpec, BytesLike, Frame, Leaf

PAYS_BELOW: Final = 0.9
"""A compressed leaf is kept if it takes less than this share of its bytes."""
SMALLEST: Final = 512
"""Bytes below which compressing is not tried."""
SAMPLE_BYTES: Final = 256 * 1024
"""A large leaf is tried on its beginning first: noise is recognised without compressing all of it."""


def compressed(leaf: Leaf, kind: str) -> Leaf:
    """The leaf, compressed with `zstd` or `lz4` if that pays; otherwise (and for `none`) as it is."""
    if kind == "none" or leaf.compression != "none" or leaf.length < SMALLEST:
        return leaf
    data = memoryview(leaf.data).cast("B")
    if len(data) > 4 * SAMPLE_BYTES and len(_pack(data[:SAMPLE_BYTES], kind)) >= PAYS_BELOW * SAMPLE_BYTES:
        return leaf
    packed = _pack(data, kind)
    if len(packed) >= PAYS_BELOW * len(data):
        return leaf
    return replace(leaf, data=packed, compression=kind, raw_length=len(data))


def unpacked(frame: Frame, spec: BufferSpec) -> BytesLike:
    """The leaf's raw bytes: the frame's own memory where it is not compressed. FrameError if they do not unpack."""
    data = frame.buffer(spec)
    if spec.compression == "none":
        return data
    try:
        raw = _unpack(data, spec)
    except Exception as error:  # each library has errors of its own, and all of them mean damaged bytes
        raise FrameError(f"leaf {_shown(spec)}: does not unpack as {spec.compression}: {error}") from error
    if len(raw) != spec.raw_length:
        raise FrameError(f"leaf {_shown(spec)}: unpacks to {len(raw)} bytes instead of {spec.raw_length}")
    return raw


def _pack(data: memoryview, kind: str) -> bytes:
    packed: bytes
    match kind:
        case "lz4":
            import lz4.block

            packed = lz4.block.compress(data, store_size=False)
        case "zstd":
            import zstandard

            packed = zstandard.ZstdCompressor(level=1).compress(data)
        case _:
            raise ValueError(f"compression {kind!r}; known are none, zstd and lz4")
    return packed


def _unpack(data: memoryview, spec: BufferSpec) -> bytes:
    raw: bytes
    if spec.compression == "lz4":
        import lz4.block

        raw = lz4.block.decompress(data, uncompressed_size=spec.raw_length)
    else:
        import zstandard

        # The frame's own size field is not trusted: no more than the header's length is ever allocated.
        parameters = zstandard.get_frame_parameters(bytes(data[:32]))
        if parameters.content_size not in (0, spec.raw_length, zstandard.CONTENTSIZE_UNKNOWN):
            raise ValueError(f"it says that it holds {parameters.content_size} bytes")
        raw = zstandard.ZstdDecompressor().decompress(data, max_output_size=spec.raw_length)
    return raw


def _shown(spec: BufferSpec) -> str:
    return repr(spec.name.replace(KEY_SEPARATOR, "."))
