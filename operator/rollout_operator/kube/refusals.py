"""Why the API server did not take a pod, as the condition's one word. Pure."""

from __future__ import annotations

from rollout_contract.status import Reason
from rollout_operator.cluster import ClusterError, PodRefused, TryLater
from rollout_operator.kube.api_errors import ApiError, ApiUnavailable

CONFLICT_RETRY_S = 1.0
"""The API server asks to try again where two creations race for the same quota."""

_QUOTA = ("exceeded quota", "failed quota")
_UNABLE = ("is being terminated", "cannot create resource")


def refusal_of(error: ApiError | ApiUnavailable) -> ClusterError:
    """PodRefused if the pod as it is will not be taken, TryLater if the server is busy, else the error itself."""
    if isinstance(error, ApiUnavailable):
        return error
    if error.status == 429:
        return TryLater(str(error), retry_after_s=error.retry_after_s or CONFLICT_RETRY_S)
    if error.is_conflict:
        return TryLater(str(error), retry_after_s=CONFLICT_RETRY_S)
    if error.is_forbidden:
        return PodRefused(error.text, reason=_reason_of_forbidden(error.text))
    if error.status in {400, 422}:
        return PodRefused(error.text, reason=Reason.POD_REJECTED)
    if "webhook" in error.text:
        return PodRefused(error.text, reason=Reason.CREATE_FAILED)
    return error


def cannot_be_tried(error: ApiError) -> bool:
    """Whether something in the cluster refuses dry runs as such: then only the creation itself tells."""
    return error.status == 400 and "dry run" in error.text


def _reason_of_forbidden(text: str) -> Reason:
    if any(words in text for words in _QUOTA):
        return Reason.QUOTA_EXCEEDED
    if any(words in text for words in _UNABLE):
        return Reason.CREATE_FAILED
    return Reason.POD_REJECTED
