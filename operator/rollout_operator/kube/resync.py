"""A second look at jobs, once a minute: whether the watch brought what it should have, and what it missed.

One list of names and versions for all jobs of a namespace. A watch that is silent because nothing happens and one that is
dead look the same from within; here they do not. What was missed is read and handed on, so a lost event costs a minute;
a watch that has brought nothing else either since the look before is dead, and that is told.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing

from rollout_operator.cluster import ClusterError, JobKey
from rollout_operator.kube.api_client import KubernetesApi
from rollout_operator.kube.caches import JobCache, job_key, version_of, whole
from rollout_operator.kube.resources import JOBS, METADATA_ONLY

log = logging.getLogger(__name__)

RESYNC_EVERY_S = 60.0
SETTLE_S = 3.0
"""How long an event may be under way before it counts as missed."""

Found = dict[JobKey, tuple[str, int]]
"""UID and version of each job."""


def behind(cache: JobCache, found: Found) -> set[JobKey]:
    """Jobs of which the cache holds an older version than the server, or none, or one that is there no more. Pure."""
    older = {key for key, (_, version) in found.items() if (cache.version(key) or ("", -1))[1] < version}
    return older | {key for key in cache.keys() if key not in found}  # noqa: SIM118 - no mapping


class Resync:
    """The second look. `changed` is called for each job whose event was missed, `dead` where the watch brought nothing."""

    def __init__(
        self,
        api: KubernetesApi,
        cache: JobCache,
        changed: Callable[[JobKey], None],
        *,
        namespaces: Sequence[str | None],
        dead: Callable[[], None] = lambda: None,
        every_s: float = RESYNC_EVERY_S,
        settle_s: float = SETTLE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self._cache = cache
        self._changed = changed
        self._dead = dead
        self._is_silent = True
        self._namespaces = namespaces
        self._every_s = every_s
        self._settle_s = settle_s
        self._clock = clock
        self._current = clock()
        self.missed = 0
        """Events that did not come."""

    @property
    def age_s(self) -> float:
        """Seconds since the watch of jobs was last known to be up to date."""
        return self._clock() - self._current

    def heard(self) -> None:
        """The watch has brought an event."""
        self._current = self._clock()
        self._is_silent = False

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await asyncio.sleep(self._every_s)
            try:
                await self.look()
            except ClusterError as error:
                log.info("jobs cannot be listed: %s", error)

    async def look(self) -> None:
        """One look. ClusterError if the server does not answer."""
        was_silent, self._is_silent = self._is_silent, True
        suspects = behind(self._cache, await self._list())
        if suspects:
            await asyncio.sleep(self._settle_s)
            found = await self._list()
            missed = suspects & behind(self._cache, found)
            for key in sorted(missed):
                await self._repair(key, found)
            self.missed += len(missed)
            if missed:
                log.warning(
                    "the watch of jobs did not bring %d changes, such as to %s", len(missed), min(missed)
                )
                if was_silent and self._is_silent:
                    self._dead()
                return
        self._current = self._clock()

    async def _list(self) -> Found:
        found: Found = {}
        for namespace in self._namespaces:
            async with aclosing(self._api.pages(JOBS.list(namespace, accept=METADATA_ONLY))) as pages:
                async for page in pages:
                    for item in page.get("items") or ():
                        metadata = item["metadata"]
                        found[job_key(metadata)] = (metadata["uid"], version_of(metadata))
        return found

    async def _repair(self, key: JobKey, found: Found) -> None:
        if key in found:
            page = await self._api.call(JOBS.list_one(key.namespace, key.name))
            for document in page.get("items") or ():
                self._cache.put(whole(document))
        else:
            held = self._cache.version(key)
            if held is not None:
                self._cache.remove(key, held[0])
        self._changed(key)
