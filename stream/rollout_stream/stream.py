"""The learner's door: `RolloutStream`.

from rollout_stream import RolloutStream

stream = RolloutStream.connect("redis://localhost:6379", job="default/cartpole")
for batch in stream.batches(group="learner"):
    loss = update(policy, batch.data)
    stream.weights.publish(policy)
    batch.ack()
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Final, Self

from rollout_contract.errors import JobNotFound
from rollout_contract.keys import JobKeys, current
from rollout_contract.messages import Layout
from rollout_contract.names import JobRef
from rollout_stream.batch import Batch
from rollout_stream.calls import Commands, JobCalls
from rollout_stream.connection import ServerAddress
from rollout_stream.control import Control
from rollout_stream.reader import BatchReader
from rollout_stream.rounds import Rounds
from rollout_stream.session import Backoff, Session
from rollout_stream.weights import Weights

PATIENCE_S: Final = 300.0
"""How long a learner waits for a server that is away."""
WAIT_FOR_JOB_S: Final = 30.0
GATEWAY_S: Final = 20.0
"""How long a gateway may take to answer."""


class RolloutStream:
    """A job's batches, weights and control, for a learner. Close it, or use it as a context manager."""

    def __init__(self, session: Session, job: JobRef) -> None:
        self.session = session
        self.job = job
        self.weights = Weights(session, job)
        """Publish and look at policy versions."""
        self.control = Control(session, job)
        """Seed, progress, limits, and the job's other controls."""
        self._calls = JobCalls(JobKeys.of(job))
        self._readers: list[BatchReader] = []

    @classmethod
    def connect(
        cls,
        url: str | None = None,
        *,
        job: str | None = None,
        password: str | None = None,
        ca_file: str | None = None,
        patience_s: float = PATIENCE_S,
        wait_for_job_s: float = WAIT_FOR_JOB_S,
    ) -> RolloutStream:
        """The stream of a job, `<namespace>/<name>` (without a namespace: `default`).

        What is not given is taken from the variables that a learner beside a job has (`ROLLOUT_STREAM_URL`, `ROLLOUT_JOB`,
        `ROLLOUT_REDIS_PASSWORD`). A job that is not there yet is waited for. ValueError for a wrong address or name,
        StreamUnavailable, JobNotFound.
        """
        address, name = _settings_of(os.environ, url=url, job=job, password=password, ca_file=ca_file)
        session = Session(address, backoff=Backoff(patience_s))
        try:
            return cls(session, _wait_for_job(session, name, wait_for_job_s))
        except BaseException:
            session.close()
            raise

    @classmethod
    def from_gateway(
        cls,
        url: str | None = None,
        *,
        token: str | None = None,
        job: str | None = None,
        password: str | None = None,
        gateway_ca_file: str | None = None,
        ca_file: str | None = None,
        patience_s: float = PATIENCE_S,
        wait_for_job_s: float = WAIT_FOR_JOB_S,
    ) -> RolloutStream:
        """The stream of a job, whose server the gateway at `url` names; batches then come from that server itself.

        A gateway hands out no secrets: the server's `password` is given here, or is in `ROLLOUT_REDIS_PASSWORD`. What else
        is not given is taken from `ROLLOUT_GATEWAY_URL`, `ROLLOUT_TOKEN` and `ROLLOUT_JOB`. `gateway_ca_file` and `ca_file`
        are the authorities of the gateway's and of the server's certificate. Errors as for `connect`.
        """
        from rollout_contract import podenv  # brings the whole contract: only learners need it
        from rollout_stream.gateway import TOKEN, stream_url

        gateway = url or os.environ.get(podenv.GATEWAY_URL)
        if not gateway:
            raise ValueError(f"which gateway? Give its url, or set {podenv.GATEWAY_URL}")
        job = job or os.environ.get(podenv.JOB)
        address = stream_url(
            gateway,
            _name_of(job),
            token=token or os.environ.get(TOKEN),
            ca_file=gateway_ca_file,
            timeout_s=GATEWAY_S,
        )
        return cls.connect(
            address,
            job=job,
            password=password,
            ca_file=ca_file,
            patience_s=patience_s,
            wait_for_job_s=wait_for_job_s,
        )

    def __repr__(self) -> str:
        return f"RolloutStream({self.job} at {self.session.address})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends all readers, gives back what they hold, and closes the connections. Allowed more than once."""
        for reader in self._readers:
            reader.close()
        self._readers.clear()
        self.session.close()

    def batches(
        self,
        group: str = "learner",
        prefetch: int = 4,
        *,
        consumer: str | None = None,
        expect: Layout | None = None,
    ) -> BatchReader:
        """The job's batches for one member of a group; each goes to one member of every group.

        At most `prefetch` batches are read ahead. Batches that are not acked come again: to this group's other readers
        when this one ends or dies. A `consumer` name of your own lets a restarted learner have its own batches at once.
        """
        reader = BatchReader(
            self.session,
            self._calls,
            self.job,
            group=group,
            prefetch=prefetch,
            consumer=consumer,
            expect=expect,
        )
        self._readers.append(reader)
        return reader

    def rounds(self, group: str = "learner") -> Iterator[tuple[Batch, ...]]:
        """One batch of every worker per round, in order of (group, index): for jobs with `determinism: Strict`.

        A worker whose share is done takes part no more. Ack every batch of a round. StreamError if the job does not say
        who its workers are.
        """
        slots = self.control.read_control().slots
        return Rounds(self.batches(group, prefetch=max(1, 4 * len(slots))), self.control, slots)


def _settings_of(
    environ: Mapping[str, str], *, url: str | None, job: str | None, password: str | None, ca_file: str | None
) -> tuple[ServerAddress, tuple[str, str]]:
    from rollout_contract import podenv  # brings the whole contract: only learners need it

    url = url or environ.get(podenv.STREAM_URL)
    job = job or environ.get(podenv.JOB)
    if not url or not job:
        raise ValueError(
            f"which stream? Give url and job (`<namespace>/<name>`), or set {podenv.STREAM_URL} and {podenv.JOB}"
        )
    address = ServerAddress.of(url, password=password or podenv.redis_password(environ), ca_file=ca_file)
    return address, _name_of(job)


def _name_of(job: str | None) -> tuple[str, str]:
    """Namespace and name. ValueError."""
    namespace, _, name = (job or "").rpartition("/")
    if not name or "/" in namespace or set(name + namespace) & set("{}"):
        raise ValueError(f"a job is `<namespace>/<name>`, not {job!r}")
    return namespace or "default", name


def _wait_for_job(session: Session, name: tuple[str, str], wait_s: float) -> JobRef:
    key = current(*name)
    until = time.monotonic() + wait_s
    while True:
        found = session.run(Commands("looking for the job", (("GET", key),), lambda a: a[0]))
        if found:
            return JobRef(*name, found.decode())
        if time.monotonic() >= until:
            raise JobNotFound(
                f"Redis at {session.address} knows no job {'/'.join(name)}: is it running, and is the name right?"
            )
        time.sleep(0.2)
