"""One reconcile of one job: read, observe, plan, apply, write the status. Called by the queue, never twice at once.

Holds nothing between calls but which templates the cluster takes: everything that it goes by is read anew.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from pydantic import ValidationError

from rollout_contract import names
from rollout_contract.errors import SpecError
from rollout_contract.spec import RolloutJob, parse_manifest
from rollout_contract.status import Reason, RolloutJobStatus, is_finished
from rollout_operator.apply import Applier
from rollout_operator.cluster import Cluster, Document, JobKey
from rollout_operator.conditions import Seen
from rollout_operator.observe import observe
from rollout_operator.plan import is_hands_off, make_plan
from rollout_operator.queue import WorkQueue
from rollout_operator.settings import OperatorSettings
from rollout_operator.status import rejected_status, status_of
from rollout_operator.status_writes import events_of, is_told_in_a_moment, is_worth_writing
from rollout_operator.streams import Streams
from rollout_operator.template_checks import TemplateChecks

log = logging.getLogger(__name__)

SUSPENDED_INTERVAL_S = 300.0
"""A suspended job is looked at this often, so that its keys stay alive."""
STARTED_S = 1.0
"""A job whose first workers come up is looked at so soon, if they are not heard of before."""


@dataclass(frozen=True, slots=True)
class Reconciler:
    """Brings jobs to what their specs say."""

    cluster: Cluster
    streams: Streams
    settings: OperatorSettings
    clock: Callable[[], float] = field(default=time.time)
    """Seconds since 1970."""
    checks: TemplateChecks = field(default_factory=TemplateChecks)

    async def reconcile(self, key: JobKey) -> float | None:
        """Work on one job. Returns after how many seconds to look again (None: when something changes).

        ClusterError when the cluster failed: everything that could be done was done, and the status was written.
        """
        document = await self.cluster.get_job(key)
        if document is None:
            await self.streams.forget(key)
            return None
        try:
            job = parse_manifest(document)
        except SpecError as error:
            return await self._reject(key, document, error)
        if is_hands_off(job):
            return None
        return await self._reconcile(key, job)

    async def _reconcile(self, key: JobKey, job: RolloutJob) -> float | None:
        observed = await observe(self.cluster, self.streams, job)
        now = self.clock()
        plan = make_plan(job, observed, now)
        outcome = await Applier(self.cluster, self.streams, self.settings, self.checks).apply(job, plan)
        if outcome.error is not None and not outcome.is_counted:
            raise outcome.error
        if plan.delete_job and outcome.error is None:
            return None
        if plan.open_stream and outcome.stream is None and outcome.error is None:
            return 0.0  # the next look, at once, sees what was opened, and one status says it all
        seen = Seen(job, observed, plan, outcome, now)
        if is_told_in_a_moment(seen):
            return STARTED_S if plan.requeue_after_s is None else min(STARTED_S, plan.requeue_after_s)
        status = status_of(seen, gateway=self.settings.job_url(key.namespace, key.name))
        await self._write(key, job, status, now)
        await self.cluster.emit(key, events_of(job.status, status, plan), job_uid=job.ref.uid)
        if outcome.error is not None:
            raise outcome.error
        waits = [plan.requeue_after_s, outcome.retry_after_s, self._interval_of(job, status)]
        return min((wait for wait in waits if wait is not None), default=None)

    def _interval_of(self, job: RolloutJob, status: RolloutJobStatus) -> float | None:
        if is_finished(status):
            return None
        return SUSPENDED_INTERVAL_S if job.spec.suspend else self.settings.observe_interval_s

    async def _write(self, key: JobKey, job: RolloutJob, status: RolloutJobStatus, now: float) -> None:
        if not is_worth_writing(job.status, status, now=now, settings=self.settings):
            return
        await self.cluster.write_status(
            key,
            status.to_document(),
            job_uid=job.ref.uid,
            resource_version=job.metadata.resource_version or "",
        )

    async def _reject(self, key: JobKey, document: Document, error: SpecError) -> float | None:
        """A spec that the API server took and we cannot read: said in the status, and nothing is touched."""
        metadata, spec = document.get("metadata") or {}, document.get("spec") or {}
        if (
            metadata.get("deletionTimestamp")
            or spec.get("managedBy", names.OPERATOR_NAME) != names.OPERATOR_NAME
        ):
            return None
        try:
            old = RolloutJobStatus.model_validate(document.get("status") or {}, by_alias=True)
        except ValidationError:
            log.warning("%s: the status cannot be read and is made anew", key)
            old = RolloutJobStatus()
        status = rejected_status(
            old,
            generation=metadata.get("generation") or 1,
            reason=Reason.SPEC_INVALID,
            message=str(error),
            now=self.clock(),
        )
        if status != old:
            await self.cluster.write_status(
                key,
                status.to_document(),
                job_uid=metadata["uid"],
                resource_version=metadata.get("resourceVersion") or "",
            )
        return None


async def run(reconciler: Reconciler) -> None:
    """Watch and reconcile every job until cancelled."""
    queue: WorkQueue[JobKey] = WorkQueue(reconciler.reconcile)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(queue.run())
        tasks.create_task(reconciler.cluster.watch(queue.add))
