"""Whether the gateway lives and can work, and its metrics."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

from fastapi import APIRouter, Depends
from starlette.responses import JSONResponse, Response

from rollout_api import metrics
from rollout_api.errors import documented
from rollout_api.gateway import ChecksItself, Gateway, TheGateway, TheIdentity
from rollout_api.identity import Identity
from rollout_api.listing import list_visible
from rollout_api.live import Look
from rollout_api.models import Health, Live
from rollout_api.readiness import OK
from rollout_api.store import LabelSelector, StoreError
from rollout_api.views import live_of

logger = logging.getLogger(__name__)
router = APIRouter(tags=["health"])
_METRICS: Final[dict[int | str, dict[str, Any]]] = {
    200: {"content": {"text/plain": {"schema": {"type": "string"}}}}
}
MAX_JOBS: Final = 100


@router.get("/healthz", summary="Whether the gateway lives")
async def healthz() -> Health:
    """Answers as long as the event loop turns. Needs no token."""
    return Health(status="ok")


@router.get(
    "/readyz",
    summary="Whether the gateway can work",
    response_model=Health,
    responses={503: {"model": Health, "description": "Something that it needs does not answer."}},
)
async def readyz(gateway: TheGateway) -> JSONResponse:
    """Asks the store of jobs and Redis. Needs no token."""
    checks = dict(await gateway.readiness.checks())
    is_ready = all(text == OK for text in checks.values())
    health = Health(status="ok" if is_ready else "failing", checks=checks)
    return JSONResponse(health.model_dump(mode="json"), 200 if is_ready else 503)


@router.get(
    "/metrics",
    summary="Metrics for Prometheus",
    response_class=Response,
    dependencies=[Depends(ChecksItself("list"))],
    responses=_METRICS | documented(),
)
async def get_metrics(gateway: TheGateway, identity: TheIdentity) -> Response:
    """The gateway's own, and the live numbers of jobs (the first hundred that the caller may list)."""
    jobs = await _live_jobs(gateway, identity)
    return Response(gateway.metrics.exposition(jobs), media_type=metrics.CONTENT_TYPE)


async def _live_jobs(gateway: Gateway, identity: Identity) -> list[tuple[str, str, Live]]:
    try:
        page = await list_visible(gateway, identity, selector=LabelSelector(), limit=MAX_JOBS)
    except StoreError as error:
        logger.warning("no metrics of jobs: %s", error)
        return []
    looks = await asyncio.gather(*(gateway.live.get(job) for job in page.jobs))
    return [
        (job.metadata.namespace, job.metadata.name, live_of(look))
        for job, look in zip(page.jobs, looks, strict=True)
        if isinstance(look, Look)
    ]
