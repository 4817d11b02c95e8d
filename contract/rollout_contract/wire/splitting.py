"""Splits a batch that is too large for one frame, along its environments."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace

from rollout_contract.errors import FrameError
from rollout_contract.messages import EpisodeSummary
from rollout_contract.wire.format import ALIGNMENT, HEADER_ROOM, JSON_DTYPE, shown
from rollout_contract.wire.records import BatchHeader, Leaf


def split(
    header: BatchHeader, leaves: Sequence[Leaf], *, max_bytes: int
) -> list[tuple[BatchHeader, list[Leaf]]]:
    """Parts of a batch, along its environments, none of whose frames is over `max_bytes`; one part if it fits.

    Sequence numbers run on from the header's, episodes stay with the first part. Leaves must be uncompressed and have
    the number of environments as their first dimension. FrameError if a single environment is over the limit.
    """
    num_envs = header.shape[0]
    fixed = HEADER_ROOM + ALIGNMENT * len(leaves)
    if fixed + sum(leaf.length for leaf in leaves) <= max_bytes or num_envs == 0:
        return [(header, list(leaves))]
    per_env = max(1, sum(_largest_row(leaf, num_envs) for leaf in leaves))
    room = max(0, max_bytes - fixed) // per_env
    if room < 1:
        raise FrameError(
            f"one environment's share of the batch takes {per_env} bytes of at most {max(0, max_bytes - fixed)}:"
            " raise stream.maxFrameBytes or lower collector.framesPerBatch"
        )
    starts = range(0, num_envs, room)
    parts = []
    for number, first in enumerate(starts):
        last = min(first + room, num_envs)
        shape = (last - first, *header.shape[1:])
        part = replace(
            header,
            sequence=header.sequence + number,
            shape=shape,
            frames=math.prod(shape),
            part=(number, len(starts)),
            episodes=header.episodes if number == 0 else EpisodeSummary(),
        )
        parts.append((part, [_rows(leaf, first, last, num_envs) for leaf in leaves]))
    return parts


def _largest_row(leaf: Leaf, num_envs: int) -> int:
    """Bytes of the environment that takes most of a leaf. Tensors' rows are equal, texts are not."""
    if leaf.dtype == JSON_DTYPE:
        return max(
            (len(json.dumps(row, separators=(",", ":"))) + 2 for row in json.loads(bytes(leaf.data))),
            default=0,
        )
    return leaf.length // num_envs


def _rows(leaf: Leaf, first: int, last: int, num_envs: int) -> Leaf:
    if leaf.compression != "none" or not leaf.shape or leaf.shape[0] != num_envs:
        raise FrameError(
            f"{shown(leaf.name)}: only an uncompressed leaf of {num_envs} rows can be split, not {leaf.shape}"
        )
    shape = (last - first, *leaf.shape[1:])
    if leaf.dtype == JSON_DTYPE:
        rows = json.loads(bytes(leaf.data))[first:last]
        return replace(
            leaf, shape=shape, data=json.dumps(rows, separators=(",", ":")).encode(), raw_length=None
        )
    step = leaf.length // num_envs
    return replace(
        leaf, shape=shape, data=memoryview(leaf.data).cast("B")[first * step : last * step], raw_length=None
    )
