"""How a job is: conditions and live numbers, and one row per worker."""

from __future__ import annotations

from fastapi import APIRouter, Depends

from rollout_api.errors import Kind, documented
from rollout_api.gateway import Allowed, TheGateway, TheJob, look_at
from rollout_api.models import JobStatus, WorkerList
from rollout_api.routes.jobs import JOB
from rollout_api.views import status_of, worker_row

router = APIRouter(tags=["status"])


@router.get(
    JOB + "/status",
    summary="A job's conditions and live numbers",
    dependencies=[Depends(Allowed("get"))],
    responses=documented(Kind.NOT_FOUND, Kind.UNAVAILABLE),
)
async def get_status(job: TheJob, gateway: TheGateway) -> JobStatus:
    """The first half comes from the resource, `live` from Redis, each part with its age. If Redis is away, `live` is
    null and `liveError` says why.
    """
    return status_of(job, await gateway.live.get(job))


@router.get(
    JOB + "/workers",
    summary="A job's workers",
    dependencies=[Depends(Allowed("get"))],
    responses=documented(Kind.NOT_FOUND, Kind.UNAVAILABLE),
)
async def list_workers(job: TheJob, gateway: TheGateway) -> WorkerList:
    """One row per worker that has written a heartbeat, by its newest."""
    look = await look_at(gateway, job)
    beats = sorted(look.facts.workers, key=lambda beat: (beat.group, beat.index))
    return WorkerList(items=[worker_row(beat, look.server_now) for beat in beats])
