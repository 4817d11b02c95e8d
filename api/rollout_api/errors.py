"""Problems: every error that leaves the gateway is RFC 9457 problem+json with a stable `type`.

A route raises `Problem`; errors of the contract and of the store are translated here, in one table. Nothing internal is
put into an answer: an unexpected error becomes `internal` with an incident number, and only the log has the traceback.
"""

from __future__ import annotations

import json
import logging
import math
import secrets
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.responses import Response

from rollout_api import store
from rollout_api.reach import CredentialsMissing
from rollout_contract import errors as contract
from rollout_contract.errors import Fault

logger = logging.getLogger(__name__)

MEDIA_TYPE = "application/problem+json"
TYPE_PREFIX = "urn:rolloutjob:problem:"
PROBLEM_SCHEMA = {"$ref": "#/components/schemas/ProblemBody"}
MAX_SHOWN_VALUE = 200
"""Characters of a refused value that are sent back; what is longer helps nobody."""


class Kind(Enum):
    """Every problem that the gateway knows: (last part of `type`, status, title). A `type` never changes its meaning."""

    MALFORMED = ("malformed", 400, "The request cannot be read")
    UNAUTHENTICATED = ("unauthenticated", 401, "Who are you?")
    FORBIDDEN = ("forbidden", 403, "Not allowed")
    CROSS_ORIGIN = ("cross-origin", 403, "Requests from other web pages are not answered")
    NOT_FOUND = ("not-found", 404, "There is no such thing")
    METHOD_NOT_ALLOWED = ("method-not-allowed", 405, "Not possible with this method")
    NOT_ACCEPTABLE = ("not-acceptable", 406, "No such representation")
    TIMEOUT = ("timeout", 408, "The request took too long to arrive")
    ALREADY_EXISTS = ("already-exists", 409, "It exists already")
    CONFLICT = ("conflict", 409, "It was changed meanwhile")
    NOT_POSSIBLE = ("not-possible", 409, "Not possible in the job's state")
    PAGE_EXPIRED = ("page-expired", 410, "The rest of the list is gone")
    PRECONDITION_FAILED = ("precondition-failed", 412, "It is not what you thought")
    TOO_LARGE = ("too-large", 413, "Too large")
    UNSUPPORTED_MEDIA = ("unsupported-media-type", 415, "Not this format")
    RANGE = ("range-not-satisfiable", 416, "No such range")
    WRONG_HOST = ("wrong-host", 421, "Not the host that is asked for")
    INVALID = ("invalid", 422, "Something in the request is wrong")
    SPEC_INVALID = ("spec-invalid", 422, "The manifest is wrong")
    REFUSED = ("refused", 422, "A rule of the cluster refuses it")
    IMMUTABLE = ("immutable", 422, "This cannot be changed")
    WEIGHTS_INVALID = ("weights-invalid", 422, "The weights do not fit")
    DIGEST_MISMATCH = ("digest-mismatch", 422, "The body is not what its digest says")
    KEY_REUSED = ("idempotency-key-reused", 422, "This Idempotency-Key belongs to another request")
    TOO_MANY = ("too-many-requests", 429, "Too many at once")
    INTERNAL = ("internal", 500, "Something went wrong in the gateway")
    UNSUPPORTED = ("unsupported", 501, "Not possible here")
    UNAVAILABLE = ("unavailable", 503, "Not now")
    TOO_SLOW = ("too-slow", 504, "It took too long")

    def __init__(self, slug: str, status: int, title: str) -> None:
        self.slug = slug
        self.status = status
        self.title = title

    @property
    def type(self) -> str:
        """The URI that programs compare."""
        return TYPE_PREFIX + self.slug


class FaultBody(BaseModel):
    """One thing that is wrong with the request."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"path": "spec.replicas", "message": "Input should be …"}]}
    )

    path: str = Field(description="Where: in the manifest's spelling, or `query.…`, `header.…`, `body.…`.")
    message: str = Field(description="What is allowed, or what to write instead.")
    value: str | int | float | bool | None = Field(
        default=None, description="What stood there, if it is short."
    )


class ProblemBody(BaseModel):
    """An error, as RFC 9457 describes it."""

    model_config = ConfigDict(
        extra="allow",
        json_schema_extra={
            "examples": [
                {
                    "type": Kind.NOT_FOUND.type,
                    "title": Kind.NOT_FOUND.title,
                    "status": 404,
                    "detail": "There is no RolloutJob default/cartpole.",
                }
            ]
        },
    )

    type: str = Field(description="What kind of error: a stable URI for programs.")
    title: str = Field(description="The kind in words.")
    status: int = Field(description="The HTTP status code.")
    detail: str = Field(description="What happened, and what to do, for people.")
    errors: list[FaultBody] | None = Field(
        default=None, description="Every fault, where several things may be wrong."
    )


class Problem(Exception):
    """An answer that is an error. `members` are further fields of the body, such as `currentVersion`."""

    def __init__(
        self,
        kind: Kind,
        detail: str,
        *,
        faults: Sequence[FaultBody] = (),
        members: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.kind = kind
        self.detail = detail
        self.faults = tuple(faults)
        self.members = dict(members or {})
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        """The JSON object of the answer."""
        document: dict[str, Any] = {
            "type": self.kind.type,
            "title": self.kind.title,
            "status": self.kind.status,
            "detail": self.detail,
        }
        if self.faults:
            document["errors"] = [fault.model_dump(exclude_none=True) for fault in self.faults]
        return document | self.members

    def response(self) -> Response:
        """The answer."""
        # what is sent back of a request may hold lone surrogates, which no encoding takes
        text = json.dumps(self.body(), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return Response(
            text.encode("utf-8", "replace"), self.kind.status, self.headers, media_type=MEDIA_TYPE
        )


def fault_bodies(faults: Iterable[Fault]) -> list[FaultBody]:
    """The contract's faults as they are sent."""
    return [FaultBody(path=fault.path, message=fault.message, value=_short(fault.value)) for fault in faults]


def _short(value: object) -> str | int | float | bool | None:
    if isinstance(value, str):
        return value if len(value) <= MAX_SHOWN_VALUE else None
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if abs(value) < 2**53 else str(value)[:MAX_SHOWN_VALUE]
    if isinstance(value, float):
        return (
            value if value == value and abs(value) != float("inf") else str(value)
        )  # JSON knows neither NaN nor inf
    return None


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


def spec_problem(faults: Sequence[Fault], kind: Kind = Kind.SPEC_INVALID) -> Problem:
    """A manifest with faults, every one listed."""
    count = f"{len(faults)} things are wrong: " if len(faults) > 1 else ""
    return Problem(
        kind, count + "; ".join(str(fault) for fault in faults)[:2000], faults=fault_bodies(faults)
    )


def weights_problem(problems: Sequence[str], members: Mapping[str, Any] | None = None) -> Problem:
    """Weights that do not fit, every difference listed; the path is the name of the parameter, where there is one."""
    faults = []
    for problem in problems:
        name, _, message = problem.partition(": ")
        faults.append(
            FaultBody(path=name, message=message) if message else FaultBody(path="", message=problem)
        )
    detail = "The weights do not fit: " + "; ".join(problems)[:2000]
    return Problem(Kind.WEIGHTS_INVALID, detail, faults=faults, members=members)


def unavailable(detail: str, *, retry_after_s: int = 2) -> Problem:
    """Something behind the gateway does not answer now."""
    return Problem(Kind.UNAVAILABLE, detail, headers={"retry-after": str(retry_after_s)})


def unauthenticated(detail: str) -> Problem:
    """We do not know who is asking."""
    return Problem(Kind.UNAUTHENTICATED, detail, headers={"www-authenticate": 'Bearer realm="rollout"'})


def too_many(detail: str, *, retry_after_s: int = 5) -> Problem:
    """The gateway has enough of these at the moment."""
    return Problem(Kind.TOO_MANY, detail, headers={"retry-after": str(retry_after_s)})


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
            FaultBody(path=".".join(map(str, e["loc"])), message=e["msg"], value=_short(e.get("input")))
            for e in error.errors()
        ]
        kind = Kind.MALFORMED if any(e["type"] == "json_invalid" for e in error.errors()) else Kind.INVALID
        text = "; ".join(f"{fault.path}: {fault.message}" for fault in faults)
        return Problem(kind, text[:2000], faults=faults).response()

    for expected in (Problem, contract.RolloutError):
        app.add_exception_handler(expected, on_known)
    app.add_exception_handler(HTTPException, on_http)
    app.add_exception_handler(RequestValidationError, on_validation)


def documented(*kinds: Kind) -> dict[int | str, dict[str, Any]]:
    """The `responses` of a route that may answer with these problems, beside those that every route may."""
    by_status: dict[int, list[Kind]] = {}
    for kind in (*kinds, Kind.UNAUTHENTICATED, Kind.FORBIDDEN, Kind.INVALID, Kind.INTERNAL):
        by_status.setdefault(kind.status, []).append(kind)
    return {
        status: {
            "model": ProblemBody,
            "description": " or ".join(dict.fromkeys(kind.title for kind in found)),
            "content": {MEDIA_TYPE: {"schema": PROBLEM_SCHEMA}},
        }
        for status, found in by_status.items()
    }
