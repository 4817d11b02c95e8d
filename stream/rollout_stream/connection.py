"""How a server is reached: address, clients without hidden retries, and driver errors translated into ours.

Used by everything in this package. Knows nothing of jobs. No credentials ever stand in a text that is made here.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import redis
import redis.asyncio
import redis.asyncio.connection
import redis.asyncio.retry
import redis.backoff
import redis.retry
from redis import exceptions as driver

from rollout_contract.errors import RolloutError, StateLost, StreamError, StreamFull, StreamUnavailable
from rollout_stream.packing import CommandPacker

CONNECT_TIMEOUT_S: Final = 5.0
ANSWER_TIMEOUT_S: Final = 30.0
"""How long one command may take on the wire, sending included."""
READ_BYTES: Final = 1024 * 1024
"""How much one read from the socket takes: batches and weights are large."""

TRANSIENT: Final = (
    driver.ConnectionError,
    driver.TimeoutError,
    driver.BusyLoadingError,
    driver.ReadOnlyError,
    OSError,
)
"""What may go away by itself: restart, failover, a cut connection. The driver counts wrong credentials among them: see
`is_transient`."""


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """Where a server is. `str()` and `repr()` hold no password."""

    host: str = "localhost"
    port: int = 6379
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: bool = False
    ca_file: str | None = None
    socket_path: str | None = None
    database: int = 0

    @classmethod
    def of(cls, url: str, *, password: str | None = None, ca_file: str | None = None) -> ServerAddress:
        """The address of `redis[s]://[user[:password]@]host[:port][/database]` or `unix:///path`.

        A `password` given apart wins over the URL's. ValueError for anything else, without the URL's credentials.
        """
        parts = urlsplit(url)
        if parts.scheme == "unix" and parts.path:
            user = unquote(parts.username) if parts.username else None
            return cls(
                socket_path=unquote(parts.path), username=user, password=password or _unquoted(parts.password)
            )
        try:
            port = parts.port
        except ValueError:
            port = -1
        if parts.scheme not in ("redis", "rediss") or not parts.hostname or port == -1:
            raise ValueError("a stream's address is redis[s]://[user@]host[:port] or unix:///path")
        database = parts.path.strip("/")
        if database and not database.isdecimal():
            raise ValueError(f"the path of a stream's address is the number of a database, not {database!r}")
        return cls(
            host=parts.hostname,
            port=port or 6379,
            username=_unquoted(parts.username) or None,
            password=password or _unquoted(parts.password),
            tls=parts.scheme == "rediss",
            ca_file=ca_file,
            database=int(database or 0),
        )

    def __str__(self) -> str:
        return self.socket_path or f"{self.host}:{self.port}"

    def _options(self) -> dict[str, Any]:
        """What both of the driver's connection classes take."""
        options: dict[str, Any] = {
            "username": self.username,
            "password": self.password,
            "db": self.database,
            "protocol": 2,
            "socket_timeout": ANSWER_TIMEOUT_S,
            "driver_info": None,
        }
        if self.socket_path:
            return options | {"path": self.socket_path}
        options |= {
            "host": self.host,
            "port": self.port,
            "socket_connect_timeout": CONNECT_TIMEOUT_S,
            "socket_keepalive": True,
        }
        if self.tls:
            options |= {"ssl_ca_certs": self.ca_file, "ssl_min_version": ssl.TLSVersion.TLSv1_2}
        return options

    def connect(self, *, max_connections: int = 16) -> redis.Redis:
        """A client; the caller closes it. Opens no connection yet and never retries by itself."""
        kind: Any = redis.connection.Connection
        if self.socket_path:
            kind = redis.connection.UnixDomainSocketConnection
        elif self.tls:
            kind = redis.connection.SSLConnection
        retry = redis.retry.Retry(redis.backoff.NoBackoff(), 0)
        pool = redis.ConnectionPool(
            connection_class=kind,
            max_connections=max_connections,
            socket_read_size=READ_BYTES,
            retry=retry,
            command_packer=CommandPacker(),
            **self._options(),
        )
        client = redis.Redis.from_pool(pool)
        client.response_callbacks.clear()  # answers as the server gave them: the same for both twins
        return client

    def connect_async(self, *, max_connections: int = 32) -> redis.asyncio.Redis:
        """An asyncio client; the caller closes it. Waits for a free connection instead of failing."""
        kind: Any = redis.asyncio.connection.Connection
        if self.socket_path:
            kind = redis.asyncio.connection.UnixDomainSocketConnection
        elif self.tls:
            kind = redis.asyncio.connection.SSLConnection
        retry = redis.asyncio.retry.Retry(redis.backoff.NoBackoff(), 0)
        pool = redis.asyncio.BlockingConnectionPool(
            connection_class=kind,
            max_connections=max_connections,
            timeout=CONNECT_TIMEOUT_S,
            retry=retry,
            **self._options(),
        )
        client = redis.asyncio.Redis.from_pool(pool)
        client.response_callbacks.clear()
        return client


def _unquoted(text: str | None) -> str | None:
    return unquote(text) if text else None


def is_transient(error: BaseException) -> bool:
    """Whether waiting and trying again can help."""
    refused = (driver.AuthenticationError, driver.AuthorizationError, driver.MaxConnectionsError)
    return isinstance(error, TRANSIENT) and not isinstance(error, refused)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the server refused because it is over its memory limit."""
    return isinstance(error, driver.OutOfMemoryError) or "OOM command not allowed" in str(error)


def translated(error: Exception, address: ServerAddress, doing: str) -> RolloutError:
    """Our error for the driver's: where, during what, and why."""
    where = f"{doing}: Redis at {address}"
    text = str(error)
    if isinstance(
        error, driver.AuthenticationError | driver.NoPermissionError | driver.AuthorizationError
    ) or (text.startswith(("NOAUTH", "WRONGPASS", "invalid username-password"))):
        return StreamUnavailable(f"{where} refuses the credentials: {text}")
    if text.startswith("STATELOST"):
        return StateLost(f"{where} has lost the job's keys: it was emptied, or they expired")
    if is_out_of_memory(error):
        return StreamFull(f"{where} is out of memory: {text}")
    if isinstance(error, TRANSIENT):
        return StreamUnavailable(f"{where} cannot be reached: {text}")
    return StreamError(f"{where} answered: {text}")


@contextmanager
def translating(address: ServerAddress, doing: str) -> Iterator[None]:
    """Raises our error in place of the driver's."""
    try:
        yield
    except (driver.RedisError, OSError) as error:
        raise translated(error, address, doing) from error
