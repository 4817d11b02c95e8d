"""An upload of weights: from the request's body to a version, never whole in memory, visible only when it is complete.

Called by the weights route. Reads the safetensors header first and refuses what does not fit before a byte of the
tensors is stored; then hands chunk after chunk to the stream; then checks length and digest; then publishes.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final

from starlette.requests import ClientDisconnect

from rollout_api import safetensors
from rollout_api.errors import Kind, Problem, weights_problem
from rollout_api.live import JobPort, Upload
from rollout_contract.errors import VersionConflict, WeightsRejected
from rollout_contract.messages import Layout, WeightsRecord

PUBLISHER: Final = "gateway"


@dataclass(frozen=True, slots=True)
class UploadRequest:
    """What the request's headers say of the body."""

    length: int | None
    max_bytes: int
    sha256: str | None
    expected_version: int | None
    idempotency_key: str | None


async def receive_weights(
    body: AsyncIterator[bytes], request: UploadRequest, job: JobPort, *, layout: Layout | None
) -> WeightsRecord:
    """The version that the body became (or became before, under the same key). Problem for whatever is wrong."""
    reader = _Reader(body, request.max_bytes)
    try:
        head, header = await _read_header(reader)
        _check_header(header, request, layout)
        upload = job.upload()
        try:
            await upload.write(head)
            async for data in reader.rest():
                await upload.write(data)
            _check_body(reader, header, request)
            return await _published(upload, reader, request)
        finally:
            await upload.discard()
    except ClientDisconnect as error:
        raise Problem(
            Kind.MALFORMED, f"The upload was cut off after {reader.size} bytes; nothing of it is kept."
        ) from error


class _Reader:
    """The body, counted and digested as it comes."""

    def __init__(self, body: AsyncIterator[bytes], max_bytes: int) -> None:
        self._body = body
        self._max_bytes = max_bytes
        self._pushed_back = b""
        self._sha256 = hashlib.sha256()
        self.size = 0

    @property
    def hexdigest(self) -> str:
        return self._sha256.hexdigest()

    async def first(self, count: int) -> bytes:
        """The next `count` bytes; fewer where the body ends."""
        found = bytearray(self._pushed_back)
        while len(found) < count:
            data = await self._next()
            if data is None:
                break
            found += data
        self._pushed_back = bytes(found[count:])
        return bytes(found[:count])

    async def rest(self) -> AsyncIterator[bytes]:
        """Everything that has not been read."""
        data: bytes | None = self._pushed_back
        self._pushed_back = b""
        while data is not None:
            if data:
                yield data
            data = await self._next()

    async def _next(self) -> bytes | None:
        data = await anext(self._body, None)
        if data is not None:
            self.size += len(data)
            if self.size > self._max_bytes:
                raise too_large(self._max_bytes)
            self._sha256.update(data)
        return data


def too_large(max_bytes: int) -> Problem:
    """The answer to more bytes than the job's `weights.maxBytes`."""
    return Problem(
        Kind.TOO_LARGE,
        f"The job takes weights of at most {max_bytes} bytes (spec.weights.maxBytes).",
        members={"maxBytes": max_bytes},
    )


async def _read_header(reader: _Reader) -> tuple[bytes, safetensors.Header]:
    try:
        first = await reader.first(safetensors.LENGTH_BYTES)
        length = safetensors.header_length(first)
        text = await reader.first(length)
        if len(text) < length:
            raise safetensors.NoSafetensors(f"{safetensors.NOT_SAFETENSORS}: it ends inside of its header")
        return first + text, safetensors.parse_header(text)
    except safetensors.NoSafetensors as error:
        raise Problem(Kind.WEIGHTS_INVALID, f"{error}. Send a safetensors file.", members=ACCEPTED) from error


ACCEPTED: Final = {"acceptedFormat": "safetensors"}


def _check_header(header: safetensors.Header, request: UploadRequest, layout: Layout | None) -> None:
    problems = layout.differences(header.layout) if layout is not None else []
    if problems:
        raise weights_problem(safetensors.clipped(problems))
    if header.size > request.max_bytes:
        raise too_large(request.max_bytes)
    if request.length is not None and request.length != header.size:
        raise weights_problem(
            [f"the file's header tells of {header.size} bytes, Content-Length of {request.length}"]
        )


def _check_body(reader: _Reader, header: safetensors.Header, request: UploadRequest) -> None:
    if reader.size != header.size:
        raise weights_problem([f"the file's header tells of {header.size} bytes, the body has {reader.size}"])
    if request.sha256 is not None and request.sha256 != reader.hexdigest:
        raise Problem(
            Kind.DIGEST_MISMATCH,
            f"The body's SHA-256 is {reader.hexdigest}, the header promised {request.sha256}. Nothing of it is kept.",
            members={"expected": request.sha256, "found": reader.hexdigest},
        )


async def _published(upload: Upload, reader: _Reader, request: UploadRequest) -> WeightsRecord:
    try:
        record = await upload.publish(
            expected=request.expected_version, idempotency_key=request.idempotency_key, publisher=PUBLISHER
        )
    except VersionConflict as error:
        raise version_problem(error.expected, error.newest) from error
    except WeightsRejected as error:
        raise weights_problem(error.problems) from error
    if record.digest != reader.hexdigest:
        raise Problem(
            Kind.KEY_REUSED,
            f"This Idempotency-Key has published version {record.version} with other bytes. Use a new key.",
            members={"policyVersion": record.version, "digest": record.digest},
        )
    return record


def version_problem(expected: int, newest: int) -> Problem:
    """The answer to an `If-Match` that was overtaken."""
    return Problem(
        Kind.PRECONDITION_FAILED,
        f"The newest policy version is {newest}, not {expected}: fetch it, or publish without If-Match.",
        members={"currentVersion": newest},
    )
