"""Where a job's stream is, for learners that know the gateway alone."""

from __future__ import annotations

from fastapi import APIRouter, Depends

from rollout_api.errors import Kind, documented
from rollout_api.gateway import Allowed, TheGateway, TheJob
from rollout_api.models import StreamPlace
from rollout_api.routes.jobs import JOB
from rollout_contract.keys import JobKeys
from rollout_contract.podenv import StreamAddress
from rollout_stream.connection import ServerAddress

router = APIRouter(tags=["status"])


@router.get(
    JOB + "/stream",
    summary="Where a job's stream is",
    dependencies=[Depends(Allowed("get"))],
    responses=documented(Kind.NOT_FOUND, Kind.UNAVAILABLE),
)
async def get_stream(job: TheJob, gateway: TheGateway) -> StreamPlace:
    """The address of the server that holds the batches, and their key. No secrets: the server wants its password too."""
    address = gateway.servers.of(job).address
    return StreamPlace(url=_url_of(address), key=JobKeys.of(job.ref).batches)


def _url_of(address: ServerAddress) -> str:
    if address.socket_path:
        return f"unix://{address.socket_path}"
    place = StreamAddress(host=address.host, port=address.port, username=address.username, tls=address.tls)
    return place.url
