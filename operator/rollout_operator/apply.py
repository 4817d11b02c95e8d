"""Carries out a plan: the only place that changes pods and streams. Decides nothing.

Every step may be repeated: a pod that is there is as good as created, one that is gone as good as deleted. What the
cluster or the stream refuses comes back in the outcome, so that the status can say it; a step that fails does not
keep the later, independent ones from being tried.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from rollout_contract.errors import SpecError, StreamError
from rollout_contract.names import WorkerId, pod_name
from rollout_contract.spec import RolloutJob
from rollout_contract.status import Reason
from rollout_operator.cluster import (
    Cluster,
    ClusterError,
    Creation,
    Document,
    JobKey,
    PodRef,
    PodRefused,
)
from rollout_operator.decisions import Count, Create, Delete, Outcome, Plan, Refusal, without_groups
from rollout_operator.manifests import worker_pod
from rollout_operator.observed import StreamTrouble
from rollout_operator.pods import PodView
from rollout_operator.settings import OperatorSettings
from rollout_operator.streams import Streams
from rollout_operator.template_checks import Template, TemplateChecks
from rollout_operator.troubles import trouble_of

log = logging.getLogger(__name__)

MAX_IN_FLIGHT = 20
REFUSED_RETRY_S = 15.0
"""A refused pod (quota, admission, a foreign name) is tried again this often."""
ENDING_RETRY_S = 2.0
"""A name that a predecessor's pod still has."""

T = TypeVar("T")


@dataclass(slots=True)
class _Notes:
    """What goes into the outcome, gathered step by step."""

    refusals: list[Refusal] = field(default_factory=list)
    """Of creations that were tried."""
    rejected: list[Refusal] = field(default_factory=list)
    """Of templates that were looked at before."""
    stream: StreamTrouble | None = None
    retry_after_s: float | None = None
    error: ClusterError | None = None

    def retry(self, seconds: float) -> None:
        """Ask to be called again."""
        self.retry_after_s = seconds if self.retry_after_s is None else min(seconds, self.retry_after_s)


@dataclass(frozen=True, slots=True)
class Applier:
    """What is needed to carry out plans."""

    cluster: Cluster
    streams: Streams
    settings: OperatorSettings
    checks: TemplateChecks

    async def apply(self, job: RolloutJob, plan: Plan) -> Outcome:
        """Carry out a plan. Never raises ClusterError or StreamError: they are part of the outcome."""
        notes = _Notes()
        # What was counted must stand on the pods before anything builds on it.
        await self._pods(plan.count, self._count, notes)
        if notes.error is not None:
            return dataclasses.replace(_outcome(notes), is_counted=False)
        await self._prepare_stream(job, plan, notes)
        plan = await self._check(job, plan, notes)
        await self._pods(plan.delete, self._delete, notes)
        if notes.stream is None and plan.create:
            await self._create_all(job, plan, notes)
        await self._settle_stream(job, plan, notes)
        if plan.delete_job:
            await _noting(self.cluster.delete_job(_key(job), job_uid=job.ref.uid), notes)
        return _outcome(notes)

    async def _prepare_stream(self, job: RolloutJob, plan: Plan, notes: _Notes) -> None:
        if plan.open_stream:
            await _noting_stream(self.streams.open(job), notes)
            notes.retry(0.0)
        if plan.reopen_stream:
            await _noting_stream(self.streams.reopen(job), notes)
            notes.retry(0.0)
        if plan.tune_stream:
            await _noting_stream(self.streams.tune(job), notes)

    async def _check(self, job: RolloutJob, plan: Plan, notes: _Notes) -> Plan:
        """The plan without what a template that the cluster does not take would start or take down."""
        held, is_known = set[str](), True
        for create in plan.check:
            group = create.worker.group
            try:
                refusal = await self._refusal_of(job, create, plan)
            except ClusterError as error:
                notes.error, is_known = notes.error or error, False
                continue
            if refusal is not None:
                held.add(group)
                notes.rejected.append(Refusal(create.worker.slot, refusal.reason, str(refusal)))
                notes.retry(REFUSED_RETRY_S)
        if not is_known or (held and plan.is_fresh):
            held = set(plan.groups)
        return without_groups(plan, held) if held else plan

    async def _refusal_of(self, job: RolloutJob, create: Create, plan: Plan) -> PodRefused | None:
        group = create.worker.group
        template = Template(job.ref.uid, group, plan.groups[group].template_hash)

        def manifest() -> Document:
            return worker_pod(job, create, self.settings, template_hash=template.hash)

        try:
            return await self.checks.refusal_of(template, self.cluster, manifest)
        except SpecError as error:
            return PodRefused(str(error), reason=Reason.POD_REJECTED)

    async def _settle_stream(self, job: RolloutJob, plan: Plan, notes: _Notes) -> None:
        for worker in plan.release:
            await _noting_stream(self.streams.release(job, worker), notes)
        if plan.marker is not None:
            await _noting_stream(self.streams.finish(job, plan.marker), notes)

    async def _pods(self, items: Sequence[T], act: Callable[[T], Awaitable[object]], notes: _Notes) -> None:
        for part in _parts(items):
            for error in await _gather(act(item) for item in part):
                notes.error = notes.error or error

    async def _count(self, count: Count) -> None:
        await self.cluster.annotate_pod(_ref(count.pod), count.annotation)

    async def _delete(self, delete: Delete) -> None:
        log.info("%s: deleting pod %s (%s)", delete.pod.namespace, delete.pod.name, delete.why.value)
        await self.cluster.delete_pod(_ref(delete.pod))

    async def _create_all(self, job: RolloutJob, plan: Plan, notes: _Notes) -> None:
        """One first, then at once as many as have gone well: a quota that is used up is asked once, not fifty times."""
        if plan.announce:
            await _noting_stream(self.streams.announce(job, plan.announce), notes)
            if notes.stream is not None:
                return
        waiting, allowed, running = list(reversed(plan.create)), 1, set[asyncio.Task[None]]()
        made = set[WorkerId]()
        try:
            while running or (waiting and not _is_stopped(notes)):
                while waiting and len(running) < allowed and not _is_stopped(notes):
                    running.add(asyncio.create_task(self._create(job, waiting.pop(), plan, notes, made)))
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for error in await _gather(done):
                    notes.error = notes.error or error
                allowed = min(MAX_IN_FLIGHT, allowed + len(done))
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            self.streams.withdraw(job, [worker for worker in plan.announce if worker not in made])

    async def _create(
        self, job: RolloutJob, create: Create, plan: Plan, notes: _Notes, made: set[WorkerId]
    ) -> None:
        slot, group = create.worker.slot, plan.groups[create.worker.group]
        try:
            manifest = worker_pod(job, create, self.settings, template_hash=group.template_hash)
            creation = await self.cluster.create_pod(manifest)
        except PodRefused as error:
            notes.refusals.append(Refusal(slot, error.reason, str(error)))
            notes.retry(REFUSED_RETRY_S)
            return
        except SpecError as error:
            notes.refusals.append(Refusal(slot, Reason.POD_REJECTED, str(error)))
            notes.retry(REFUSED_RETRY_S)
            return
        if creation in {Creation.CREATED, Creation.OURS}:
            made.add(create.worker)
        elif creation is Creation.FOREIGN:
            name = pod_name(job.metadata.name, create.worker)
            message = f"pod {name} exists and belongs to somebody else: it is left alone; remove or rename it"
            notes.refusals.append(Refusal(slot, Reason.POD_NAME_TAKEN, message))
            notes.retry(REFUSED_RETRY_S)
        elif creation is Creation.FOREIGN_ENDING:
            notes.retry(ENDING_RETRY_S)


def _is_stopped(notes: _Notes) -> bool:
    """Whether the next creation would meet what the last one met. A name that is taken is one worker's trouble."""
    others = (refusal.reason is not Reason.POD_NAME_TAKEN for refusal in notes.refusals)
    return notes.error is not None or any(others)


async def _gather(calls: Iterable[Awaitable[object]]) -> list[ClusterError]:
    """Run calls at once and return those cluster errors that they ended with; any other error is raised."""
    results = await asyncio.gather(*calls, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException) and not isinstance(result, ClusterError):
            raise result
    return [result for result in results if isinstance(result, ClusterError)]


async def _noting(call: Awaitable[object], notes: _Notes) -> None:
    try:
        await call
    except ClusterError as error:
        notes.error = notes.error or error


async def _noting_stream(call: Awaitable[object], notes: _Notes) -> None:
    try:
        await call
    except StreamError as error:
        notes.stream = notes.stream or trouble_of(error)
        notes.retry(REFUSED_RETRY_S)


def _parts(items: Sequence[T]) -> Iterable[Sequence[T]]:
    """The items, MAX_IN_FLIGHT at a time."""
    for at in range(0, len(items), MAX_IN_FLIGHT):
        yield items[at : at + MAX_IN_FLIGHT]


def _outcome(notes: _Notes) -> Outcome:
    return Outcome(
        refusals=tuple(sorted((*notes.rejected, *notes.refusals), key=lambda refusal: refusal.slot)),
        stream=notes.stream,
        retry_after_s=notes.retry_after_s,
        error=notes.error,
    )


def _ref(pod: PodView) -> PodRef:
    return PodRef(pod.namespace, pod.name, pod.uid)


def _key(job: RolloutJob) -> JobKey:
    return JobKey(job.metadata.namespace, job.metadata.name)
