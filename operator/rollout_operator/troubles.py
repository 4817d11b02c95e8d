"""An error of the data plane as what the condition RedisReady says of it. Pure."""

from __future__ import annotations

import ssl
from collections.abc import Iterator

from redis import exceptions as driver

from rollout_contract.errors import RolloutError, StateLost, StreamFull, StreamUnavailable
from rollout_contract.status import ConditionStatus, Reason
from rollout_operator.observed import StreamTrouble
from rollout_stream.server_check import ServerInfo

_REFUSED = (driver.AuthenticationError, driver.AuthorizationError, driver.NoPermissionError)


class CredentialsMissing(StreamUnavailable):
    """A Secret that a job's server needs was not given to the operator. Names the Secret, never what is in it."""


def trouble_of(error: RolloutError) -> StreamTrouble:
    """Reason and message; the error's text holds host and port, and no credentials."""
    return StreamTrouble(_reason_of(error), str(error))


def trouble_of_server(info: ServerInfo, *, trust_unknown_eviction: bool) -> StreamTrouble | None:
    """Why a job must not start on this server; None: it may."""
    if info.problems:
        is_policy = any("maxmemory-policy" in problem for problem in info.problems)
        reason = Reason.EVICTION_POLICY if is_policy else Reason.UNSUPPORTED_SERVER
        return StreamTrouble(reason, "; ".join(info.problems))
    if info.is_policy_known or trust_unknown_eviction:
        return None
    message = (
        "the server does not tell its maxmemory-policy; with anything but noeviction it may throw data away. "
        "Allow INFO or CONFIG GET, or tell the operator to trust it (trustUnknownEviction)"
    )
    return StreamTrouble(Reason.EVICTION_POLICY, message, ConditionStatus.UNKNOWN)


def _reason_of(error: RolloutError) -> Reason:
    if isinstance(error, StateLost):
        return Reason.STATE_LOST
    if isinstance(error, CredentialsMissing):
        return Reason.SECRET_MISSING
    if isinstance(error, StreamFull):
        return Reason.OUT_OF_MEMORY
    causes = list(_causes(error))
    if any(isinstance(cause, _REFUSED) for cause in causes) or "refuses the credentials" in str(error):
        return Reason.AUTHENTICATION_FAILED
    if any(isinstance(cause, ssl.SSLError) for cause in causes):
        return Reason.TLS_FAILED
    return Reason.UNREACHABLE if isinstance(error, StreamUnavailable) else Reason.UNSUPPORTED_SERVER


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    seen: set[int] = set()
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__ or cause.__context__
