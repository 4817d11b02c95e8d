"""A job's events, as they happen."""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Header
from starlette.responses import Response

from rollout_api.errors import Kind, documented, too_many
from rollout_api.event_stream import EventStream
from rollout_api.gateway import RESOURCE, Allowed, TheGateway, TheIdentity, TheJob, TheStore
from rollout_api.identity import Action
from rollout_api.routes.jobs import JOB

router = APIRouter(tags=["status"])

_EXAMPLE: Final = (
    "id: 3f2a9c1d-1\nevent: conditions\n"
    'data: {"state":"Running","readyWorkers":"2/2","conditions":[{"type":"Ready","status":"True"}]}\n\n'
    'id: 3f2a9c1d-2\nevent: progress\ndata: {"live":{"progress":{"frames":42106}}}\n\n'
)
_RESPONSE: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "Server-sent events: `progress`, `conditions`, `deleted`.",
        "content": {"text/event-stream": {"schema": {"type": "string"}, "example": _EXAMPLE}},
    }
}


@router.get(
    JOB + "/events",
    summary="A job's events, as they happen",
    response_class=Response,
    dependencies=[Depends(Allowed("watch"))],
    responses=_RESPONSE | documented(Kind.NOT_FOUND, Kind.TOO_MANY, Kind.UNAVAILABLE),
)
async def stream_events(
    job: TheJob,
    gateway: TheGateway,
    identity: TheIdentity,
    store: TheStore,
    last_event_id: Annotated[
        str | None,
        Header(
            alias="Last-Event-ID",
            max_length=64,
            description="Go on after this event: what was missed comes first.",
        ),
    ] = None,
) -> Response:
    """`progress` about once a second: the same as `live` and `liveError` of `/status`. `conditions` as soon as they
    change. `deleted` when the job is gone; nothing comes after it. A new client first gets the newest of each; a client
    that takes nothing is dropped, and may come again with the id of its last event.
    """
    if gateway.feeds.is_full:
        raise too_many("As many event streams are open as the gateway allows.")
    namespace, name = job.metadata.namespace, job.metadata.name
    subscription = gateway.feeds.subscribed(store, namespace, name, last_event_id)
    return EventStream(
        subscription,
        limits=gateway.settings.limits,
        expires=identity.expires,
        is_allowed=lambda: gateway.auth.may(identity, Action("watch", RESOURCE, namespace, name)),
    )
