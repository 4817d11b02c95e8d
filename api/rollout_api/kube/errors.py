"""What the API server answers when it does not do what was asked, as errors of the store. Pure.

The texts of refusals are the server's own: they tell callers of their own jobs and rights, and name no hosts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from rollout_api.store import (
    AlreadyExists,
    Conflict,
    Forbidden,
    NotFound,
    NotKnown,
    PageExpired,
    Refused,
    StoreError,
    StoreUnavailable,
)
from rollout_contract.errors import Fault, RolloutError, SpecError

MAX_TEXT: Final = 1500
MISSING_DEFINITION: Final = (
    "the cluster knows no RolloutJobs: their definition is not installed, or not in this version"
)
_BUSY: Final = frozenset({429, 500, 502, 503, 504})


class Expired(StoreError):
    """A resource version is too old to go on from: read anew."""


def error_of(status: int, body: Any, headers: Mapping[str, str]) -> RolloutError:
    """The error of an answer from 400 on; `body` is its document, or a text where something before the server sent none."""
    known = body if isinstance(body, dict) else {}
    text = str(known.get("message") or "").strip()[:MAX_TEXT] or f"the Kubernetes API answered {status}"
    details = known.get("details") or {}
    match status:
        case 401:
            return NotKnown("The token is not valid (any more).")
        case 403:
            return Forbidden(text)
        case 404:
            return NotFound(text) if details.get("name") else StoreUnavailable(MISSING_DEFINITION)
        case 409 if known.get("reason") == "AlreadyExists":
            return AlreadyExists(text)
        case 409:
            return Conflict(text)
        case 410:
            return Expired(text)
        case 422:
            return _faults_of(details, text)
        case _ if status in _BUSY:
            return StoreUnavailable(
                "the Kubernetes API is busy or restarting", retry_after_s=_seconds(headers, details)
            )
        case _:
            return Refused(text)


def error_of_page(error: RolloutError) -> RolloutError:
    """The same, where a page of a list was asked for."""
    return (
        PageExpired("The list has changed too much: begin anew, without `continue`.")
        if isinstance(error, Expired)
        else error
    )


def _faults_of(details: Mapping[str, Any], text: str) -> RolloutError:
    causes = details.get("causes") or []
    faults = [
        Fault(str(cause.get("field") or "").removeprefix("<nil>"), None, str(cause.get("message") or text))
        for cause in causes
        if isinstance(cause, dict)
    ]
    return SpecError(faults or [Fault("", None, text)])


def _seconds(headers: Mapping[str, str], details: Mapping[str, Any]) -> float | None:
    try:
        return min(
            60.0, max(1.0, float(headers.get("Retry-After") or details.get("retryAfterSeconds") or ""))
        )
    except ValueError:
        return None
