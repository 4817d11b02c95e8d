"""The job's seed: read it, with what is derived from it, and change it while the job runs."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Header, Query, Request
from starlette.responses import Response

from rollout_api.bodies import read_model
from rollout_api.conditional import entity_tag, version_to_match
from rollout_api.errors import Kind, Problem, documented
from rollout_api.gateway import Allowed, TheGateway, TheJob, look_at
from rollout_api.models import EnvSeed, NewSeed, Seed
from rollout_api.routes.jobs import JOB
from rollout_api.seeds_view import MAX_ENV_SEEDS, derived_seeds
from rollout_contract.spec import Determinism
from rollout_contract.status import is_finished

router = APIRouter(tags=["seed"])
RESOURCE = "rolloutjobs/seed"


@router.get(
    JOB + "/seed",
    summary="The job's seed",
    response_model_exclude_none=True,
    dependencies=[Depends(Allowed("get", RESOURCE))],
    responses=documented(Kind.NOT_FOUND, Kind.INVALID, Kind.UNAVAILABLE),
)
async def get_seed(
    job: TheJob,
    gateway: TheGateway,
    response: Response,
    env_seeds: Annotated[
        bool,
        Query(
            alias="envSeeds",
            description=f"Also the seed of each environment of the workers there are, at most {MAX_ENV_SEEDS}.",
        ),
    ] = False,
) -> Seed:
    """Seed and epoch in force; the `ETag` is the epoch. Environments' seeds are those with which the attempts that run
    now were seeded, or will be at their next batch.
    """
    state = await gateway.control(job).seed()
    response.headers["etag"] = entity_tag(str(state.epoch))
    derived: list[EnvSeed] | None = None
    if env_seeds:
        look = await look_at(gateway, job)
        derived = derived_seeds(job.spec, look.facts.workers, seed=state.seed, epoch=state.epoch)
    return Seed(seed=state.seed, epoch=state.epoch, env_seeds=derived)


@router.put(
    JOB + "/seed",
    summary="Seed the job anew",
    response_model_exclude_none=True,
    dependencies=[Depends(Allowed("update", RESOURCE))],
    responses=documented(
        Kind.MALFORMED,
        Kind.NOT_FOUND,
        Kind.NOT_POSSIBLE,
        Kind.PRECONDITION_FAILED,
        Kind.TOO_LARGE,
        Kind.UNSUPPORTED_MEDIA,
        Kind.INVALID,
        Kind.UNAVAILABLE,
    ),
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": {"$ref": "#/components/schemas/NewSeed"}}},
        }
    },
)
async def put_seed(
    request: Request,
    job: TheJob,
    gateway: TheGateway,
    response: Response,
    if_match: Annotated[
        str | None,
        Header(
            alias="If-Match",
            max_length=256,
            description="The epoch that this change is based on: 412 if it passed.",
        ),
    ] = None,
) -> Seed:
    """Raises the epoch. The batch that a worker has in hand is its last of the old one, and its running trajectories end
    as truncated; then all environments are seeded anew and reset.
    """
    if job.spec.determinism is Determinism.STRICT:
        raise Problem(Kind.NOT_POSSIBLE, "With determinism Strict the seed stays what the manifest says.")
    if is_finished(job.status):
        raise Problem(Kind.NOT_POSSIBLE, "The job is finished: nothing of it will be seeded any more.")
    try:
        expected = version_to_match(if_match, "epoch")
    except ValueError as error:
        raise Problem(Kind.INVALID, f"header.If-Match: {error}.") from error
    wanted = await read_model(request, NewSeed)
    state = await gateway.control(job).set_seed(wanted.seed, expected_epoch=expected)
    gateway.forget(job)
    response.headers["etag"] = entity_tag(str(state.epoch))
    return Seed(seed=state.seed, epoch=state.epoch)
