"""Whether another operator is gone for good, by its Lease. One request a minute for each operator, however many its jobs.

Gone is one whose Lease we have seen unheld (given back, run out or deleted) for ten minutes, by our own clock: an upgrade, a
node that is lost, an image that has to be pulled are no reason to take its jobs. A Lease that we may not read says nothing.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from rollout_operator.cluster import ClusterError
from rollout_operator.kube.api_client import KubernetesApi
from rollout_operator.kube.api_errors import ApiError
from rollout_operator.kube.lease import Sighting
from rollout_operator.kube.resources import LEASES, Document

log = logging.getLogger(__name__)

GONE_AFTER_S = 600.0
ASK_EVERY_S = 55.0
"""A little less than jobs are looked at, so that each look has a fresh answer."""
TIMEOUT_S = 5.0


@dataclass(slots=True)
class _Other:
    """What is known of one operator. Times by our own clock."""

    asked: float
    sighting: Sighting
    unheld_since: float | None = None


class OtherLeases:
    """The Leases of other operators, by `namespace/name`."""

    def __init__(self, api: KubernetesApi, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._api = api
        self._clock = clock
        self._known: dict[str, _Other] = {}

    async def is_gone(self, governor: str) -> bool:
        """See `Others`."""
        now = self._clock()
        known = self._known.setdefault(governor, _Other(float("-inf"), Sighting("", now)))
        if now - known.asked >= ASK_EVERY_S:
            known.asked = now
            is_held = await self._is_held(governor, known)
            known.unheld_since = (
                None if is_held else now if known.unheld_since is None else known.unheld_since
            )
        return known.unheld_since is not None and now - known.unheld_since >= GONE_AFTER_S

    async def _is_held(self, governor: str, known: _Other) -> bool:
        """Whether somebody holds it; also where that is not known."""
        namespace, _, name = governor.partition("/")
        if not namespace or not name or "/" in name:
            return True
        try:
            found: Document = await self._api.call_once(LEASES.get(namespace, name), timeout_s=TIMEOUT_S)
        except ApiError as error:
            if not error.is_gone:
                log.debug("the lease %s cannot be read: %s", governor, error)
            return not error.is_gone
        except ClusterError as error:
            log.debug("the lease %s cannot be read: %s", governor, error)
            return True
        version, spec, now = found["metadata"]["resourceVersion"], found.get("spec") or {}, self._clock()
        if version != known.sighting.version:
            known.sighting = Sighting(version, now)
        return not known.sighting.may_be_taken(spec, now, identity="")
