"""What a running gateway consists of, and what routes ask of it: the caller's right, and the job that a path names.

Built by `create_app`, handed to routes by `Depends`. Holds no state of jobs beyond a second.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, FastAPI, Path, Request
from fastapi.dependencies.models import Dependant

from rollout_api.auth import Auth
from rollout_api.errors import FaultBody, Kind, Problem, too_many, unavailable
from rollout_api.feeds import Feeds
from rollout_api.identity import Action, Identity
from rollout_api.live import Away, LiveCache, Look
from rollout_api.metrics import Metrics
from rollout_api.middleware import SAFE_METHODS
from rollout_api.reach import Servers
from rollout_api.readiness import Readiness
from rollout_api.settings import ApiSettings
from rollout_api.store import JobStore
from rollout_api.ttl_cache import TtlCache
from rollout_contract import names
from rollout_contract.names import JobRef
from rollout_contract.spec import RolloutJob
from rollout_stream.aio import Control, Weights

RESOURCE = names.PLURAL


@dataclass(frozen=True, slots=True)
class Gateway:
    """The parts."""

    store: JobStore
    """Without a caller: for `acting_for` and `check` alone."""
    servers: Servers
    auth: Auth
    settings: ApiSettings
    jobs: TtlCache[tuple[str, str], RolloutJob]
    """Jobs that were just read, for callers whose right to read them was asked for before."""
    statuses: TtlCache[JobRef, bytes]
    """Answers of the status route, as they are sent."""
    live: LiveCache
    feeds: Feeds
    metrics: Metrics
    readiness: Readiness
    uploads: Slots
    downloads: Slots

    def control(self, job: RolloutJob) -> Control:
        """The job's control plane in Redis; nothing is asked yet."""
        return Control(self.servers.of(job), job.ref)

    def weights(self, job: RolloutJob) -> Weights:
        """The job's weights in Redis; nothing is asked yet."""
        return Weights(self.servers.of(job), job.ref)

    def forget(self, job: RolloutJob) -> None:
        """Something of the job was changed: whoever asks next sees it."""
        self.jobs.forget((job.metadata.namespace, job.metadata.name))
        self.live.forget(job.ref)
        self.statuses.forget(job.ref)

    async def require(self, identity: Identity, action: Action) -> None:
        """403 if they may not."""
        if not await self.auth.may(identity, action):
            where = f" in namespace {action.namespace}" if action.namespace else " in all namespaces"
            raise Problem(Kind.FORBIDDEN, f"You may not {action.verb} {action.resource}{where}.")

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


# These are `async` though they wait for nothing: the framework calls others in a thread, which costs more than all of it.
async def _gateway(request: Request) -> Gateway:
    return gateway_of(request.app)


async def _identity(request: Request) -> Identity:
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


def _parameters_of(dependant: Dependant) -> list[str]:
    """Names of the query's parameters that a route and what it depends on know."""
    own = [field.alias for field in dependant.query_params]
    return own + [name for child in dependant.dependencies for name in _parameters_of(child)]


def check_query(request: Request) -> None:
    """Problem where a call that changes something has a parameter that its route does not know: a misspelt `dryRun`."""
    if request.method in SAFE_METHODS or not request.query_params:
        return
    known = _parameters_of(request.scope["route"].dependant)
    unknown = [key for key in request.query_params if key not in known]
    if unknown:
        takes = f"it takes {', '.join(known)}" if known else "it takes none"
        faults = [
            FaultBody(path=f"query.{key[:80]}", message=f"no parameter of this call: {takes}")
            for key in unknown
        ]
        text = "; ".join(f"{fault.path}: {fault.message}" for fault in faults[:5])
        raise Problem(Kind.INVALID, f"{text}. Nothing was changed.", faults=faults)


@dataclass(frozen=True, slots=True)
class Allowed:
    """A dependency of every route but the public ones: the caller may do this, in the namespace and to the
    job of the path.
    """

    verb: str
    resource: str = RESOURCE

    async def __call__(self, request: Request, gateway: TheGateway, identity: TheIdentity) -> None:
        path = request.path_params
        action = Action(self.verb, self.resource, path.get("namespace", ""), path.get("name", ""))
        await gateway.require(identity, action)
        check_query(request)


@dataclass(frozen=True, slots=True)
class ChecksItself(Allowed):
    """A dependency of routes whose right depends on more than the path: they ask for it themselves."""

    async def __call__(self, request: Request, gateway: TheGateway, identity: TheIdentity) -> None:
        """Only that there is an identity."""
        check_query(request)


async def _store(gateway: TheGateway, identity: TheIdentity) -> JobStore:
    return gateway.store.acting_for(identity)


TheStore = Annotated[JobStore, Depends(_store)]
"""The jobs, with the caller's rights."""


async def _job_now(namespace: Namespace, name: JobName, store: TheStore) -> RolloutJob:
    return await store.get(namespace, name)


async def _job(
    namespace: Namespace, name: JobName, gateway: TheGateway, identity: TheIdentity, store: TheStore
) -> RolloutJob:
    # whoever may publish weights need not be somebody who may read jobs, and what is kept was read for another caller
    await gateway.require(identity, Action("get", RESOURCE, namespace, name))
    return await gateway.jobs.get((namespace, name), lambda: store.get(namespace, name))


TheJob = Annotated[RolloutJob, Depends(_job)]
"""The job that the path names, as it was at most a second ago; 404 if there is none."""
TheJobNow = Annotated[RolloutJob, Depends(_job_now)]
"""The job that the path names, read for this request."""


async def look_at(gateway: Gateway, job: RolloutJob) -> Look:
    """The job's facts, for answers that are nothing without them; 503 if there are none."""
    look = await gateway.live.get(job)
    if isinstance(look, Away):
        raise unavailable(look.error.detail)
    return look
