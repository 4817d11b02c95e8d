"""The watch of our worker pods in one namespace (or all): list, then follow, for ever. Feeds the cache.

Label-selected on the server, so that no other pod is sent. A clean end is followed on from the last version that was
seen; a version that is too old (410) means a new list; silence means a dead connection. Started by `cluster`, before any
job is looked at.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from rollout_contract import names
from rollout_operator.cluster import ClusterError, JobKey
from rollout_operator.kube.api_client import KubernetesApi
from rollout_operator.kube.api_errors import ApiError
from rollout_operator.kube.caches import PodCache, version_of
from rollout_operator.kube.resources import PODS, Document

log = logging.getLogger(__name__)

SELECTOR = names.LABEL_JOB_UID
MAX_RETRY_S = 10.0
RESUME_AFTER_S = 0.05
"""After a clean end: at once, but never so fast that a server which ends every watch is flooded."""
SERVER_ENDS_AFTER_S = 290


class PodWatch:
    """One watch. `changed` is called with the key of each job whose pods changed."""

    def __init__(
        self,
        api: KubernetesApi,
        cache: PodCache,
        changed: Callable[[JobKey], None],
        *,
        namespace: str | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self._cache = cache
        self._changed = changed
        self._namespace = namespace
        self._clock = clock
        self._heard = clock()
        self.synced = asyncio.Event()
        """Set once the first list is in the cache."""

    @property
    def age_s(self) -> float:
        """Seconds since the server was last heard of."""
        return self._clock() - self._heard

    async def run(self) -> None:
        """Watch until cancelled."""
        version, failures = "", 0
        while True:
            try:
                if not version:
                    version = await self._list()
                    self.synced.set()
                async with aclosing(self._follow(version)) as versions:
                    async for seen in versions:
                        version, failures = seen, 0
                await asyncio.sleep(RESUME_AFTER_S)
            except ClusterError as error:
                if isinstance(error, ApiError) and error.is_expired:
                    log.info("pods in %s: the watch is too far behind and lists anew", self._where)
                    version = ""
                    continue
                wait = min(MAX_RETRY_S, 0.2 * 2.0 ** min(failures, 16)) * (0.5 + 0.5 * random.random())
                failures += 1
                log.info("pods in %s: %s; again in %.1f s", self._where, error, wait)
                await asyncio.sleep(wait)

    @property
    def _where(self) -> str:
        return self._namespace or "all namespaces"

    async def _list(self) -> str:
        """Take all pods in; the version to follow on from."""
        listed: list[str] = []
        version = ""
        async with aclosing(self._api.pages(PODS.list(self._namespace, labelSelector=SELECTOR))) as pages:
            async for page in pages:
                self._heard = self._clock()
                version = page["metadata"]["resourceVersion"]
                for pod in page.get("items") or ():
                    listed.append(pod["metadata"]["uid"])
                    self._take(pod)
        for key in self._cache.keep_only(
            listed, namespace=self._namespace, version=version_of({"resourceVersion": version})
        ):
            self._changed(key)
        return version

    async def _follow(self, version: str) -> AsyncGenerator[str, None]:
        """Follow on from a version; yields each version that was seen."""
        query = {
            "labelSelector": SELECTOR,
            "resourceVersion": version,
            "timeoutSeconds": str(SERVER_ENDS_AFTER_S + random.randrange(20)),
        }
        async with aclosing(self._api.stream(PODS.watch(self._namespace, **query))) as events:
            async for event in events:
                self._heard = self._clock()
                self._on_event(event["type"], event["object"])
                yield event["object"]["metadata"]["resourceVersion"]

    def _on_event(self, kind: str, pod: Document) -> None:
        if kind == "BOOKMARK":
            return
        self._take(pod)
        if kind == "DELETED":
            self._cache.remove(pod["metadata"]["uid"])

    def _take(self, pod: Document) -> None:
        key = self._cache.put(pod)
        if key is not None:
            self._changed(key)
