"""What the operator brings to every job: default server, image, command, limits of its own. Read once, at the start.

The local run makes one with its embedded server and its own interpreter as the command; in a cluster it comes from the
chart's values.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rollout_contract.podenv import HealthAddress, StreamAddress
from rollout_contract.spec import KeyRef

DEFAULT_HEALTH = HealthAddress()


@dataclass(frozen=True, slots=True)
class OperatorSettings:
    """Defaults and limits. Durations in seconds."""

    redis: StreamAddress
    """The server of jobs that name none."""
    redis_secret: KeyRef | None = None
    """The Secret, in the job's namespace, with that server's password; None: it has none."""
    redis_ca_secret: KeyRef | None = None
    """The Secret, in the job's namespace, with the certificate of that server's authority; None: a public one."""
    worker_image: str = ""
    worker_command: tuple[str, ...] = ()
    """What a worker's container runs where its template names no command; empty: what the image says."""
    code_dirs: tuple[str, ...] = ()
    """Directories on every worker's import path, after the job's own code."""
    default_cpus: int = 1
    """Processors of a worker whose template says nothing about them."""
    health: HealthAddress = field(default_factory=lambda: DEFAULT_HEALTH)
    grace_s: int = 60
    """How long a worker may take from SIGTERM to its end, where its template does not say."""
    worker_log_format: str = ""
    """`json` or `text`; empty: what a worker does by itself (text)."""
    worker_log_level: str = ""
    """As `logging` spells it; empty: INFO."""
    gateway_url: str = ""
    """Base URL of the gateway; empty: there is none."""
    observe_interval_s: float = 10.0
    """A running job is looked at this often, though nothing happens: the stream has no watch."""
    progress_interval_s: float = 10.0
    """Numbers in the status are written at most this often."""
    progress_change: float = 0.01
    """And only if they changed by this part of themselves."""

    trust_unknown_eviction: bool = False
    """Whether a job may start on a server that does not tell its `maxmemory-policy`."""

    def job_url(self, namespace: str, name: str) -> str | None:
        """Where the gateway shows a job."""
        if not self.gateway_url:
            return None
        return f"{self.gateway_url.rstrip('/')}/v1/namespaces/{namespace}/rolloutjobs/{name}"
