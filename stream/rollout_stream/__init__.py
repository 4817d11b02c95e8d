"""The data plane: what a learner, a worker, the operator and the gateway say to Redis.

    from rollout_stream import RolloutStream

Importing this loads no torch; the first `batch.data` does.
"""

from rollout_stream.batch import Batch
from rollout_stream.control import Control
from rollout_stream.settings import JobSettings, StreamLimits
from rollout_stream.stream import RolloutStream
from rollout_stream.weights import Weights, WeightsReader
from rollout_stream.writer import StreamWriter

__all__ = [
    "Batch",
    "Control",
    "JobSettings",
    "RolloutStream",
    "StreamLimits",
    "StreamWriter",
    "Weights",
    "WeightsReader",
]
