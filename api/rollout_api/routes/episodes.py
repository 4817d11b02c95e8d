"""What the policy achieves: returns and lengths of the newest episodes."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import APIRouter, Depends, Query

from rollout_api.errors import Kind, documented
from rollout_api.gateway import Allowed, TheGateway, TheJob
from rollout_api.models import Episodes
from rollout_api.routes.jobs import JOB
from rollout_api.views import episodes_of

router = APIRouter(tags=["status"])
MAX_EPISODES: Final = 10_000
MAX_POINTS: Final = 1000


@router.get(
    JOB + "/episodes",
    summary="Returns and lengths of the newest episodes",
    dependencies=[Depends(Allowed("get"))],
    responses=documented(Kind.NOT_FOUND, Kind.INVALID, Kind.UNAVAILABLE),
)
async def get_episodes(
    job: TheJob,
    gateway: TheGateway,
    last: Annotated[
        int, Query(ge=1, le=MAX_EPISODES, description="Newest episodes whose spread is wanted.")
    ] = 100,
    points: Annotated[int, Query(ge=1, le=MAX_POINTS, description="Most points of the curve.")] = 100,
) -> Episodes:
    """Quantiles over the newest `last` episodes, and a curve over all that are kept (a few thousand)."""
    progress = await gateway.control(job).read_progress(episodes=MAX_EPISODES)
    return episodes_of(progress.episodes, total=progress.counters.episodes, last=last, points=points)
