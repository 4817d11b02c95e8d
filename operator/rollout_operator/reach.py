"""Where the operator itself finds a job's server, and with which credentials.

The default server's password comes in a variable of the operator's own pod. A job that names a server of its own names a
Secret too; the operator has no right to read Secrets, so the ones that it may use are mounted for it:
`<secrets directory>/<namespace>/<secret>/<key>`, written there by the chart or whoever runs the operator.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from rollout_contract.spec import KeyRef, RolloutJob
from rollout_operator.troubles import CredentialsMissing
from rollout_stream.connection import ServerAddress


@dataclass(frozen=True, slots=True)
class Reach:
    """Addresses by job. Reads files each time, so that a changed password holds from the next look on."""

    default: ServerAddress
    password_file: Path | None = None
    """Where the default server's password is, if it comes as a file."""
    secrets_dir: Path | None = field(default=None)

    def __call__(self, job: RolloutJob) -> ServerAddress:
        """The address of a job's server. CredentialsMissing if a Secret that it names was not given to the operator."""
        redis = job.spec.redis
        if redis.host is None:
            return self._default_address()
        namespace = job.metadata.namespace
        password = self._read(namespace, redis.auth_secret_ref) if redis.auth_secret_ref else None
        tls = redis.tls is not None and redis.tls.enabled
        ca = redis.tls.ca_secret_ref if tls and redis.tls else None
        return ServerAddress(
            host=redis.host,
            port=redis.port,
            password=password,
            tls=tls,
            ca_file=str(self._path(namespace, ca)) if ca else None,
        )

    def _default_address(self) -> ServerAddress:
        if self.password_file is None:
            return self.default
        try:
            password = self.password_file.read_text().strip()
        except OSError as error:
            message = f"the password of the default server cannot be read from {self.password_file}: {error.strerror}"
            raise CredentialsMissing(message) from error
        address = self.default
        return ServerAddress(
            host=address.host,
            port=address.port,
            username=address.username,
            password=password,
            tls=address.tls,
            ca_file=address.ca_file,
            database=address.database,
        )

    def _read(self, namespace: str, ref: KeyRef) -> str:
        try:
            return self._path(namespace, ref).read_text().strip()
        except OSError as error:
            raise self._missing(namespace, ref) from error

    def _path(self, namespace: str, ref: KeyRef) -> Path:
        if self.secrets_dir is None:
            raise self._missing(namespace, ref)
        path = self.secrets_dir / namespace / ref.name / ref.key
        if not path.is_file():
            raise self._missing(namespace, ref)
        return path

    def _missing(self, namespace: str, ref: KeyRef) -> CredentialsMissing:
        return CredentialsMissing(
            f"the operator was not given key {ref.key} of Secret {namespace}/{ref.name}: it reads no Secrets by itself; "
            "name it in the chart's redis.jobSecrets, or use the default server"
        )
