"""The policy's weights: publish a version, see which there are, fetch one."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Header, Path, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from rollout_api import upload
from rollout_api.bodies import media_type_of
from rollout_api.conditional import (
    ByteRange,
    RangeNotSatisfiableError,
    entity_tag,
    matches_none,
    range_of,
    version_to_match,
)
from rollout_api.digests import content_digest_of, expected_sha256
from rollout_api.errors import Kind, Problem, documented
from rollout_api.gateway import Allowed, Gateway, TheGateway, TheJob, look_at
from rollout_api.models import Published, WeightsList
from rollout_api.routes.jobs import JOB
from rollout_api.views import time_text, weights_list
from rollout_contract import quantities
from rollout_contract.errors import WeightsError
from rollout_contract.messages import WeightsRecord
from rollout_contract.spec import Determinism, RolloutJob
from rollout_stream.aio import Weights

router = APIRouter(tags=["weights"])
RESOURCE: Final = "rolloutjobs/weights"
MEDIA_TYPE: Final = "application/vnd.safetensors"
CURLS_DEFAULT: Final = "application/x-www-form-urlencoded"
"""What `curl --data-binary` says of every body that nobody named: as good as nothing said. The bytes are checked anyway."""
TAKEN: Final = frozenset(
    {"", "application/octet-stream", "application/x-safetensors", MEDIA_TYPE, CURLS_DEFAULT}
)
LATEST: Final = "latest"
PIECE_BYTES: Final = 256 * 1024
_VERSION: Final = r"^([1-9][0-9]{0,15}|latest)$"
_KEY: Final = re.compile(r"[\x21-\x7e]{1,128}")
_BINARY: Final[dict[str, Any]] = {"schema": {"type": "string", "format": "binary"}}

_FILE: Final[dict[int | str, dict[str, Any]]] = {
    200: {"description": "The safetensors file.", "content": {MEDIA_TYPE: _BINARY}},
    206: {"description": "The piece that `Range` asks for.", "content": {MEDIA_TYPE: _BINARY}},
    304: {"description": "It is what `If-None-Match` names."},
}

Version = Annotated[
    str,
    Path(pattern=_VERSION, description="A policy version, or `latest`.", examples=["118", LATEST]),
]


@router.put(
    JOB + "/weights",
    summary="Publish new weights",
    status_code=201,
    response_model=Published,
    dependencies=[Depends(Allowed("update", RESOURCE))],
    responses=documented(
        Kind.MALFORMED,
        Kind.NOT_FOUND,
        Kind.TIMEOUT,
        Kind.NOT_POSSIBLE,
        Kind.PRECONDITION_FAILED,
        Kind.TOO_LARGE,
        Kind.UNSUPPORTED_MEDIA,
        Kind.WEIGHTS_INVALID,
        Kind.TOO_MANY,
        Kind.UNAVAILABLE,
    ),
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {MEDIA_TYPE: _BINARY, "application/octet-stream": _BINARY},
        }
    },
)
async def put_weights(
    request: Request,
    job: TheJob,
    gateway: TheGateway,
    content_digest: Annotated[
        str | None,
        Header(alias="Content-Digest", max_length=1024, description="RFC 9530, `sha-256=:BASE64:`; checked."),
    ] = None,
    checksum: Annotated[
        str | None,
        Header(alias="X-Checksum-Sha256", max_length=128, description="The same in hexadecimal; checked."),
    ] = None,
    idempotency_key: Annotated[
        str | None,
        Header(
            alias="Idempotency-Key",
            max_length=128,
            description="Makes a repeat harmless: the same key answers the version that it published.",
        ),
    ] = None,
    if_match: Annotated[
        str | None,
        Header(
            alias="If-Match",
            max_length=256,
            description="The newest version as the caller knows it: 412 otherwise.",
        ),
    ] = None,
) -> JSONResponse:
    """The body is a safetensors file of the policy's state dict, and fits what the workers declared. It becomes the next
    version once it is there as a whole; until then nothing of it is visible.
    """
    _check_job(job)
    asked = _upload_request(request, job, content_digest, checksum, idempotency_key, if_match)
    weights = gateway.weights(job)
    with gateway.uploads:
        await _check_version(asked, weights)
        record = await upload.receive_weights(
            request.stream(), asked, weights, count=gateway.metrics.uploaded_bytes.inc
        )
    gateway.forget(job)
    published = Published(policy_version=record.version, size_bytes=record.size, digest=record.digest)
    path = JOB.format(namespace=job.metadata.namespace, name=job.metadata.name)
    headers = {"etag": entity_tag(str(record.version)), "location": f"{path}/weights/{record.version}"}
    return JSONResponse(published.model_dump(mode="json"), 201, headers)


def _check_job(job: RolloutJob) -> None:
    if job.spec.determinism is Determinism.STRICT and job.spec.weights.max_staleness is None:
        raise Problem(
            Kind.NOT_POSSIBLE,
            "With determinism Strict and no spec.weights.maxStaleness every batch is made with version 0: nothing can "
            "be published.",
        )


def _upload_request(
    request: Request,
    job: RolloutJob,
    content_digest: str | None,
    checksum: str | None,
    idempotency_key: str | None,
    if_match: str | None,
) -> upload.UploadRequest:
    """What the headers ask for. Problem for what they say wrong, before a byte of the body is read."""
    media_type, _ = media_type_of(request)
    if media_type not in TAKEN or request.headers.get("content-encoding", "identity").lower() != "identity":
        raise Problem(
            Kind.UNSUPPORTED_MEDIA,
            f"The body is said to be {media_type[:80]!r}. Weights are taken as a safetensors file, not encoded further: "
            f"send Content-Type: {MEDIA_TYPE} or application/octet-stream.",
            members=upload.ACCEPTED,
        )
    max_bytes = quantities.to_bytes(job.spec.weights.max_bytes)
    length = int(request.headers["content-length"]) if "content-length" in request.headers else None
    if length is not None and length > max_bytes:
        raise upload.too_large(max_bytes)
    if idempotency_key is not None and not _KEY.fullmatch(idempotency_key):
        raise Problem(
            Kind.INVALID, "header.Idempotency-Key: 1 to 128 printable ASCII characters without spaces."
        )
    try:
        return upload.UploadRequest(
            max_bytes=max_bytes,
            sha256=expected_sha256(content_digest, checksum),
            expected_version=version_to_match(if_match, "version"),
            idempotency_key=idempotency_key,
        )
    except ValueError as error:
        raise Problem(Kind.MALFORMED, f"The headers cannot be read: {error}.") from error


async def _check_version(asked: upload.UploadRequest, weights: Weights) -> None:
    """Refuse an overtaken upload before its body is read; a key may belong to the very upload that overtook it."""
    if asked.expected_version is None or asked.idempotency_key is not None:
        return
    record = await weights.latest()
    newest = record.version if record else 0
    if newest != asked.expected_version:
        raise upload.version_problem(asked.expected_version, newest)


@router.get(
    JOB + "/weights",
    summary="The versions that are kept",
    dependencies=[Depends(Allowed("get", RESOURCE))],
    responses=documented(Kind.NOT_FOUND, Kind.UNAVAILABLE),
)
async def list_weights(job: TheJob, gateway: TheGateway) -> WeightsList:
    """Newest first, each with size, digest, time and how many workers act with it."""
    records = await gateway.weights(job).versions()
    look = await look_at(gateway, job)
    return weights_list(records, look.facts.workers, look.server_now)


@router.get(
    JOB + "/weights/{version}",
    summary="Fetch a version",
    response_class=Response,
    dependencies=[Depends(Allowed("get", RESOURCE))],
    responses=_FILE | documented(Kind.NOT_FOUND, Kind.RANGE, Kind.TOO_MANY, Kind.UNAVAILABLE),
)
async def get_weights(
    version: Version,
    job: TheJob,
    gateway: TheGateway,
    range_: Annotated[
        str | None,
        Header(alias="Range", max_length=64, description="`bytes=0-1023`; one range. Others are ignored."),
    ] = None,
    if_none_match: Annotated[
        str | None, Header(alias="If-None-Match", max_length=1024, description="`ETag`s that the caller has.")
    ] = None,
    if_range: Annotated[
        str | None,
        Header(alias="If-Range", max_length=256, description="`Range` holds for this `ETag` only."),
    ] = None,
) -> Response:
    """The bytes as they were published. The `ETag` is their SHA-256, so it is the same wherever they are."""
    gateway.downloads.refuse_if_full()  # not later: once the answer has begun it cannot become a refusal
    weights = gateway.weights(job)
    record = _record_of(await weights.versions(), version)
    headers = _headers_of(record)
    if matches_none(if_none_match, record.digest):
        return Response(status_code=304, headers=headers)
    wanted = _range_of(range_ if if_range is None or if_range == headers["etag"] else None, record)
    piece = wanted or ByteRange(0, record.size)
    headers["content-length"] = str(piece.stop - piece.start)
    if wanted is not None:
        headers["content-range"] = wanted.header(record.size)
    chunks = weights.read(record, piece.start, piece.stop)
    try:
        first = await anext(chunks)  # what is gone by now is said before the answer begins
    except WeightsError as error:
        raise Problem(Kind.NOT_FOUND, f"{error}.") from error
    body = _taken(gateway, first, chunks)
    return _Download(body, 206 if wanted else 200, headers)


def _record_of(records: Sequence[WeightsRecord], version: str) -> WeightsRecord:
    newest = max(records, key=lambda record: record.version, default=None)
    number = newest.version if version == LATEST and newest else version
    found = next((record for record in records if str(record.version) == str(number)), None)
    if found is None:
        kept = ", ".join(str(record.version) for record in records) or "none"
        raise Problem(
            Kind.NOT_FOUND,
            f"There is no version {version} of the weights. Kept: {kept}.",
            members={"currentVersion": newest.version if newest else 0},
        )
    return found


def _headers_of(record: WeightsRecord) -> dict[str, str]:
    return {
        "etag": entity_tag(record.digest),
        "accept-ranges": "bytes",
        "repr-digest": content_digest_of(record.digest),
        "x-policy-version": str(record.version),
        "x-published-at": time_text(record.time) or "",
        "cache-control": "private, no-cache",
    }


def _range_of(header: str | None, record: WeightsRecord) -> ByteRange | None:
    try:
        return range_of(header, record.size)
    except RangeNotSatisfiableError as error:
        raise Problem(
            Kind.RANGE,
            f"Version {record.version} has {record.size} bytes.",
            headers={"content-range": f"bytes */{record.size}"},
        ) from error


class _Download(StreamingResponse):
    """A stream of bytes whose source is closed at once when the client goes, not when it is collected."""

    def __init__(self, chunks: AsyncGenerator[bytes], status: int, headers: dict[str, str]) -> None:
        super().__init__(chunks, status, headers, media_type=MEDIA_TYPE)
        self._chunks = chunks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._chunks):
            await super().__call__(scope, receive, send)


async def _taken(gateway: Gateway, first: bytes, chunks: AsyncIterator[bytes]) -> AsyncGenerator[bytes]:
    """The chunks in pieces, so that a slow client is seen to take some."""
    with gateway.downloads:
        chunk: bytes | None = first
        while chunk is not None:
            for start in range(0, len(chunk), PIECE_BYTES):
                piece = chunk[start : start + PIECE_BYTES]
                gateway.metrics.downloaded_bytes.inc(len(piece))
                yield piece
            chunk = await anext(chunks, None)
