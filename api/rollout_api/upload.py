"""An upload of weights: from the request's body to a version, never whole in memory, visible only when it is complete.

Called by the weights route. What bytes may be weights, and how they become a version, is the stream's matter
(`rollout_stream.publishing`); here is what HTTP adds: limits, lengths, digests, preconditions, and words for each.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Final

from starlette.requests import ClientDisconnect

from rollout_api.errors import Kind, Problem, weights_problem
from rollout_contract.errors import VersionConflict, WeightsError, WeightsRejected
from rollout_contract.messages import WeightsRecord
from rollout_stream.aio import Weights, WeightsUpload

PUBLISHER: Final = "gateway"
ACCEPTED: Final = {"acceptedFormat": "safetensors"}


@dataclass(frozen=True, slots=True)
class UploadRequest:
    """What the request's headers say of the body."""

    max_bytes: int
    sha256: str | None
    expected_version: int | None
    idempotency_key: str | None


async def receive_weights(
    body: AsyncIterator[bytes], request: UploadRequest, weights: Weights, *, count: Callable[[int], None]
) -> WeightsRecord:
    """The version that the body became (or became before, under the same key). Problem for whatever is wrong."""
    async with weights.upload() as upload:
        try:
            async for data in body:
                count(len(data))
                if upload.size + len(data) > request.max_bytes:
                    raise too_large(request.max_bytes)
                await upload.write(data)
            _check_digest(request.sha256, upload)
            return await _published(upload, request)
        except ClientDisconnect as error:
            text = f"The upload was cut off after {upload.size} bytes; nothing of it is kept."
            raise Problem(Kind.MALFORMED, text) from error
        except VersionConflict as error:
            raise version_problem(error.expected, error.newest) from error
        except WeightsRejected as error:
            raise weights_problem(error.problems, members=ACCEPTED) from error
        except WeightsError as error:
            raise Problem(Kind.CONFLICT, f"{error}.") from error


def _check_digest(expected: str | None, upload: WeightsUpload) -> None:
    if expected is not None and expected != upload.digest:
        raise Problem(
            Kind.DIGEST_MISMATCH,
            f"The body's SHA-256 is {upload.digest}, the header promised {expected}. Nothing of it is kept.",
            members={"expected": expected, "found": upload.digest},
        )


async def _published(upload: WeightsUpload, request: UploadRequest) -> WeightsRecord:
    record = await upload.publish(
        expected=request.expected_version, idempotency_key=request.idempotency_key, publisher=PUBLISHER
    )
    if record.digest != upload.digest:
        raise Problem(
            Kind.KEY_REUSED,
            f"This Idempotency-Key has published version {record.version} with other bytes. Use a new key.",
            members={"policyVersion": record.version, "digest": record.digest},
        )
    return record


def too_large(max_bytes: int) -> Problem:
    """The answer to more bytes than the job's `weights.maxBytes`."""
    return Problem(
        Kind.TOO_LARGE,
        f"The job takes weights of at most {max_bytes} bytes (spec.weights.maxBytes).",
        members={"maxBytes": max_bytes},
    )


def version_problem(expected: int, newest: int) -> Problem:
    """The answer to an `If-Match` that was overtaken."""
    return Problem(
        Kind.PRECONDITION_FAILED,
        f"The newest policy version is {newest}, not {expected}: fetch it, or publish without If-Match.",
        members={"currentVersion": newest},
    )
