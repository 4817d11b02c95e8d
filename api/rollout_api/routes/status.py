"""How a job is: conditions and live numbers, and one row per worker."""

from __future__ import annotations

from fastapi import APIRouter, Depends
from starlette.responses import Response

from rollout_api.errors import Kind, documented
from rollout_api.gateway import Allowed, TheGateway, TheJob, look_at
from rollout_api.models import JobStatus, WorkerList
from rollout_api.routes.jobs import JOB
from rollout_api.views import status_of, worker_row

router = APIRouter(tags=["status"])


@router.get(
    JOB + "/status",
    summary="A job's conditions and live numbers",
    response_model=JobStatus,
    dependencies=[Depends(Allowed("get"))],
    responses=documented(Kind.NOT_FOUND, Kind.UNAVAILABLE),
)
async def get_status(job: TheJob, gateway: TheGateway) -> Response:
    """The first half comes from the resource, `live` from Redis, each part with its age. If Redis is away, `live` is
    null and `liveError` says why.
    """

    async def make() -> bytes:
        status = status_of(job, await gateway.live.get(job))
        return status.model_dump_json(by_alias=True).encode()

    # Many ask for the same: it is put into words a few times a second, whatever their number.
    return Response(await gateway.statuses.get(job.ref, make), media_type="application/json")


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
