"""What the API server answers when it does not do what was asked, as an error, and when to ask again. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rollout_operator.cluster import ClusterError

RETRIED = frozenset({429, 500, 502, 503, 504})
"""Busy, restarting, or without a leader in its store: another try soon may do it."""
FIRST_WAIT_S = 0.2
MAX_WAIT_S = 3.0


class ApiUnavailable(ClusterError):
    """The API server cannot be reached, or did not answer in time."""


class ApiError(ClusterError):
    """The API server refused. `reason` is its own word (`AlreadyExists`, `Conflict`, `Expired`), `text` its sentence."""

    def __init__(
        self, doing: str, *, status: int, reason: str, text: str, retry_after_s: float | None = None
    ) -> None:
        super().__init__(f"{doing}: {status} {reason}: {text}" if text else f"{doing}: {status} {reason}")
        self.status = status
        self.reason = reason
        self.text = text
        self.retry_after_s = retry_after_s

    @property
    def is_gone(self) -> bool:
        """Whether the object is not there."""
        return self.status == 404

    @property
    def is_forbidden(self) -> bool:
        """Whether our account has no right to it."""
        return self.status == 403

    @property
    def is_expired(self) -> bool:
        """Whether a resourceVersion is too old to go on from."""
        return self.status == 410

    @property
    def already_exists(self) -> bool:
        """Whether the name is taken."""
        return self.status == 409 and self.reason == "AlreadyExists"

    @property
    def is_conflict(self) -> bool:
        """Whether a precondition (UID, resourceVersion) does not hold."""
        return self.status == 409 and self.reason != "AlreadyExists"


def error_of(doing: str, status: int, body: Any, headers: Mapping[str, str]) -> ApiError:
    """The error of an answer; `body` is its document, or a text where the server sent no JSON."""
    known = body if isinstance(body, dict) else {}
    text = str(known.get("message") or (body if isinstance(body, str) else ""))[:2048].strip()
    reason = str(known.get("reason") or "") or {404: "NotFound", 410: "Expired"}.get(status, "Error")
    details = known.get("details") or {}
    seconds = headers.get("Retry-After") or details.get("retryAfterSeconds")
    return ApiError(doing, status=status, reason=reason, text=text, retry_after_s=_seconds(seconds))


def _seconds(value: Any) -> float | None:
    try:
        return max(0.0, float(value))
    except (TypeError, ValueError):
        return None


@dataclass(frozen=True, slots=True)
class Patience:
    """How long one call is tried for. Seconds."""

    total_s: float = 15.0

    def wait_of(
        self, error: ApiError | ApiUnavailable, *, tries: int, elapsed_s: float, jitter: float
    ) -> float | None:
        """How long to wait before the next try; None: no more tries. `jitter` in [0, 1]."""
        if isinstance(error, ApiError):
            if error.status not in RETRIED or "failed calling webhook" in error.text:
                return None
            if error.retry_after_s is not None:
                wait = max(error.retry_after_s, FIRST_WAIT_S) * (1.0 + 0.1 * jitter)
                return wait if elapsed_s + wait <= self.total_s else None
        wait = min(MAX_WAIT_S, FIRST_WAIT_S * 2.0**tries) * (0.5 + 0.5 * jitter)
        return wait if elapsed_s + wait <= self.total_s else None
