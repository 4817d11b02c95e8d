"""The operator's settings as its environment has them: one table of variables, all faults at once. Pure.

Written by the chart, read once by `program`. Secrets come as values of Secret-backed variables, or better as files.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from rollout_contract import names, podenv
from rollout_contract.errors import Fault, SpecError
from rollout_contract.podenv import StreamAddress
from rollout_contract.spec import KeyRef
from rollout_operator.manifests import CA_DIR
from rollout_operator.settings import OperatorSettings
from rollout_stream.connection import ServerAddress

ALL_NAMESPACES = "*"
ACCOUNT_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
DEFAULT_LEASE = "rollout-operator"

T = TypeVar("T")
Namespaces = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ProgramSettings:
    """What the program needs besides what it brings to jobs."""

    operator: OperatorSettings
    namespaces: tuple[str, ...]
    """Watched namespaces; empty: all."""
    own_namespace: str
    redis: ServerAddress
    """The default server as the operator reaches it."""
    redis_password_file: Path | None
    secrets_dir: Path | None
    lease_name: str
    identity: str
    """The same for every start of the same pod, and for no other."""
    http_host: str = "0.0.0.0"  # noqa: S104 - the kubelet and Prometheus come from outside of the pod
    http_port: int = 8080
    log_level: str = "INFO"
    log_as_json: bool = True


@dataclass(slots=True)
class _Reader:
    """Reads variables and gathers what is wrong with them."""

    environ: Mapping[str, str]
    faults: list[Fault] = field(default_factory=list)

    def text(self, name: str, default: str = "") -> str:
        """A variable that is unset or empty has its default."""
        return self.environ.get(name, "").strip() or default

    def read(self, name: str, parse: Callable[[str], T], default: T, wanted: str) -> T:
        """A variable through a parser that raises ValueError; the fault never shows the value."""
        text = self.text(name)
        if not text:
            return default
        try:
            return parse(text)
        except ValueError:
            self.faults.append(Fault(name, None, f"is not {wanted}"))
            return default

    def path(self, name: str) -> Path | None:
        """A path; None if unset."""
        text = self.text(name)
        return Path(text) if text else None


def settings_from(environ: Mapping[str, str]) -> ProgramSettings:
    """The settings that some environment holds. SpecError with every fault."""
    read = _Reader(environ)
    own = read.text("ROLLOUT_POD_NAMESPACE") or _account_namespace()
    namespaces: Namespaces = read.read(
        "ROLLOUT_NAMESPACES", _namespaces, (own,) if own else (), "a list of namespaces, or *"
    )
    if not own:
        read.faults.append(
            Fault("ROLLOUT_POD_NAMESPACE", None, "is needed outside of a pod: where the Lease is")
        )
    address = read.read("ROLLOUT_REDIS_URL", ServerAddress.of, None, "redis[s]://[user@]host[:port]")
    if not read.text("ROLLOUT_REDIS_URL"):
        read.faults.append(Fault("ROLLOUT_REDIS_URL", None, "is needed: the server of jobs that name none"))
    ca_secret = read.read("ROLLOUT_WORKER_REDIS_CA_SECRET", _key_ref("ca.crt"), None, "a Secret: name[/key]")
    settings = ProgramSettings(
        operator=_operator_settings(read, address or ServerAddress(), ca_secret),
        namespaces=namespaces,
        own_namespace=own,
        redis=_with_credentials(read, address or ServerAddress()),
        redis_password_file=read.path("ROLLOUT_REDIS_PASSWORD_FILE"),
        secrets_dir=read.path("ROLLOUT_SECRETS_DIR"),
        lease_name=read.text("ROLLOUT_LEASE_NAME", DEFAULT_LEASE),
        identity=_identity(read),
        http_host=read.text("ROLLOUT_HTTP_HOST", "0.0.0.0"),  # noqa: S104
        http_port=read.read("ROLLOUT_HTTP_PORT", _port, 8080, "a port, or 0 for any"),
        log_level=read.read("ROLLOUT_LOG_LEVEL", _level, "INFO", "DEBUG, INFO, WARNING or ERROR"),
        log_as_json=read.read("ROLLOUT_LOG_FORMAT", _one_of("json", "text"), "json", "json or text")
        == "json",
    )
    if read.faults:
        raise SpecError(read.faults)
    return settings


def _operator_settings(read: _Reader, address: ServerAddress, ca_secret: KeyRef | None) -> OperatorSettings:
    host = read.text("ROLLOUT_WORKER_REDIS_HOST", address.host)
    return OperatorSettings(
        redis=StreamAddress(
            host=host,
            port=read.read("ROLLOUT_WORKER_REDIS_PORT", _port, address.port, "a port"),
            username=address.username,
            tls=address.tls,
            ca_file=f"{CA_DIR}/{ca_secret.key}" if ca_secret else None,
        ),
        redis_secret=read.read(
            "ROLLOUT_WORKER_REDIS_SECRET", _key_ref("password"), None, "a Secret: name[/key]"
        ),
        redis_ca_secret=ca_secret,
        worker_image=read.text("ROLLOUT_WORKER_IMAGE"),
        default_cpus=read.read("ROLLOUT_WORKER_DEFAULT_CPUS", _positive, 1, "a whole number from 1 on"),
        grace_s=read.read("ROLLOUT_WORKER_GRACE_SECONDS", _positive, 60, "a whole number of seconds"),
        gateway_url=read.text("ROLLOUT_GATEWAY_URL"),
        observe_interval_s=float(
            read.read("ROLLOUT_OBSERVE_SECONDS", _positive, 10, "a whole number of seconds")
        ),
        progress_interval_s=float(
            read.read("ROLLOUT_PROGRESS_SECONDS", _positive, 10, "a whole number of seconds")
        ),
        trust_unknown_eviction=read.read(
            "ROLLOUT_TRUST_UNKNOWN_EVICTION", _one_of("true", "false"), "false", "true or false"
        )
        == "true",
    )


def _with_credentials(read: _Reader, address: ServerAddress) -> ServerAddress:
    return ServerAddress(
        host=address.host,
        port=address.port,
        username=address.username,
        password=read.text(podenv.REDIS_PASSWORD) or address.password,
        tls=address.tls,
        ca_file=read.text("ROLLOUT_REDIS_CA_FILE") or None,
        database=address.database,
    )


def _identity(read: _Reader) -> str:
    pod, uid = read.text("ROLLOUT_POD_NAME"), read.text("ROLLOUT_POD_UID")
    return f"{pod}_{uid}" if pod and uid else f"{pod or 'process'}_{uuid.uuid4().hex}"


def _account_namespace() -> str:
    try:
        return ACCOUNT_NAMESPACE.read_text().strip()
    except OSError:
        return ""


def _namespaces(text: str) -> Namespaces:
    if text == ALL_NAMESPACES:
        return ()
    found = tuple(sorted({part.strip() for part in text.split(",") if part.strip()}))
    if not found or not all(names.NAMESPACE.fullmatch(part) for part in found):
        raise ValueError(text)
    return found


def _key_ref(default_key: str) -> Callable[[str], KeyRef]:
    def parse(text: str) -> KeyRef:
        name, _, key = text.partition("/")
        return KeyRef(name=name, key=key or default_key)

    return parse


def _one_of(*allowed: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text.lower() not in allowed:
            raise ValueError(text)
        return text.lower()

    return parse


def _level(text: str) -> str:
    return _one_of("debug", "info", "warning", "error")(text).upper()


def _port(text: str) -> int:
    port = int(text)
    if not 0 <= port <= 65535:
        raise ValueError(text)
    return port


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number
