"""The local run's `job.json` as the store that the gateway asks: `JobStore` over `JobFile`.

Made by `run`. The file's calls block for milliseconds and may wait for a lock, so they go to a thread; a watch is woken by
the file's own notices. Errors are translated without paths.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, TypeVar

from rollout_api.identity import Identity
from rollout_api.merge_patch import merged
from rollout_api.store import (
    AlreadyExists,
    Conflict,
    JobChange,
    JobPage,
    LabelSelector,
    NotFound,
    StoreError,
    StoreUnavailable,
    Unsupported,
)
from rollout_cli.local.job_file import JobConflict, JobExists, JobFile, JobFileError, JobGone
from rollout_contract.spec import RolloutJob, parse_manifest

T = TypeVar("T")


class LocalStore:
    """One job."""

    def __init__(self, file: JobFile) -> None:
        self._file = file

    def acting_for(self, caller: Identity) -> LocalStore:
        """A run knows no rights: whoever has its token may do everything."""
        return self

    async def list(
        self, namespace: str | None, *, selector: LabelSelector, limit: int, continue_token: str = ""
    ) -> JobPage:
        """The job, if it is in that namespace and its labels match."""
        if continue_token:
            raise Unsupported("a local run has one job: there is no second page")
        try:
            job = await self._read()
        except NotFound:
            return JobPage([])
        is_meant = namespace in (None, job.metadata.namespace)
        return JobPage([job] if is_meant and selector.matches(job.metadata.labels or {}) else [])

    async def get(self, namespace: str, name: str) -> RolloutJob:
        """The job, if it is this one. NotFound."""
        job = await self._read()
        if (job.metadata.namespace, job.metadata.name) != (namespace, name):
            raise NotFound(f"there is no job {namespace}/{name} in this run")
        return job

    async def create(self, job: RolloutJob, *, dry_run: bool = False) -> RolloutJob:
        """AlreadyExists while the run's own job is there."""
        document = job.to_document()
        if dry_run:
            found = await self.list(None, selector=LabelSelector.parse(""), limit=1)
            if found.jobs:
                raise AlreadyExists("a local run has one job, and it is there")
            return job
        return parse_manifest(await self._call(self._file.create, document))

    async def patch(
        self,
        namespace: str,
        name: str,
        patch: Mapping[str, Any],
        *,
        resource_version: str,
        dry_run: bool = False,
    ) -> RolloutJob:
        """The job with the patch applied to spec, labels and annotations. NotFound, Conflict."""
        job = await self.get(namespace, name)
        document = merged(job.to_document(), {k: v for k, v in patch.items() if k in {"spec", "metadata"}})
        if job.metadata.resource_version != resource_version:
            raise Conflict(
                f"the job's resourceVersion is {job.metadata.resource_version}, not {resource_version}"
            )
        if dry_run:
            return parse_manifest(document)
        stored = await self._call(
            self._file.update,
            spec=document["spec"],
            metadata=document["metadata"],
            expected=resource_version,
            uid=job.metadata.uid,
        )
        return parse_manifest(stored)

    async def delete(self, namespace: str, name: str, *, resource_version: str | None = None) -> RolloutJob:
        """Remove the job; the run stops its workers and ends. NotFound, Conflict."""
        job = await self.get(namespace, name)
        return parse_manifest(
            await self._call(self._file.delete, expected=resource_version, uid=job.metadata.uid)
        )

    async def watch(self, namespace: str, name: str) -> AsyncIterator[JobChange]:
        """The job now, then at each change, until it is deleted."""
        loop, changed = asyncio.get_running_loop(), asyncio.Event()
        # before the first read: what is written between the two would be missed
        unsubscribe = self._file.subscribe(lambda: _wake(loop, changed))
        try:
            job = await self.get(namespace, name)
            seen = None
            while True:
                if job.metadata.resource_version != seen:
                    seen = job.metadata.resource_version
                    yield JobChange(job)
                await changed.wait()
                changed.clear()
                try:
                    job = await self.get(namespace, name)
                except NotFound:
                    yield JobChange(job, is_deleted=True)
                    return
        finally:
            unsubscribe()

    async def check(self) -> None:
        """The file is where it was."""
        await self._read()

    async def _read(self) -> RolloutJob:
        return parse_manifest(await self._call(self._file.read))

    async def _call(self, function: Callable[..., T], *arguments: Any, **options: Any) -> T:
        try:
            return await asyncio.to_thread(function, *arguments, **options)
        except JobFileError as error:
            raise _translated(error) from error


def _wake(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(event.set)


def _translated(error: JobFileError) -> StoreError:
    match error:
        case JobGone():
            return NotFound("the run's job is gone")
        case JobConflict():
            return Conflict(f"the job's resourceVersion is {error.found}, not {error.expected}")
        case JobExists():
            return AlreadyExists("a local run has one job, and it is there")
        case _:
            return StoreUnavailable("the run's job cannot be read or written now")
