"""The Lease that makes one operator write at a time, however many run.

No two clocks are compared: another holder's Lease has run out when it has not changed for its duration by our own clock.
What may still be in flight when ours runs out is covered by a validity that ends earlier than the Lease. Released in an
orderly end, so that a successor starts at once.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from rollout_operator.cluster import ClusterError
from rollout_operator.kube.api_client import KubernetesApi
from rollout_operator.kube.api_errors import ApiError
from rollout_operator.kube.resources import LEASES, Document

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LeaseTimes:
    """Seconds. A write that started within the validity ends before another may take the Lease."""

    duration_s: int = 30
    renew_every_s: float = 8.0
    retry_every_s: float = 2.0
    validity_s: float = 18.0
    """Counted from the start of the last renewal that succeeded; the longest call takes 10 s."""
    timeout_s: float = 5.0
    release_s: float = 3.0
    """How long giving it back is tried for."""


DEFAULT_TIMES = LeaseTimes()
FIRST_RELEASE_WAIT_S = 0.1


class LeaseLost(ClusterError):
    """Another holds the Lease: this process must write no more."""


@dataclass(frozen=True, slots=True)
class Sighting:
    """Another's Lease as it was first seen in this state, and when by our clock."""

    version: str
    seen: float

    def may_be_taken(self, spec: dict[str, Any], now: float, *, identity: str) -> bool:
        """Whether it is free, ours, or has not been renewed for its whole duration."""
        holder = spec.get("holderIdentity") or ""
        return holder in {"", identity} or now - self.seen > float(spec.get("leaseDurationSeconds") or 0)


class Lease:
    """One Lease, for one process. `identity` is the same for every start of the same pod and for no other."""

    def __init__(
        self,
        api: KubernetesApi,
        *,
        namespace: str,
        name: str,
        identity: str,
        times: LeaseTimes = DEFAULT_TIMES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._times = times
        self._clock = clock
        self._document: Document = {}
        self._valid_until = float("-inf")
        self._may_be_ours = False
        """Whether the server may hold it to be ours: it was, or a request for it was not answered."""
        self._sighting = Sighting("", clock())
        self.holder = ""
        """Who holds it, as far as is known."""

    @property
    def is_held(self) -> bool:
        """Whether it is ours, for long enough to finish one call."""
        return self._clock() < self._valid_until

    def reason(self) -> str:
        """Why nothing may be written; empty: it is ours."""
        if self.is_held:
            return ""
        who = f"held by {self.holder}" if self.holder and self.holder != self._identity else "not ours"
        return f"the lease {self._namespace}/{self._name} is {who}"

    async def acquire(self) -> None:
        """Wait until it is ours."""
        while True:
            try:
                if await self._try_to_take():
                    log.info("the lease %s/%s is ours", self._namespace, self._name)
                    return
            except ClusterError as error:
                log.warning("the lease %s/%s cannot be taken: %s", self._namespace, self._name, error)
            await asyncio.sleep(self._times.retry_every_s)

    async def keep(self) -> None:
        """Renew it until cancelled. LeaseLost when another has it.

        While the server does not answer, nothing is written once the validity is over; if nobody took the Lease meanwhile,
        it goes on.
        """
        wait = self._times.renew_every_s
        while True:
            await asyncio.sleep(wait)
            try:
                await self._renew()
                wait = self._times.renew_every_s
            except ClusterError as error:
                if isinstance(error, LeaseLost):
                    raise
                wait = self._times.retry_every_s
                log.warning("the lease could not be renewed: %s; again in %.0f s", error, wait)

    async def release(self) -> None:
        """Give it back, if the server may hold it to be ours. Best effort and bounded: it runs out by itself."""
        if not self._may_be_ours:
            return
        self._may_be_ours, self._valid_until = False, float("-inf")
        try:
            async with asyncio.timeout(self._times.release_s):
                await self._give_back()
        except TimeoutError:
            log.warning(
                "the lease %s/%s was not given back within %.0f s and runs out by itself",
                self._namespace,
                self._name,
                self._times.release_s,
            )

    async def _give_back(self) -> None:
        """Until it is no longer ours. Looks first: an answer to our last request may have been lost."""
        wait_s = FIRST_RELEASE_WAIT_S
        while True:
            try:
                self._document = await self._once(LEASES.get(self._namespace, self._name))
                if (self._document.get("spec") or {}).get("holderIdentity") != self._identity:
                    return
                await self._write({"holderIdentity": "", "leaseDurationSeconds": 1})
                log.info("the lease %s/%s is given back", self._namespace, self._name)
                return
            except ClusterError as error:
                if isinstance(error, ApiError) and (error.is_gone or error.is_forbidden):
                    return  # at an uninstallation the roles may go before us: it runs out by itself
                log.info("the lease is not given back yet: %s", error)
            await asyncio.sleep(wait_s)
            wait_s *= 2

    # --- one step

    async def _try_to_take(self) -> bool:
        started = self._clock()
        try:
            document = await self._once(LEASES.get(self._namespace, self._name))
        except ApiError as error:
            if not error.is_gone:
                raise
            return await self._create(started)
        spec, version = document.get("spec") or {}, document["metadata"]["resourceVersion"]
        self.holder = spec.get("holderIdentity") or ""
        if version != self._sighting.version:
            self._sighting = Sighting(version, self._clock())
        if not self._sighting.may_be_taken(spec, self._clock(), identity=self._identity):
            return False
        self._document = document
        changes = int(spec.get("leaseTransitions") or 0) + (self.holder != self._identity)
        taken = {"acquireTime": _now(), "leaseTransitions": changes}
        return await self._claim(started, {**self._holding(), **taken})

    async def _create(self, started: float) -> bool:
        self._document = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"namespace": self._namespace, "name": self._name},
        }
        spec = {**self._holding(), "acquireTime": _now(), "leaseTransitions": 0}
        body = {**self._document, "spec": spec}
        self._may_be_ours = True
        try:
            self._document = await self._once(LEASES.create(self._namespace, body))
        except ApiError as error:
            if error.already_exists:
                return False
            raise
        self._hold_since(started)
        return True

    async def _claim(self, started: float, spec: Document) -> bool:
        self._may_be_ours = True
        try:
            await self._write(spec)
        except ApiError as error:
            if error.is_conflict:
                return False  # another was faster
            raise
        self._hold_since(started)
        return True

    async def _renew(self) -> None:
        started = self._clock()
        try:
            await self._write(self._holding())
        except ApiError as error:
            if not (error.is_conflict or error.is_gone):
                raise
            await self._look_again(started, error)
            return
        self._hold_since(started)

    async def _look_again(self, started: float, error: ApiError) -> None:
        """A conflict may be the echo of our own renewal whose answer was lost; or it is another's now."""
        try:
            self._document = await self._once(LEASES.get(self._namespace, self._name))
        except ApiError as missing:
            if not missing.is_gone:
                raise
            if not await self._create(started):
                raise LeaseLost("the lease was deleted, and taken by another") from error
            return
        holder = (self._document.get("spec") or {}).get("holderIdentity") or ""
        self.holder = holder
        if holder not in {"", self._identity}:
            self._may_be_ours, self._valid_until = False, float("-inf")
            raise LeaseLost(f"the lease is now held by {holder}") from error
        await self._write(self._holding())
        self._hold_since(started)

    def _hold_since(self, started: float) -> None:
        self.holder = self._identity
        self._valid_until = started + self._times.validity_s

    def _holding(self) -> Document:
        return {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": self._times.duration_s,
            "renewTime": _now(),
        }

    async def _write(self, spec: Document) -> None:
        metadata = self._document["metadata"]
        body = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {
                "namespace": self._namespace,
                "name": self._name,
                "resourceVersion": metadata["resourceVersion"],
            },
            "spec": {**(self._document.get("spec") or {}), **spec},
        }
        self._document = await self._once(LEASES.update(self._namespace, self._name, body))

    async def _once(self, call: Any) -> Document:
        return await self._api.call_once(call, timeout_s=self._times.timeout_s)


def _now() -> str:
    """As a MicroTime: the API server refuses one without a fraction."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
