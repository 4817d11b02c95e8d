"""`Cluster` over a real API server: reads come from what the watches brought, writes go out and come back as news.

Composed by `program`. In the steady state a job costs no request: jobs and pods are in memory, and a status is written
only when it is worth it. Every write asks the gate first.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from rollout_contract import names
from rollout_operator.cluster import (
    ClusterError,
    Creation,
    Document,
    Event,
    JobKey,
    PodRef,
    StaleJob,
)
from rollout_operator.kube.api_client import KubernetesApi
from rollout_operator.kube.api_errors import ApiError
from rollout_operator.kube.caches import JobCache, PodCache, owner_of, version_of, whole
from rollout_operator.kube.events import EventRecorder
from rollout_operator.kube.feed import Feed
from rollout_operator.kube.gate import Gate
from rollout_operator.kube.job_watch import JobWatch
from rollout_operator.kube.pod_watch import PodWatch
from rollout_operator.kube.refusals import cannot_be_tried, refusal_of
from rollout_operator.kube.resources import JOBS, PODS, Call
from rollout_operator.kube.resync import Resync
from rollout_operator.pods import PodView

log = logging.getLogger(__name__)


class KubernetesCluster:
    """Jobs and pods of some namespaces (empty: of all). Belongs to one event loop.

    `ready` returns when jobs can be watched.
    """

    def __init__(
        self,
        api: KubernetesApi,
        gate: Gate,
        recorder: EventRecorder,
        *,
        namespaces: Sequence[str],
        ready: Callable[[], Coroutine[Any, Any, None]],
    ) -> None:
        self._api = api
        self._gate = gate
        self._recorder = recorder
        self._namespaces = tuple(namespaces)
        self.jobs = JobCache()
        self.pods = PodCache()
        self._feed = Feed()
        spaces: tuple[str | None, ...] = self._namespaces or (None,)
        self.pod_watches = tuple(
            PodWatch(api, self.pods, self._feed.pods_changed, namespace=space) for space in spaces
        )
        self.job_watch = JobWatch(self._on_job, namespaces=self._namespaces, ready=ready)
        self.resync = Resync(
            api, self.jobs, self._feed.job_changed, namespaces=spaces, dead=self.job_watch.renew
        )

    @property
    def is_synced(self) -> bool:
        """Whether every pod is known."""
        return all(watch.synced.is_set() for watch in self.pod_watches)

    @property
    def pods_age_s(self) -> float:
        """Seconds since the quietest watch of pods was last heard of."""
        return max(watch.age_s for watch in self.pod_watches)

    # --- jobs

    async def list_jobs(self) -> list[JobKey]:
        """See `Cluster`."""
        return self.jobs.keys()

    async def get_job(self, key: JobKey) -> Document | None:
        """See `Cluster`."""
        return self.jobs.get(key)

    async def write_status(
        self, key: JobKey, status: Document, *, job_uid: str, resource_version: str
    ) -> None:
        """See `Cluster`. The version is a precondition: an apply alone would write to a job that was created anew."""
        body = {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "metadata": {
                "name": key.name,
                "namespace": key.namespace,
                "uid": job_uid,
                "resourceVersion": resource_version,
            },
            "status": status,
        }
        await self._write_job(key, JOBS.apply(key.namespace, key.name, body, part="status"))

    async def set_finalizers(
        self, key: JobKey, finalizers: Sequence[str], *, job_uid: str, resource_version: str
    ) -> None:
        """Replace the job's finalizers. StaleJob if the job is no longer the one that was read."""
        metadata = {"uid": job_uid, "resourceVersion": resource_version, "finalizers": list(finalizers)}
        await self._write_job(key, JOBS.merge(key.namespace, key.name, {"metadata": metadata}))

    async def delete_job(self, key: JobKey, *, job_uid: str) -> None:
        """See `Cluster`. Only as it was seen: an edit at the last moment may have lengthened its life."""
        held = self.jobs.version(key)
        if held is None or held[0] != job_uid:
            return
        options = {
            "preconditions": {"uid": job_uid, "resourceVersion": str(held[1])},
            "propagationPolicy": "Background",
        }
        try:
            await self._write(JOBS.delete(key.namespace, key.name, options))
        except ApiError as error:
            if error.is_gone:
                return
            if error.is_conflict:
                await self._refresh(key)
                raise StaleJob(str(error)) from error
            raise

    async def _write_job(self, key: JobKey, call: Call) -> None:
        try:
            self.jobs.put(await self._write(call))
        except ApiError as error:
            if error.is_conflict or error.is_gone:
                await self._refresh(key)
                raise StaleJob(str(error)) from error
            raise

    async def _refresh(self, key: JobKey) -> None:
        """Read a job anew after a conflict: the watch may take a while to say what changed."""
        held = self.jobs.version(key)
        found = (await self._api.call(JOBS.list_one(key.namespace, key.name))).get("items") or []
        for document in found:
            self.jobs.put(whole(document))
        if not found and held is not None:
            self.jobs.remove(key, held[0])

    # --- pods

    async def list_pods(self, key: JobKey, *, job_uid: str) -> Sequence[PodView]:
        """See `Cluster`."""
        return self.pods.of_job(job_uid)

    async def create_pod(self, manifest: Document) -> Creation:
        """See `Cluster`."""
        metadata = manifest["metadata"]
        try:
            self.pods.put(await self._write(PODS.create(metadata["namespace"], manifest)))
        except ApiError as error:
            if error.already_exists:
                return await self._whose(metadata)
            raise refusal_of(error) from error
        return Creation.CREATED

    async def check_pod(self, manifest: Document) -> None:
        """See `Cluster`."""
        try:
            await self._write(PODS.check(manifest["metadata"]["namespace"], manifest))
        except ApiError as error:
            if not error.already_exists and not cannot_be_tried(error):
                raise refusal_of(error) from error

    async def _whose(self, metadata: Document) -> Creation:
        try:
            there = await self._api.call(PODS.get(metadata["namespace"], metadata["name"]))
        except ApiError as error:
            if error.is_gone:
                message = f"pod {metadata['name']} was there and is gone"
                raise ClusterError(message) from error
            raise
        theirs, ours = owner_of(there["metadata"]), owner_of(metadata)
        if theirs is not None and ours is not None and theirs["uid"] == ours["uid"]:
            self.pods.put(there)
            return Creation.OURS
        is_ending = there["metadata"].get("deletionTimestamp") is not None
        return Creation.FOREIGN_ENDING if is_ending else Creation.FOREIGN

    async def delete_pod(self, pod: PodRef, *, grace_s: float | None = None) -> bool:
        """See `Cluster`."""
        options: Document = {"preconditions": {"uid": pod.uid}}
        if grace_s is not None:
            options["gracePeriodSeconds"] = round(grace_s)
        try:
            answer = await self._write(PODS.delete(pod.namespace, pod.name, options))
        except ApiError as error:
            return await self._is_still_there(error, pod)
        if answer.get("kind") == "Pod" and answer["metadata"].get("deletionTimestamp"):
            self.pods.put(answer)
        return True

    async def annotate_pod(self, pod: PodRef, annotations: Mapping[str, str]) -> bool:
        """See `Cluster`."""
        change = {"metadata": {"uid": pod.uid, "annotations": dict(annotations)}}
        try:
            self.pods.put(await self._write(PODS.merge(pod.namespace, pod.name, change)))
        except ApiError as error:
            return await self._is_still_there(error, pod)
        return True

    async def _is_still_there(self, error: ApiError, pod: PodRef) -> bool:
        """False if the pod of that UID is gone (there is none, or a successor); any other error is raised.

        A conflict may mean a successor, or anything that a webhook or a busy server means by it: so it is looked at.
        """
        if error.is_conflict:
            try:
                there = await self._api.call(PODS.get(pod.namespace, pod.name))
            except ApiError as other:
                if not other.is_gone:
                    raise
            else:
                if there["metadata"]["uid"] == pod.uid:
                    raise error
        elif not error.is_gone:
            raise error
        self.pods.remove(pod.uid)
        return False

    async def emit(self, key: JobKey, events: Sequence[Event], *, job_uid: str) -> None:
        """See `Cluster`."""
        if events and not self._gate.reason:
            await self._recorder.emit(key, events, job_uid=job_uid)

    async def _write(self, call: Call) -> Document:
        return await self._api.call(call, before=self._gate.require)

    # --- news

    async def watch(self, changed: Callable[[JobKey], None]) -> None:
        """See `Cluster`. Jobs come only after all pods are known: one that is missing would be made again."""
        self._feed.open(changed)
        async with asyncio.TaskGroup() as tasks:
            for watch in self.pod_watches:
                tasks.create_task(watch.run())
            for watch in self.pod_watches:
                await watch.synced.wait()
            tasks.create_task(self.job_watch.run())
            tasks.create_task(self.resync.run())

    def _on_job(self, kind: str, document: Document) -> None:
        self.resync.heard()
        metadata = document["metadata"]
        key = JobKey(metadata["namespace"], metadata["name"])
        if kind == "DELETED":
            self.jobs.remove(key, metadata["uid"])
        elif self.jobs.version(key) == (metadata["uid"], version_of(metadata)):
            self._feed.pods_changed(key)  # the echo of our own write: what follows on it is not urgent
            return
        else:
            self.jobs.put(document)
        self._feed.job_changed(key)
