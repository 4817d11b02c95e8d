"""What a running gateway consists of, and what routes ask of it: the caller's right, and the job that a path names.

Built by `create_app`, handed to routes by `Depends`. Holds no state of jobs beyond a second.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, FastAPI, Path, Request

from rollout_api.auth import Action, Auth, Identity
from rollout_api.errors import Kind, Problem, too_many, unavailable
from rollout_api.feeds import Feeds
from rollout_api.live import Away, LiveCache, Look
from rollout_api.metrics import Metrics
from rollout_api.readiness import Readiness
from rollout_api.settings import ApiSettings
from rollout_api.store import JobStore
from rollout_contract import names
from rollout_contract.spec import RolloutJob
from rollout_stream.aio import AsyncSession, Control, Weights

RESOURCE = names.PLURAL


@dataclass(frozen=True, slots=True)
class Gateway:
    """The parts."""

    store: JobStore
    stream: AsyncSession
    auth: Auth
    settings: ApiSettings
    live: LiveCache
    feeds: Feeds
    metrics: Metrics
    readiness: Readiness
    uploads: Slots
    downloads: Slots

    def control(self, job: RolloutJob) -> Control:
        """The job's control plane in Redis; nothing is asked yet."""
        return Control(self.stream, job.ref)

    def weights(self, job: RolloutJob) -> Weights:
        """The job's weights in Redis; nothing is asked yet."""
        return Weights(self.stream, job.ref)

    async def close_streams(self) -> None:
        """End what would otherwise last as long as its client: event streams."""
        await self.feeds.aclose()


class Slots:
    """A bound on how many of something may run at once; the next one is told to come back."""

    def __init__(self, size: int, what: str) -> None:
        self._size = size
        self._what = what
        self.in_use = 0

    def refuse_if_full(self) -> None:
        """429 if as many run as may."""
        if self.in_use >= self._size:
            raise too_many(f"{self._size} {self._what} are running already.")

    def __enter__(self) -> None:
        self.refuse_if_full()
        self.in_use += 1

    def __exit__(self, *_: object) -> None:
        self.in_use -= 1


def gateway_of(app: FastAPI) -> Gateway:
    """The gateway behind an app made by `create_app`."""
    found = app.state.gateway
    assert isinstance(found, Gateway)
    return found


def _gateway(request: Request) -> Gateway:
    return gateway_of(request.app)


def _identity(request: Request) -> Identity:
    identity = getattr(request.state, "identity", None)
    if not isinstance(identity, Identity):  # the middleware lets nobody come here without one
        raise Problem(Kind.UNAUTHENTICATED, "There is no identity with this request.")
    return identity


TheGateway = Annotated[Gateway, Depends(_gateway)]
TheIdentity = Annotated[Identity, Depends(_identity)]


def _whole(pattern: str) -> str:
    return f"^({pattern})$"


Namespace = Annotated[
    str,
    Path(
        pattern=_whole(names.NAMESPACE.pattern),
        max_length=63,
        description="The job's namespace; a local run's is `default` unless the manifest names one.",
        examples=["default"],
    ),
]
JobName = Annotated[
    str,
    Path(
        pattern=_whole(names.JOB_NAME.pattern),
        max_length=names.MAX_JOB_NAME,
        description="The job's name.",
        examples=["cartpole"],
    ),
]


@dataclass(frozen=True, slots=True)
class Allowed:
    """A dependency of every route under `/v1`: the caller may do this, in the namespace and to the job of the path."""

    verb: str
    resource: str = RESOURCE

    async def __call__(self, request: Request, gateway: TheGateway, identity: TheIdentity) -> None:
        action = Action(
            self.verb,
            self.resource,
            request.path_params.get("namespace", ""),
            request.path_params.get("name", ""),
        )
        if not await gateway.auth.may(identity, action):
            where = f" in namespace {action.namespace}" if action.namespace else " in all namespaces"
            raise Problem(Kind.FORBIDDEN, f"You may not {action.verb} {action.resource}{where}.")


async def _job(namespace: Namespace, name: JobName, gateway: TheGateway) -> RolloutJob:
    return await gateway.store.get(namespace, name)


TheJob = Annotated[RolloutJob, Depends(_job)]
"""The job that the path names; 404 if there is none."""


async def look_at(gateway: Gateway, job: RolloutJob) -> Look:
    """The job's facts, for answers that are nothing without them; 503 if there are none."""
    look = await gateway.live.get(job.ref)
    if isinstance(look, Away):
        raise unavailable(look.error.detail)
    return look
