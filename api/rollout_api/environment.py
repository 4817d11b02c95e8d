"""The gateway's settings in a cluster, as its environment has them: one table of variables, all faults at once. Pure.

Written by the chart, read once by `program`. `docs/gateway.md` has the table for people. No value is ever put into a fault:
it may be a secret in the wrong place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final, TypeVar

from rollout_api.serve import TlsFiles
from rollout_api.settings import ApiSettings
from rollout_contract import podenv
from rollout_contract.environ import EnvironReader, parts_of, port_of
from rollout_contract.errors import SpecError
from rollout_stream.connection import ServerAddress

ACCOUNT_NAMESPACE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
MIN_SESSION_KEY: Final = 32

T = TypeVar("T")


class AuthKind(StrEnum):
    """How callers and their rights are asked for."""

    TOKEN_REVIEW = "TokenReview"  # noqa: S105 - a kind of object, not a secret
    SELF_REVIEW = "SelfReview"


@dataclass(frozen=True, slots=True)
class ProgramSettings:
    """What the program needs. Durations in seconds."""

    auth: AuthKind
    api: ApiSettings
    port: int
    metrics_port: int | None
    tls: TlsFiles | None
    session_key: str = field(repr=False)
    redis: ServerAddress
    redis_password_file: Path | None
    secrets_dir: Path | None
    drain_s: float
    grace_s: float
    log_level: str
    log_as_json: bool


def settings_from(environ: Mapping[str, str]) -> ProgramSettings:
    """The settings that some environment holds. SpecError with every fault."""
    read = EnvironReader(environ)
    auth = _needed(
        read,
        "ROLLOUT_AUTH",
        AuthKind,
        AuthKind.TOKEN_REVIEW,
        "TokenReview or SelfReview; without one nobody is let in, so the gateway does not start",
    )
    tls = _tls(read)
    address = _needed(
        read, "ROLLOUT_REDIS_URL", ServerAddress.of, ServerAddress(), "redis[s]://[user@]host[:port]"
    )
    settings = ProgramSettings(
        auth=auth,
        api=_api_settings(read, is_https=tls is not None),
        port=read.read("ROLLOUT_HTTP_PORT", port_of, 8080, "a port, or 0 for any"),
        metrics_port=read.read("ROLLOUT_METRICS_PORT", port_of, 0, "a port, or 0 for none") or None,
        tls=tls,
        session_key=_session_key(read),
        redis=_with_credentials(read, address),
        redis_password_file=_file(read, "ROLLOUT_REDIS_PASSWORD_FILE"),
        secrets_dir=Path(read.text("ROLLOUT_SECRETS_DIR")) if read.text("ROLLOUT_SECRETS_DIR") else None,
        drain_s=read.read("ROLLOUT_DRAIN_SECONDS", _seconds, 5.0, "seconds, from 0 to 300"),
        grace_s=read.read("ROLLOUT_GRACE_SECONDS", _seconds, 15.0, "seconds, from 0 to 300"),
        log_level=read.log_level(),
        log_as_json=read.logs_as_json(),
    )
    if read.faults:
        raise SpecError(read.faults)
    return settings


def _needed(read: EnvironReader, name: str, parse: Callable[[str], T], default: T, wanted: str) -> T:
    """A variable that must be set."""
    if not read.text(name):
        read.fault(name, f"is not set: {wanted}")
    return read.read(name, parse, default, wanted)


def _file(read: EnvironReader, name: str) -> Path | None:
    """A file that is there; None if unset."""
    path = Path(read.text(name)) if read.text(name) else None
    if path is not None and not path.is_file():
        read.fault(name, "names no file")
    return path


def _api_settings(read: EnvironReader, *, is_https: bool) -> ApiSettings:
    own = read.text("ROLLOUT_POD_NAMESPACE") or _account_namespace()
    return ApiSettings(
        host=read.text("ROLLOUT_HTTP_HOST", "0.0.0.0"),  # noqa: S104 - the service and the kubelet come from outside
        allowed_hosts=tuple(part.lower() for part in parts_of(read.text("ROLLOUT_ALLOWED_HOSTS"))),
        secure_cookie=read.flag("ROLLOUT_BEHIND_TLS") or is_https,
        namespaces=read.namespaces(own),
    )


def _tls(read: EnvironReader) -> TlsFiles | None:
    certificate, key = _file(read, "ROLLOUT_TLS_CERT_FILE"), _file(read, "ROLLOUT_TLS_KEY_FILE")
    is_plain = read.flag("ROLLOUT_PLAIN_HTTP")
    if certificate is not None and key is not None:
        if is_plain:
            read.fault("ROLLOUT_PLAIN_HTTP", "contradicts ROLLOUT_TLS_CERT_FILE: leave one of the two out")
        return TlsFiles(certificate, key)
    if certificate is not None or key is not None:
        missing = "ROLLOUT_TLS_KEY_FILE" if key is None else "ROLLOUT_TLS_CERT_FILE"
        read.fault(missing, "is not set: a certificate and its key go together")
    elif not is_plain:
        read.fault(
            "ROLLOUT_TLS_CERT_FILE",
            "is not set: give a certificate and its key, or say ROLLOUT_PLAIN_HTTP=true where something in front encrypts",
        )
    return None


def _session_key(read: EnvironReader) -> str:
    key = read.text("ROLLOUT_SESSION_KEY")
    if key and len(key) < MIN_SESSION_KEY:
        read.fault("ROLLOUT_SESSION_KEY", f"has less than {MIN_SESSION_KEY} characters: it could be guessed")
    return key


def _with_credentials(read: EnvironReader, address: ServerAddress) -> ServerAddress:
    ca_file = _file(read, "ROLLOUT_REDIS_CA_FILE")
    return ServerAddress(
        host=address.host,
        port=address.port,
        username=address.username,
        password=read.text(podenv.REDIS_PASSWORD) or address.password,
        tls=address.tls,
        ca_file=str(ca_file) if ca_file else None,
        database=address.database,
    )


def _account_namespace() -> str:
    try:
        return ACCOUNT_NAMESPACE.read_text().strip()
    except OSError:
        return ""


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0.0 <= seconds <= 300.0:
        raise ValueError(text)
    return seconds
