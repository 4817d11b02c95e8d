"""Makes every exception that reaches the framework a problem.

Errors of the contract and of the store are translated here, in one table. Nothing internal is put into an answer: an
unexpected error becomes `internal` with an incident number, and only the log has the traceback.
"""

from __future__ import annotations

import logging
import math
import secrets

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from rollout_api import store
from rollout_api.errors import (
    MAX_SHOWN_VALUE,
    FaultBody,
    Kind,
    Problem,
    short,
    spec_problem,
    unauthenticated,
    unavailable,
    weights_problem,
)
from rollout_api.reach import CredentialsMissing
from rollout_contract import errors as contract

logger = logging.getLogger(__name__)


def problem_of(error: Exception) -> Problem | None:
    """The problem that an error of the contract or of the store means; None for one that nobody expected."""
    match error:
        case Problem():
            return error
        case contract.SpecError():
            return spec_problem(error.faults)
        case store.NotFound() | contract.JobNotFound():
            return Problem(Kind.NOT_FOUND, str(error))
        case store.AlreadyExists():
            return Problem(Kind.ALREADY_EXISTS, str(error))
        case store.Conflict():
            return Problem(Kind.CONFLICT, str(error))
        case store.Unsupported():
            return Problem(Kind.UNSUPPORTED, str(error))
        case store.PageExpired():
            return Problem(Kind.PAGE_EXPIRED, str(error))
        case store.NotKnown():
            return unauthenticated(str(error))
        case store.Forbidden():
            return Problem(Kind.FORBIDDEN, str(error))
        case store.Refused():
            return Problem(Kind.REFUSED, str(error))
        case store.Unknown():
            return Problem(Kind.UNSUPPORTED, str(error))
        case store.StoreUnavailable():
            return unavailable(str(error), retry_after_s=math.ceil(error.retry_after_s or 2))
        case contract.WeightsRejected():
            return weights_problem(error.problems)
        case contract.EpochConflict():
            return Problem(
                Kind.PRECONDITION_FAILED,
                f"The seed was changed meanwhile: its epoch is {error.epoch}, not {error.expected}.",
                members={"epoch": error.epoch, "seed": error.seed},
            )
        case contract.StreamFull():
            return unavailable("The stream's server is out of memory.", retry_after_s=10)
        case CredentialsMissing():
            return unavailable(f"The job has a stream's server of its own: {error}.")
        case contract.StateLost():
            return unavailable(
                "The stream's server holds no state of this job: it has not begun, or was lost."
            )
        case contract.StreamError():
            return unavailable("The stream's server does not answer.")
        case _:
            return None


def internal_problem(error: BaseException, method: str, path: str) -> Problem:
    """What is said of an unexpected error: a number, by which the log has the rest."""
    incident = secrets.token_hex(4)
    logger.error("incident %s: %s %s failed", incident, method, path, exc_info=error)
    return Problem(
        Kind.INTERNAL,
        f"An unexpected error; the gateway's log has it as incident {incident}.",
        members={"incident": incident},
    )


_HTTP_KINDS = {
    400: Kind.MALFORMED,
    404: Kind.NOT_FOUND,
    405: Kind.METHOD_NOT_ALLOWED,
    406: Kind.NOT_ACCEPTABLE,
    413: Kind.TOO_LARGE,
    415: Kind.UNSUPPORTED_MEDIA,
    422: Kind.INVALID,
}


def install(app: FastAPI) -> None:
    """Make every error of this app a problem."""

    async def on_known(request: Request, error: Exception) -> Response:
        problem = problem_of(error)
        if problem is None:
            problem = internal_problem(error, request.method, request.url.path)
        return problem.response()

    async def on_http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        kind = _HTTP_KINDS.get(error.status_code)
        if kind is None:
            return internal_problem(error, request.method, request.url.path).response()
        detail = f"{request.method} {request.url.path[:MAX_SHOWN_VALUE]}: {error.detail}."
        return Problem(kind, detail, headers=error.headers).response()

    async def on_validation(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        faults = [
            FaultBody(path=".".join(map(str, e["loc"])), message=e["msg"], value=short(e.get("input")))
            for e in error.errors()
        ]
        kind = Kind.MALFORMED if any(e["type"] == "json_invalid" for e in error.errors()) else Kind.INVALID
        text = "; ".join(f"{fault.path}: {fault.message}" for fault in faults)
        return Problem(kind, text[:2000], faults=faults).response()

    for expected in (Problem, contract.RolloutError):
        app.add_exception_handler(expected, on_known)
    app.add_exception_handler(HTTPException, on_http)
    app.add_exception_handler(RequestValidationError, on_validation)
