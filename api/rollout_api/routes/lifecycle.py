"""A job's life by request: the sugar over `spec.suspend`, and its early end."""

from __future__ import annotations

from typing import Any, Final

from fastapi import APIRouter, Depends
from starlette.responses import JSONResponse

from rollout_api.errors import Kind, Problem, documented
from rollout_api.gateway import Allowed, TheGateway, TheJobNow
from rollout_api.patching import ThePatcher
from rollout_api.routes.jobs import JOB, job_response
from rollout_contract.messages import EndKind
from rollout_contract.spec import RolloutJob
from rollout_contract.status import ConditionType, Reason, is_finished, is_true

router = APIRouter(tags=["jobs", "lifecycle"])


_SWITCH: Final[dict[str, Any]] = {
    "response_model": RolloutJob,
    "dependencies": [Depends(Allowed("patch"))],
    "responses": documented(Kind.NOT_FOUND, Kind.CONFLICT, Kind.IMMUTABLE, Kind.UNAVAILABLE),
}


@router.post(JOB + "/suspend", summary="Suspend a job", **_SWITCH)
async def suspend_job(patcher: ThePatcher) -> JSONResponse:
    """Workers finish their batches and go; everything else stays. `Suspended` is True once none is left."""
    return job_response(await patcher.apply({"spec": {"suspend": True}}))


@router.post(JOB + "/resume", summary="Resume a job", **_SWITCH)
async def resume_job(patcher: ThePatcher) -> JSONResponse:
    """Workers are made again, and go on where the job was."""
    return job_response(await patcher.apply({"spec": {"suspend": False}}))


@router.post(
    JOB + "/complete",
    summary="Complete a job with the frames it has",
    status_code=202,
    response_model=RolloutJob,
    dependencies=[Depends(Allowed("patch"))],
    responses=documented(Kind.NOT_FOUND, Kind.NOT_POSSIBLE, Kind.UNAVAILABLE),
)
async def complete_job(job: TheJobNow, gateway: TheGateway) -> JSONResponse:
    """No further batch is taken, readers come to their end, and the job becomes Complete."""
    if is_true(job.status, ConditionType.FAILED):
        raise Problem(Kind.NOT_POSSIBLE, "The job has failed; a finished job stays as it is.")
    if not is_finished(job.status):
        control = gateway.control(job)
        await control.finish(
            EndKind.FINISHED, reason=Reason.COMPLETED_BY_REQUEST, message="asked for at the gateway"
        )
        if (await control.read_control()).ended == EndKind.FAILED:
            raise Problem(Kind.NOT_POSSIBLE, "The job has failed; a finished job stays as it is.")
        gateway.forget(job)
    return job_response(job, 202)
