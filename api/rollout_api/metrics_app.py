"""The gateway's own metrics on a port of their own, without a token: counts and durations, nothing of any job.

For a Prometheus that has no right to jobs; a network policy says who reaches the port. Started by `program`.
"""

from __future__ import annotations

from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from rollout_api.gateway import gateway_of
from rollout_api.metrics import CONTENT_TYPE


def metrics_app(app: FastAPI) -> Starlette:
    """An app with one route, `GET /metrics`, over the numbers of the gateway `app`."""
    metrics = gateway_of(app).metrics

    async def show(request: Request) -> Response:
        return Response(metrics.exposition(()), media_type=CONTENT_TYPE)

    return Starlette(routes=[Route("/metrics", show, methods=["GET"])])
