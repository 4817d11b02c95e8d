"""Tells the stream, before the first batch, what this worker's data and weights look like.

The first worker of a job sets both; one that differs ends with exit code 64, before it has written anything.
"""

from __future__ import annotations

from rollout_contract import wire
from rollout_contract.messages import Layout
from rollout_stream.writer import StreamWriter
from rollout_worker.envs.layout import BlockLayout
from rollout_worker.weights import weights_layout_of


def data_layout_of(layout: BlockLayout) -> Layout:
    """Dtype and shape of one frame's leaves."""
    return Layout(
        {
            wire.join_key(leaf.key): {"dtype": leaf.dtype, "shape": list(leaf.shape[2:])}
            for leaf in layout.data
        }
    )


def declare_layouts(writer: StreamWriter, layout: BlockLayout, policy: object) -> None:
    """LayoutMismatch that names every difference to what the job's stream holds."""
    writer.declare_layout("data", data_layout_of(layout))
    writer.declare_layout("weights", weights_layout_of(policy))
