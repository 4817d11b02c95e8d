"""Problems: every error that leaves the gateway is RFC 9457 problem+json with a stable `type`.

A route raises `Problem`. Errors of the contract and of the store are made problems in `error_handlers`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from rollout_contract.errors import Fault

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
    HEAD_TOO_LARGE = ("head-too-large", 431, "Too many headers, or too long")
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
    return [FaultBody(path=fault.path, message=fault.message, value=short(fault.value)) for fault in faults]


def short(value: object) -> str | int | float | bool | None:
    """A refused value as it is sent back; None where that would help nobody."""
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
