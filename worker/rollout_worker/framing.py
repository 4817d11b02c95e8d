"""A batch as frames: named, split along environments where it is too long, compressed where the job asks for it.

Pure but for the compression itself. An uncompressed batch is not copied: the frame's buffers are the block's memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rollout_contract import wire
from rollout_contract.podenv import WorkerDocument
from rollout_contract.quantities import to_bytes
from rollout_contract.spec import Compression
from rollout_stream.compression import compressed
from rollout_worker.collectors.sync import Batch, BatchLeaf


@dataclass(frozen=True, slots=True)
class Stamp:
    """What a batch is stamped with: the version that made it, and the epoch that its seeds come from."""

    policy_version: int
    seed_epoch: int


class Framer:
    """Makes frames for one worker."""

    def __init__(self, document: WorkerDocument) -> None:
        self._document = document
        self._max_bytes = to_bytes(document.stream.max_frame_bytes)
        kind = document.stream.compression
        self._compression = None if kind is Compression.NONE else kind.value.lower()

    def frames(
        self, batch: Batch, stamp: Stamp, *, sequence: int
    ) -> Iterator[tuple[wire.BatchHeader, list[wire.BytesLike]]]:
        """The batch's frames, in order of their sequence. FrameError if one environment's share is over the limit."""
        header = wire.BatchHeader(
            job=self._document.uid,
            worker=self._document.worker,
            sequence=sequence,
            shape=batch.shape,
            frames=batch.frames,
            policy_version=(stamp.policy_version, stamp.policy_version),
            seed_epoch=stamp.seed_epoch,
            episodes=batch.episodes,
        )
        leaves = [_wire_leaf(leaf) for leaf in batch.leaves]
        for part, part_leaves in wire.split(header, leaves, max_bytes=self._max_bytes):
            kind = self._compression
            stored = part_leaves if kind is None else [compressed(leaf, kind) for leaf in part_leaves]
            yield part, wire.gather(part, stored)


def _wire_leaf(leaf: BatchLeaf) -> wire.Leaf:
    array = leaf.array
    data: wire.BytesLike = array.data.cast("B") if array.size else b""
    return wire.Leaf(wire.join_key(leaf.key), leaf.dtype, array.shape, data)
