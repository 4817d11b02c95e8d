"""The closed sets of the spec, with the values as a manifest writes them."""

from __future__ import annotations

from enum import StrEnum


class EnvBackend(StrEnum):
    """Where a worker's environments run."""

    SERIAL = "Serial"
    PROCESS = "Process"


class OnError(StrEnum):
    """What an environment's failure does: end the worker, or start that environment again in place."""

    FAIL = "Fail"
    RESTART = "Restart"


class Exploration(StrEnum):
    """How actions are taken from the policy's distribution."""

    RANDOM = "Random"
    MODE = "Mode"
    MEAN = "Mean"
    MEDIAN = "Median"
    DETERMINISTIC = "Deterministic"


class CollectorMode(StrEnum):
    """The collector inside each worker.

    `Sync`: one, in the worker's process. `MultiSync`: several processes, one joint batch. `MultiAsync`: several, each
    batch as it is ready. `Async`: one background process that keeps collecting.
    """

    SYNC = "Sync"
    MULTI_SYNC = "MultiSync"
    MULTI_ASYNC = "MultiAsync"
    ASYNC = "Async"


class Coordination(StrEnum):
    """Between workers: independent producers, or rounds that close when every ready worker has delivered."""

    INDEPENDENT = "Independent"
    BARRIER = "Barrier"


class Determinism(StrEnum):
    """Whether two runs of one manifest give the same bytes."""

    BEST_EFFORT = "BestEffort"
    STRICT = "Strict"


class Device(StrEnum):
    """Where the policy runs; `Auto` follows the GPU limits of the template."""

    AUTO = "Auto"
    CPU = "Cpu"
    CUDA = "Cuda"


class UpdateType(StrEnum):
    """When an edited template reaches running workers: one by one after a drain, or with the next suspend."""

    ROLLING_REPLACE = "RollingReplace"
    ON_SUSPEND = "OnSuspend"


class CleanupPolicy(StrEnum):
    """What becomes of a job's keys in Redis: expire after the end, be deleted with the job, or stay."""

    EXPIRE = "Expire"
    DELETE = "Delete"
    RETAIN = "Retain"


class OnFull(StrEnum):
    """What a writer does at the high watermark."""

    BLOCK = "Block"
    DROP_NEWEST = "DropNewest"
    TRIM_ACKED = "TrimAcked"


class Compression(StrEnum):
    """Of a batch's buffers, each only where it pays."""

    NONE = "None"
    LZ4 = "Lz4"
    ZSTD = "Zstd"


class RateLimitType(StrEnum):
    """How reading and writing are tied to each other."""

    QUEUE = "Queue"
    MIN_SIZE = "MinSize"
    SAMPLE_TO_INSERT = "SampleToInsert"


class StartPolicy(StrEnum):
    """Whether the first batch waits for published weights."""

    IMMEDIATE = "Immediate"
    WAIT_FOR_WEIGHTS = "WaitForWeights"


class OnStale(StrEnum):
    """How the bound on staleness is kept: slow producers down, drop batches, or only mark them."""

    PACE = "Pace"
    DROP = "Drop"
    TAG = "Tag"


class ApplyAt(StrEnum):
    """The boundary at which a worker loads new weights."""

    BATCH = "Batch"
    TRAJECTORY = "Trajectory"
    STEP = "Step"


class FailureAction(StrEnum):
    """What a failed worker leads to: the job fails, a replacement that counts, or one that does not."""

    FAIL_JOB = "FailJob"
    REPLACE_WORKER = "ReplaceWorker"
    IGNORE = "Ignore"


class ExitCodeOperator(StrEnum):
    """Whether the exit code must be among the values, or none of them."""

    IN = "In"
    NOT_IN = "NotIn"


class ConditionStatus(StrEnum):
    """A condition holds, does not, or nobody knows yet."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"
