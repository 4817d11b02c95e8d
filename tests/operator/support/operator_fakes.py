"""A cluster and streams in memory for the reconcile loop: they behave as the real ones, and fail when they are told to."""

from __future__ import annotations

import asyncio
import copy
from dataclasses import replace

from rollout_contract.messages import EndKind
from rollout_contract.spec import RolloutJob
from rollout_operator.cluster import ClusterError, Creation, JobKey, StaleJob
from rollout_operator.observed import StreamFacts
from rollout_operator.pods import PodView
from rollout_operator.times import to_text


class Killed(BaseException):
    """The operator was killed: nothing after this happens."""


class FakeCluster:
    """`Cluster` over dicts. `fail(call)` is asked before each call and may raise."""

    def __init__(self, document, clock, *, fail=lambda call: None):
        self.document = document
        self.clock = clock
        self.fail = fail
        self.pods = {}
        self.events = []
        self.calls = []
        self.created = []
        self.in_flight = 0
        self.most_in_flight = 0
        self.status_writes = 0
        self._uids = 0

    async def _call(self, name):
        self.calls.append(name)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            await asyncio.sleep(0)
            self.fail(name)
        finally:
            self.in_flight -= 1

    async def list_jobs(self):
        return [] if self.document is None else [KEY]

    async def get_job(self, key):
        await self._call("get_job")
        return copy.deepcopy(self.document)

    async def list_pods(self, key, *, job_uid):
        await self._call("list_pods")
        own = [p for p in self.pods.values() if p["metadata"]["ownerReferences"][0]["uid"] == job_uid]
        return [PodView.of(pod) for pod in own]

    async def create_pod(self, manifest):
        name = manifest["metadata"]["name"]
        await self._call(f"create {name}")
        there = self.pods.get(name)
        if there is not None:
            if (
                there["metadata"]["ownerReferences"][0]["uid"]
                == manifest["metadata"]["ownerReferences"][0]["uid"]
            ):
                return Creation.OURS
            return Creation.FOREIGN_ENDING if "deletionTimestamp" in there["metadata"] else Creation.FOREIGN
        self._uids += 1
        pod = copy.deepcopy(manifest)
        pod["metadata"] |= {"uid": f"pod-{self._uids}", "creationTimestamp": to_text(self.clock())}
        pod["status"] = {"phase": "Pending"}
        self.pods[name] = pod
        self.created.append(name)
        return Creation.CREATED

    async def check_pod(self, manifest):
        await self._call(f"check {manifest['metadata']['name']}")

    async def delete_pod(self, pod, *, grace_s=None):
        await self._call(f"delete {pod.name}")
        found = self.pods.get(pod.name)
        if found is None or found["metadata"]["uid"] != pod.uid:
            return False
        if found["status"]["phase"] in ("Succeeded", "Failed", "Pending"):
            del self.pods[pod.name]
        else:
            found["metadata"] |= {
                "deletionTimestamp": to_text(self.clock() + 60),
                "deletionGracePeriodSeconds": 60,
            }
        return True

    async def annotate_pod(self, pod, annotations):
        await self._call(f"annotate {pod.name}")
        found = self.pods.get(pod.name)
        if found is None:
            return False
        found["metadata"].setdefault("annotations", {}).update(annotations)
        return True

    async def write_status(self, key, status, *, job_uid, resource_version):
        await self._call("write_status")
        if self.document is None or self.document["metadata"]["resourceVersion"] != resource_version:
            raise StaleJob("another version")
        self.status_writes += 1
        self.document["status"] = copy.deepcopy(status)
        self._bump()

    async def delete_job(self, key, *, job_uid):
        await self._call("delete_job")
        self.document = None
        self.pods.clear()

    async def emit(self, key, events, *, job_uid):
        self.events += events

    # --- what happens around it

    def edit(self, **spec):
        self.document["spec"] |= spec
        self.document["metadata"]["generation"] += 1
        self._bump()

    def _bump(self):
        self.document["metadata"]["resourceVersion"] += "0"

    def kubelet(self):
        """Pods become ready; pods that were asked to end are gone."""
        for name, pod in list(self.pods.items()):
            if "deletionTimestamp" in pod["metadata"]:
                del self.pods[name]
            elif pod["status"]["phase"] == "Pending":
                now = to_text(self.clock())
                pod["status"] = {
                    "phase": "Running",
                    "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": now}],
                    "containerStatuses": [{"name": "worker", "state": {"running": {"startedAt": now}}}],
                }

    def end(self, name, code, message=""):
        now = to_text(self.clock())
        state = {"exitCode": code, "reason": "Error", "message": message, "startedAt": now, "finishedAt": now}
        self.pods[name]["status"] = {
            "phase": "Failed",
            "containerStatuses": [{"name": "worker", "state": {"terminated": state}}],
        }


KEY = JobKey("rl", "a")


class FakeStreams:
    """`Streams` of one job in memory. `fail` as in the cluster."""

    def __init__(self, clock, *, fail=lambda call: None):
        self.clock = clock
        self.fail = fail
        self.facts = StreamFacts(is_open=False, key="rollout:{rl/a/3f2a9c1d}:batches")
        self.trouble = None
        self.calls = []
        self.forgotten = []
        self.withdrawn = set()

    async def _call(self, name):
        self.calls.append(name)
        await asyncio.sleep(0)
        self.fail(name)

    async def look(self, job):
        self.calls.append("look")
        free = {w.slot for w in self.withdrawn if self.facts.attempts.get(w.slot) == w.attempt}
        attempts = {slot: a - (slot in free) for slot, a in self.facts.attempts.items()}
        attempts = {slot: a for slot, a in attempts.items() if a >= 0}
        return self.trouble or replace(self.facts, server_time=self.clock(), attempts=attempts)

    async def open(self, job: RolloutJob):
        await self._call("open")
        if not self.facts.is_open:
            self.facts = replace(
                self.facts, is_open=True, total_frames=job.spec.collector.total_frames, seed=7
            )

    async def tune(self, job):
        await self._call("tune")
        self.facts = replace(self.facts, in_tune=True, total_frames=job.spec.collector.total_frames)

    async def finish(self, job, marker):
        await self._call(f"finish {marker.kind}")
        if self.facts.end is None or self.facts.end.kind == EndKind.SUSPENDED:
            self.facts = replace(self.facts, end=marker)

    async def reopen(self, job):
        await self._call("reopen")
        self.facts = replace(self.facts, end=None)

    async def release(self, job, worker):
        await self._call(f"release {worker}")
        left = {slot: n for slot, n in self.facts.reservations.items() if slot != worker.slot}
        self.facts = replace(self.facts, reservations=left)

    async def announce(self, job, workers):
        await self._call("announce")
        new = {w.slot: w.attempt for w in workers if w.attempt > self.facts.attempts.get(w.slot, -1)}
        self.facts = replace(self.facts, attempts={**self.facts.attempts, **new})
        self.withdrawn -= set(workers)

    def withdraw(self, job, workers):
        self.withdrawn |= set(workers)

    def confirm(self, job, workers):
        self.withdrawn -= set(workers)

    def restart(self):
        """The operator starts anew: what it held in memory is gone."""
        self.withdrawn = set()

    async def forget(self, key):
        self.forgotten.append(key)

    async def close(self):
        pass


def error_of(kind, **more):
    """An error of the cluster by its class."""
    return kind("the API server answered 500", **more) if more else kind("the API server answered 500")


__all__ = ["KEY", "ClusterError", "FakeCluster", "FakeStreams", "Killed", "error_of"]
