"""An API server that says what it is told to, on a socket, and remembers what it was asked."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from kubernetes.aio.client.configuration import Configuration
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from rollout_api.kube.client import KubernetesClient
from rollout_api.serve import bind, serving_plainly, url_of

OWN_TOKEN = "own-token-of-the-gateway"


@dataclass(frozen=True)
class Call:
    """What was asked."""

    method: str
    path: str
    query: dict[str, str]
    token: str | None
    content_type: str
    body: Any


@dataclass
class FakeServer:
    """Answers by a function of the call; `answers` are used up first."""

    respond: Callable[[Call], Any] = lambda call: (404, {"message": "nothing is set up"})
    answers: list[Any] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)

    async def handle(self, request: Request) -> Response:
        body = await request.body()
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        call = Call(
            request.method,
            request.url.path,
            dict(request.query_params),
            token if scheme.lower() == "bearer" else None,
            request.headers.get("content-type", ""),
            json.loads(body) if body else None,
        )
        self.calls.append(call)
        answer = self.answers.pop(0) if self.answers else self.respond(call)
        if isinstance(answer, list):  # the events of a watch
            return StreamingResponse(_lines(answer), media_type="application/json")
        status, document, *headers = answer
        if isinstance(document, str):
            return Response(document, status)
        return JSONResponse(document, status, headers[0] if headers else None)


async def _lines(events: list[Any]) -> AsyncIterator[bytes]:
    for event in events:
        yield json.dumps(event).encode() + b"\n"


@pytest.fixture
def server() -> FakeServer:
    return FakeServer()


@pytest.fixture
async def server_url(server: FakeServer) -> AsyncIterator[str]:
    methods = ["GET", "POST", "PATCH", "DELETE"]
    app = Starlette(routes=[Route("/{path:path}", server.handle, methods=methods)])
    sock = bind("127.0.0.1", 0)
    async with serving_plainly(app, sock, grace_s=1.0):
        yield url_of(sock)


@pytest.fixture
def configuration(server_url: str) -> Configuration:
    found = Configuration()
    found.host = server_url
    found.api_key["BearerToken"] = "bearer " + OWN_TOKEN
    return found


@pytest.fixture
async def kube(configuration: Configuration) -> AsyncIterator[KubernetesClient]:
    async with KubernetesClient(configuration) as found:
        yield found


@pytest.fixture
def own_token() -> str:
    return OWN_TOKEN


def jwt_of(**claims: Any) -> str:
    """Looks like a JSON Web Token; nobody signed it."""
    parts = ({"alg": "RS256"}, claims)
    return (
        ".".join(base64.urlsafe_b64encode(json.dumps(p).encode()).decode().rstrip("=") for p in parts)
        + ".sig"
    )


@pytest.fixture
def make_jwt() -> Callable[..., str]:
    return jwt_of


@pytest.fixture
def stored() -> dict[str, Any]:
    """A job as the server keeps it."""
    return {
        "apiVersion": "rolloutjob.dev/v1alpha1",
        "kind": "RolloutJob",
        "metadata": {
            "name": "cartpole",
            "namespace": "rl",
            "uid": "3f2a9c1d-0000-4000-8000-000000000000",
            "resourceVersion": "7",
            "generation": 1,
            "creationTimestamp": "2026-01-01T10:00:00Z",
            "labels": {"team": "rl"},
            "managedFields": [{"manager": "kubectl"}],
        },
        "spec": {
            "env": {"entrypoint": "rollout_worker.envs:GymEnv", "kwargs": {"env_name": "CartPole-v1"}},
            "policy": {"entrypoint": "policy:make_policy"},
            "collector": {"framesPerBatch": 64, "totalFrames": 100000},
        },
    }
