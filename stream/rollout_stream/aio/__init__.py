"""The asyncio twin of what the operator and the gateway need: sessions, control, progress, weights.

The same names and the same behaviour as in `session`, `control` and `weights`; what is said to the server and how its
answers are read is shared (`calls`, `progress`, `publishing`). No torch, as everywhere but in `codec`.
"""

from __future__ import annotations

from rollout_stream.aio.control import Control, check_server, find_job
from rollout_stream.aio.session import PATIENCE_S, AsyncSession
from rollout_stream.aio.weights import Weights, WeightsUpload

__all__ = [
    "PATIENCE_S",
    "AsyncSession",
    "Control",
    "Weights",
    "WeightsUpload",
    "check_server",
    "find_job",
]
