"""The operator's settings as its environment has them: one table of variables, all faults at once. Pure.

Written by the chart, read once by `program`. Secrets come as values of Secret-backed variables, or better as files.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from rollout_contract import podenv
from rollout_contract.environ import EnvironReader, port_of
from rollout_contract.errors import SpecError
from rollout_contract.podenv import StreamAddress
from rollout_contract.spec import KeyRef
from rollout_operator.settings import OperatorSettings
from rollout_operator.volumes import CA_DIR
from rollout_stream.connection import ServerAddress

ACCOUNT_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
DEFAULT_LEASE = "rollout-operator"


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


def settings_from(environ: Mapping[str, str]) -> ProgramSettings:
    """The settings that some environment holds. SpecError with every fault."""
    read = EnvironReader(environ)
    own = read.text("ROLLOUT_POD_NAMESPACE") or _account_namespace()
    namespaces = read.namespaces(own)
    if not own:
        read.fault("ROLLOUT_POD_NAMESPACE", "is needed outside of a pod: where the Lease is")
    address = read.read("ROLLOUT_REDIS_URL", ServerAddress.of, None, "redis[s]://[user@]host[:port]")
    if not read.text("ROLLOUT_REDIS_URL"):
        read.fault("ROLLOUT_REDIS_URL", "is needed: the server of jobs that name none")
    ca_secret = read.read("ROLLOUT_WORKER_REDIS_CA_SECRET", _key_ref("ca.crt"), None, "a Secret: name[/key]")
    as_json = read.logs_as_json()
    settings = ProgramSettings(
        operator=_operator_settings(read, address or ServerAddress(), ca_secret, as_json=as_json),
        namespaces=namespaces,
        own_namespace=own,
        redis=_with_credentials(read, address or ServerAddress()),
        redis_password_file=_path(read, "ROLLOUT_REDIS_PASSWORD_FILE"),
        secrets_dir=_path(read, "ROLLOUT_SECRETS_DIR"),
        lease_name=read.text("ROLLOUT_LEASE_NAME", DEFAULT_LEASE),
        identity=_identity(read),
        http_host=read.text("ROLLOUT_HTTP_HOST", "0.0.0.0"),  # noqa: S104
        http_port=read.read("ROLLOUT_HTTP_PORT", port_of, 8080, "a port, or 0 for any"),
        log_level=read.log_level(),
        log_as_json=as_json,
    )
    if read.faults:
        raise SpecError(read.faults)
    return settings


def _operator_settings(
    read: EnvironReader, address: ServerAddress, ca_secret: KeyRef | None, *, as_json: bool
) -> OperatorSettings:
    host = read.text("ROLLOUT_WORKER_REDIS_HOST", address.host)
    return OperatorSettings(
        redis=StreamAddress(
            host=host,
            port=read.read("ROLLOUT_WORKER_REDIS_PORT", port_of, address.port, "a port"),
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
        worker_log_format="json" if as_json else "text",
        worker_log_level=read.log_level("ROLLOUT_WORKER_LOG_LEVEL"),
        gateway_url=read.text("ROLLOUT_GATEWAY_URL"),
        observe_interval_s=float(
            read.read("ROLLOUT_OBSERVE_SECONDS", _positive, 10, "a whole number of seconds")
        ),
        progress_interval_s=float(
            read.read("ROLLOUT_PROGRESS_SECONDS", _positive, 10, "a whole number of seconds")
        ),
        trust_unknown_eviction=read.flag("ROLLOUT_TRUST_UNKNOWN_EVICTION"),
    )


def _with_credentials(read: EnvironReader, address: ServerAddress) -> ServerAddress:
    return ServerAddress(
        host=address.host,
        port=address.port,
        username=address.username,
        password=read.text(podenv.REDIS_PASSWORD) or address.password,
        tls=address.tls,
        ca_file=read.text("ROLLOUT_REDIS_CA_FILE") or None,
        database=address.database,
    )


def _identity(read: EnvironReader) -> str:
    pod, uid = read.text("ROLLOUT_POD_NAME"), read.text("ROLLOUT_POD_UID")
    return f"{pod}_{uid}" if pod and uid else f"{pod or 'process'}_{uuid.uuid4().hex}"


def _path(read: EnvironReader, name: str) -> Path | None:
    text = read.text(name)
    return Path(text) if text else None


def _account_namespace() -> str:
    try:
        return ACCOUNT_NAMESPACE.read_text().strip()
    except OSError:
        return ""


def _key_ref(default_key: str) -> Callable[[str], KeyRef]:
    def parse(text: str) -> KeyRef:
        name, _, key = text.partition("/")
        return KeyRef(name=name, key=key or default_key)

    return parse


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number
