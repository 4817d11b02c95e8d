"""What the operator hands a worker: one JSON document in one variable, both directions in one place.

Secrets never stand in the document: they come in variables of their own, filled from a Secret by the cluster.
"""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.alias_generators import to_camel

from rollout_contract.errors import Fault, SpecError
from rollout_contract.names import JobRef, WorkerId
from rollout_contract.spec import (
    CollectorSpec,
    Determinism,
    Device,
    EnvSpec,
    PolicySpec,
    StreamSpec,
    WeightsSpec,
)

WORKER = "ROLLOUT_WORKER"
"""Variable: the document of `WorkerDocument`, at most MAX_DOCUMENT_BYTES."""
REDIS_PASSWORD = "ROLLOUT_REDIS_PASSWORD"  # noqa: S105 - the name of a variable, not a secret
"""Variable: password of the stream's server; unset = none."""
ENV_KWARGS = "ROLLOUT_ENV_KWARGS"
"""Variable: the text that `env.kwargsFrom` names, JSON or YAML; filled by the cluster."""
TERMINATION_LOG = "ROLLOUT_TERMINATION_LOG"
"""Variable: file for the worker's last words (default /dev/termination-log): exception type and text first."""
HEALTH_FILE = "ROLLOUT_HEALTH_FILE"
"""Variable: where the worker writes the port that it chose, if the document's health port is 0."""
NODE_NAME = "ROLLOUT_NODE_NAME"
"""Variable: the node that runs the pod, for the heartbeat."""
STREAM_URL = "ROLLOUT_STREAM_URL"
"""Variable for learners: `redis://[user@]host:port` without the password."""
JOB = "ROLLOUT_JOB"
"""Variable for learners: `<namespace>/<name>`."""
GATEWAY_URL = "ROLLOUT_GATEWAY_URL"
"""Variable for learners: base URL of the REST interface."""
TOKEN = "ROLLOUT_TOKEN"  # noqa: S105 - the name of a variable, not a secret
"""Variable for learners and clients: bearer token of the REST interface."""
RUN_DIR = "ROLLOUT_RUN_DIR"
"""Variable for learners of a local run: where results (curves, checkpoints) belong."""

MAX_DOCUMENT_BYTES = 96 * 1024


class _Part(BaseModel):
    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        frozen=True,
        extra="forbid",
        arbitrary_types_allowed=False,
    )


class StreamAddress(_Part):
    """Where the data plane is. The password comes in `REDIS_PASSWORD`, never here."""

    host: str
    port: int
    username: str | None = None
    tls: bool = False
    ca_file: str | None = None

    @property
    def url(self) -> str:
        """`redis[s]://[user@]host:port`, without the password: fit for logs and errors."""
        user = f"{self.username}@" if self.username else ""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'rediss' if self.tls else 'redis'}://{user}{host}:{self.port}"


class HealthAddress(_Part):
    """Where the worker serves /healthz and /readyz. Port 0: the worker chooses one and writes it to `HEALTH_FILE`."""

    host: str = "0.0.0.0"  # noqa: S104 - the kubelet's probes come from outside of the pod
    port: int = 8081


class StrictShare(_Part):
    """A worker's part of the job-wide numbers with `determinism: Strict`, given out in advance."""

    total_frames: int | None = None
    """Frames that this worker appends in all; None = endless."""
    init_random_frames: int = 0


class WorkerDocument(_Part):
    """A worker's part of the contract."""

    namespace: str
    name: str
    uid: str
    group: str
    group_number: int
    """Position of the group in the sorted list of group names."""
    index: int
    attempt: int
    first_env_index: int
    """`env_index` (see `seeds`) of this worker's first environment: index × envsPerWorker."""
    seed: int
    env: EnvSpec
    policy: PolicySpec
    collector: CollectorSpec
    stream: StreamSpec
    weights: WeightsSpec
    determinism: Determinism
    strict_share: StrictShare | None = None
    device: Device
    shared_memory_bytes: int | None = None
    """What the group's `sharedMemory` allows the environments' blocks; unset: what the machine or the pod has."""
    processes: int
    """Child processes that step the environments: the spec's number, or what the pod's CPU limit gives."""
    redis: StreamAddress
    health: HealthAddress = HealthAddress()
    code_dirs: tuple[str, ...] = ()
    """Directories put at the head of the worker's import path (spec.code, or the manifest's directory)."""
    grace_seconds: int = 60
    """How long the worker may take from SIGTERM to its end."""

    @property
    def job(self) -> JobRef:
        """The job that this worker belongs to."""
        return JobRef(self.namespace, self.name, self.uid)

    @property
    def worker(self) -> WorkerId:
        """This attempt."""
        return WorkerId(self.group, self.index, self.attempt)


def to_env(document: WorkerDocument) -> dict[str, str]:
    """The variables that carry a document. SpecError if it is over MAX_DOCUMENT_BYTES."""
    text = document.model_dump_json(by_alias=True, exclude_none=True)
    if (size := len(text.encode())) > MAX_DOCUMENT_BYTES:
        message = (
            f"a worker's part of the job takes {size} bytes of at most {MAX_DOCUMENT_BYTES}: shorten kwargs"
        )
        raise SpecError([Fault("spec", None, message)])
    return {WORKER: text}


def from_env(environ: Mapping[str, str]) -> WorkerDocument:
    """The document of a process' environment. SpecError that names the variable and every fault."""
    text = environ.get(WORKER)
    if text is None:
        raise SpecError(
            [Fault(WORKER, None, f"the variable {WORKER} is not set: a worker is started by the operator")]
        )
    try:
        return WorkerDocument.model_validate_json(text)
    except ValidationError as error:
        faults = [
            Fault(f"{WORKER}.{'.'.join(map(str, e['loc']))}", None, e["msg"])
            for e in error.errors(include_input=False)
        ]
        raise SpecError(faults) from error


def redis_password(environ: Mapping[str, str]) -> str | None:
    """The password of the stream's server; None without one.

    Without white space around it, as operator and gateway read it from a file: a Secret that was made from a file often ends
    with a line's end.
    """
    return environ.get(REDIS_PASSWORD, "").strip() or None
