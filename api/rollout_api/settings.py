"""What the gateway can be told: where it is bound, whom it answers, and its limits. Built by whoever starts it."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field

from rollout_contract.errors import RolloutError


class SettingsError(RolloutError, ValueError):
    """A setting is missing or contradicts another; the text names the setting. The gateway does not start."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How much one caller, and all together, may ask for. Sizes in bytes, durations in seconds."""

    max_body_bytes: int = 2 * 1024 * 1024
    """Of every request but an upload of weights: a manifest has at most a few hundred KiB."""
    request_s: float = 20.0
    """A whole request, but transfers of weights and event streams."""
    body_idle_s: float = 20.0
    """Nothing of a body arrives for so long: 408."""
    transfer_s: float = 3600.0
    """One upload or download of weights as a whole."""
    send_idle_s: float = 20.0
    """A client that takes nothing for so long is dropped."""
    max_uploads: int = 4
    """At once; each holds a chunk or two in memory."""
    max_downloads: int = 32
    max_event_clients: int = 2000
    event_queue: int = 64
    """Events that wait for one client; with more it is dropped, not buffered."""
    live_ttl_s: float = 1.0
    """Redis is read at most once per job in this time, whatever the number of callers."""
    live_timeout_s: float = 2.0
    """A Redis that does not answer in this time is away."""
    keep_alive_s: float = 15.0
    """An event stream without events says so often that it is there."""
    recheck_s: float = 30.0
    """Whether the client of an event stream still may read it is asked this often."""
    status_ttl_s: float = 0.1
    """An answer of the status route is sent to everybody who asks within this time."""
    job_ttl_s: float = 1.0
    """A job is read at most once in this time for those who only look at it."""


@dataclass(frozen=True, slots=True)
class ApiSettings:
    """Where the gateway is bound and how it behaves."""

    host: str = "127.0.0.1"
    """The address that it is bound to: what the rules for loopback look at."""
    allowed_hosts: tuple[str, ...] = ()
    """Names that a `Host` header may have, beside those of loopback when bound there; empty elsewhere: any."""
    secure_cookie: bool = False
    """The page's cookie is sent over HTTPS only; True behind TLS."""
    namespaces: tuple[str, ...] = ()
    """What is looked through for a caller who wants the jobs of all namespaces, but may list those of some only."""
    limits: Limits = field(default_factory=Limits)

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the gateway."""
        return is_loopback(self.host)

    def accepts_host(self, header: str) -> bool:
        """Whether a request with this `Host` header is meant for us: the answer to DNS rebinding."""
        name = host_name(header)
        if self.is_loopback:
            return is_loopback(name) or name in self.allowed_hosts
        return not self.allowed_hosts or name in self.allowed_hosts


def host_name(header: str) -> str:
    """The name of a `Host` header without port and brackets, in lower case."""
    text = header.strip().lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0]


def is_loopback(host: str) -> bool:
    """Whether this name or address means this machine and no other."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
