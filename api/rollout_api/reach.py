"""Which server holds a job's stream, and how the gateway gets in: one session per server.

Most jobs are on the default server. A job that names one of its own may name Secrets too; the gateway reads no Secrets, so
those that it may use are mounted for it, as for the operator: `<directory>/<namespace>/<secret>/<key>`. Only Secrets of the
job's own namespace are ever used for it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from rollout_contract.errors import StreamUnavailable
from rollout_contract.spec import KeyRef, RolloutJob
from rollout_stream.aio import AsyncSession
from rollout_stream.connection import ServerAddress
from rollout_stream.session import Backoff

logger = logging.getLogger(__name__)

PATIENCE_S: Final = 1.0
"""How long one call waits for a server that is away: somebody is waiting for the answer."""
PASSWORD_TTL_S: Final = 5.0
MAX_SESSIONS: Final = 64
"""Servers that are kept open; the one that was not used for longest is closed for another."""


RETIRE_S: Final = 60.0


class CredentialsMissing(StreamUnavailable):
    """The job's server wants a password that the gateway was not given."""


class Passwords:
    """Secrets as files, read anew every few seconds, so that a changed one holds soon."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: dict[Path, tuple[str, float]] = {}

    def read(self, path: Path) -> str:
        """What the file holds. OSError."""
        text, until = self._known.get(path, ("", 0.0))
        if self._clock() >= until:
            text = path.read_text().strip()
            self._known[path] = (text, self._clock() + PASSWORD_TTL_S)
        return text


class Reach:
    """Addresses by job: the default server's, or that of the job."""

    def __init__(
        self,
        default: ServerAddress,
        *,
        password_file: Path | None = None,
        secrets_dir: Path | None = None,
        passwords: Passwords | None = None,
    ) -> None:
        self._default = default
        self._password_file = password_file
        self._secrets_dir = secrets_dir
        self._passwords = passwords or Passwords()

    def default(self) -> ServerAddress:
        """The default server. CredentialsMissing if its password cannot be read."""
        if self._password_file is None:
            return self._default
        try:
            password = self._passwords.read(self._password_file)
        except OSError as error:
            logger.warning("the password file of the default server: %s", error.strerror)
            raise CredentialsMissing("the default server's password cannot be read") from error
        return with_password(self._default, password)

    def __call__(self, job: RolloutJob) -> ServerAddress:
        """The address of a job's server. CredentialsMissing if a Secret that it names was not given to the gateway."""
        redis, namespace = job.spec.redis, job.metadata.namespace
        if redis.host is None:
            return self.default()
        tls = redis.tls if redis.tls is not None and redis.tls.enabled else None
        ca = self._path(namespace, tls.ca_secret_ref) if tls and tls.ca_secret_ref else None
        password = None
        if redis.auth_secret_ref is not None:
            password = self._password(namespace, redis.auth_secret_ref)
        return ServerAddress(
            host=redis.host,
            port=redis.port,
            password=password,
            tls=tls is not None,
            ca_file=str(ca) if ca else None,
        )

    def _password(self, namespace: str, ref: KeyRef) -> str:
        try:
            return self._passwords.read(self._path(namespace, ref))
        except OSError as error:
            raise _missing(namespace, ref) from error

    def _path(self, namespace: str, ref: KeyRef) -> Path:
        path = self._secrets_dir / namespace / ref.name / ref.key if self._secrets_dir else None
        if path is None or not path.is_file():
            raise _missing(namespace, ref)
        return path


def _missing(namespace: str, ref: KeyRef) -> CredentialsMissing:
    return CredentialsMissing(
        f"the gateway was not given key {ref.key} of Secret {namespace}/{ref.name}; it reads no Secrets by itself"
    )


def with_password(address: ServerAddress, password: str) -> ServerAddress:
    """The address with this password."""
    return ServerAddress(
        host=address.host,
        port=address.port,
        username=address.username,
        password=password or None,
        tls=address.tls,
        ca_file=address.ca_file,
        database=address.database,
    )


class Servers(Protocol):
    """Sessions with the servers that hold streams."""

    def of(self, job: RolloutJob) -> AsyncSession:
        """The session with a job's server; opens no connection yet. CredentialsMissing."""
        ...

    def default(self) -> AsyncSession:
        """The session with the server of jobs that name none. CredentialsMissing."""
        ...


@dataclass(frozen=True, slots=True)
class OneServer:
    """All jobs on one server: the local run."""

    session: AsyncSession

    def of(self, job: RolloutJob) -> AsyncSession:
        """See `Servers`."""
        return self.session

    def default(self) -> AsyncSession:
        """See `Servers`."""
        return self.session


class Sessions:
    """`Servers` by address. Belongs to one event loop; close it."""

    def __init__(self, reach: Reach) -> None:
        self._reach = reach
        self._open: dict[ServerAddress, AsyncSession] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def of(self, job: RolloutJob) -> AsyncSession:
        """See `Servers`."""
        return self._session(self._reach(job))

    def default(self) -> AsyncSession:
        """See `Servers`."""
        return self._session(self._reach.default())

    async def close(self) -> None:
        """Close every connection."""
        for task in self._closing:
            task.cancel()
        await asyncio.gather(*self._closing, return_exceptions=True)
        sessions, self._open = self._open, {}
        for session in sessions.values():
            await session.close()

    def _session(self, address: ServerAddress) -> AsyncSession:
        session = self._open.pop(address, None) or AsyncSession(address, backoff=Backoff(PATIENCE_S))
        self._open[address] = session  # the newest last
        if len(self._open) > MAX_SESSIONS:
            task = asyncio.create_task(_close_later(self._open.pop(next(iter(self._open)))))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)
        return session


async def _close_later(session: AsyncSession) -> None:
    try:
        await asyncio.sleep(RETIRE_S)  # somebody may be in the middle of a call
    finally:
        await session.close()
