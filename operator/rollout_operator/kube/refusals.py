"""Why the API server did not take a pod, as the condition's one word. Pure."""

from __future__ import annotations

import re
from contextlib import suppress
from fractions import Fraction

from rollout_contract import quantities
from rollout_contract.status import Reason
from rollout_operator.cluster import ClusterError, PodRefused, TryLater
from rollout_operator.kube.api_errors import ApiError, ApiUnavailable

CONFLICT_RETRY_S = 1.0
"""The API server asks to try again where two creations race for the same quota."""

_QUOTA = ("exceeded quota", "failed quota")
_UNABLE = ("is being terminated", "cannot create resource", "status unknown for quota")


def refusal_of(error: ApiError | ApiUnavailable) -> ClusterError:
    """PodRefused if the pod as it is will not be taken, TryLater if the server is busy, else the error itself."""
    if isinstance(error, ApiUnavailable):
        return error
    if error.status == 429:
        return TryLater(str(error), retry_after_s=error.retry_after_s or CONFLICT_RETRY_S)
    if error.is_conflict:
        return TryLater(str(error), retry_after_s=CONFLICT_RETRY_S)
    if error.is_forbidden:
        reason = _reason_of_forbidden(error.text)
        lacks_room = reason is Reason.QUOTA_EXCEEDED and is_room_lacking(error.text)
        return PodRefused(error.text, reason=reason, lacks_room=lacks_room)
    if error.status in {400, 422}:
        return PodRefused(error.text, reason=Reason.POD_REJECTED)
    if "webhook" in error.text:
        return PodRefused(error.text, reason=Reason.CREATE_FAILED)
    return error


def is_room_lacking(text: str) -> bool:
    """Whether a quota refuses a pod for what others use: not if the pod alone is more than all of it, or states no need.

    Where the text is not of the usual form (`requested: cpu=2, used: cpu=3, limited: cpu=4`), it is taken to lack room.
    """
    if "must specify" in text:
        return False
    asked, most = (_amounts(text, word) for word in ("requested", "limited"))
    return not any(name in most and amount > most[name] for name, amount in asked.items())


def _amounts(text: str, word: str) -> dict[str, Fraction]:
    found = re.search(rf"\b{word}: (\S+=\S+?)(?:, |$)", text)
    pairs = (pair.partition("=") for pair in found[1].split(",")) if found else ()
    amounts: dict[str, Fraction] = {}
    for name, _, quantity in pairs:
        with suppress(ValueError):
            amounts[name] = quantities.parse(quantity)
    return amounts


def cannot_be_tried(error: ApiError) -> bool:
    """Whether something in the cluster refuses dry runs as such: then only the creation itself tells."""
    return error.status == 400 and "dry run" in error.text


def _reason_of_forbidden(text: str) -> Reason:
    if any(words in text for words in _QUOTA):
        return Reason.QUOTA_EXCEEDED
    if any(words in text for words in _UNABLE):
        return Reason.CREATE_FAILED
    return Reason.POD_REJECTED
