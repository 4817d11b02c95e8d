"""Jobs themselves: list, read, create, patch, delete."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Depends, Header, Query, Request
from starlette.responses import JSONResponse

from rollout_api import bodies
from rollout_api.conditional import entity_tag, tag_to_match
from rollout_api.errors import Kind, Problem, documented
from rollout_api.gateway import (
    Allowed,
    ChecksItself,
    JobName,
    Namespace,
    TheGateway,
    TheIdentity,
    TheJobNow,
    TheStore,
)
from rollout_api.listing import list_visible
from rollout_api.models import JobList, ListMeta
from rollout_api.openapi import JOB_EXAMPLE
from rollout_api.patching import ThePatcher, check_patch
from rollout_api.store import Conflict, JobPage, LabelSelector, Unsupported
from rollout_contract.errors import Fault, SpecError
from rollout_contract.spec import RolloutJob, parse_manifest

router = APIRouter(tags=["jobs"])
JOBS: Final = "/v1/namespaces/{namespace}/rolloutjobs"
JOB: Final = JOBS + "/{name}"

MAX_PAGE: Final = 500

DryRun = Annotated[
    Literal["All"] | None,
    Query(alias="dryRun", description="`All`: check everything and answer as usual, but change nothing."),
]
Limit = Annotated[int, Query(ge=1, le=MAX_PAGE, description="Jobs of one page.")]
Continue = Annotated[
    str, Query(alias="continue", max_length=1024, description="`metadata.continue` of the page before.")
]
Selector = Annotated[
    str,
    Query(
        alias="labelSelector", max_length=1024, description="As for kubectl: `team=rl,tier in (a,b),!old`."
    ),
]
IfMatch = Annotated[
    str | None,
    Header(
        alias="If-Match",
        max_length=256,
        description="The `ETag` (resource version) that this change is based on.",
    ),
]


def _body(media_types: Sequence[str], content: Mapping[str, Any]) -> dict[str, Any]:
    return {"requestBody": {"required": True, "content": {name: dict(content) for name in media_types}}}


_MANIFEST_BODY: Final = _body(
    ("application/yaml", "application/json"),
    {"schema": {"$ref": "#/components/schemas/RolloutJob"}, "example": JOB_EXAMPLE},
)
_PATCH_BODY: Final = _body(
    (bodies.MERGE_PATCH, "application/json"),
    {
        "schema": {"type": "object", "title": "JSON merge patch (RFC 7396)"},
        "example": {"spec": {"replicas": 4}},
    },
)


def job_response(job: RolloutJob, status: int = 200) -> JSONResponse:
    """A job in its YAML shape, with its resource version as the entity tag."""
    headers = {"etag": entity_tag(job.metadata.resource_version or "")}
    return JSONResponse(job.to_document(), status, headers)


def _selector(text: str) -> LabelSelector:
    try:
        return LabelSelector.parse(text)
    except ValueError as error:
        raise Problem(Kind.INVALID, f"query.labelSelector: {error}.") from error


@contextmanager
def _told_of_token(token: str) -> Iterator[None]:
    """What a store does not know of a page's token is a fault of the request."""
    try:
        yield
    except Unsupported as error:
        if not token:
            raise
        raise Problem(Kind.INVALID, f"query.continue: {error}.") from error


def _job_list(page: JobPage) -> JobList:
    metadata = ListMeta(continue_=page.continue_token, unknown=list(page.unknown) or None)
    return JobList(metadata=metadata, items=list(page.jobs))


@router.get(
    JOBS,
    summary="List a namespace's jobs",
    response_model_exclude_none=True,
    dependencies=[Depends(Allowed("list"))],
    responses=documented(Kind.PAGE_EXPIRED, Kind.INVALID, Kind.UNAVAILABLE),
)
async def list_jobs(
    namespace: Namespace,
    store: TheStore,
    limit: Limit = 100,
    continue_: Continue = "",
    label_selector: Selector = "",
) -> JobList:
    """Jobs in order of their names, a page at a time."""
    selector = _selector(label_selector)
    with _told_of_token(continue_):
        page = await store.list(namespace, selector=selector, limit=limit, continue_token=continue_)
    return _job_list(page)


@router.get(
    "/v1/rolloutjobs",
    summary="List the jobs of all namespaces",
    response_model_exclude_none=True,
    dependencies=[Depends(ChecksItself("list"))],
    responses=documented(Kind.PAGE_EXPIRED, Kind.INVALID, Kind.UNAVAILABLE),
)
async def list_all_jobs(
    gateway: TheGateway,
    identity: TheIdentity,
    limit: Limit = 100,
    continue_: Continue = "",
    label_selector: Selector = "",
) -> JobList:
    """Jobs in order of namespace and name, a page at a time: of all namespaces for callers who may list jobs in all,
    else of those of the installation in which they may.
    """
    selector = _selector(label_selector)
    with _told_of_token(continue_):
        page = await list_visible(gateway, identity, selector=selector, limit=limit, continue_token=continue_)
    return _job_list(page)


@router.post(
    JOBS,
    summary="Create a job",
    status_code=201,
    response_model=RolloutJob,
    dependencies=[Depends(Allowed("create"))],
    responses=documented(
        Kind.MALFORMED,
        Kind.ALREADY_EXISTS,
        Kind.TOO_LARGE,
        Kind.UNSUPPORTED_MEDIA,
        Kind.SPEC_INVALID,
        Kind.UNAVAILABLE,
    ),
    openapi_extra=_MANIFEST_BODY,
)
async def create_job(
    request: Request, namespace: Namespace, store: TheStore, dry_run: DryRun = None
) -> JSONResponse:
    """The body is the manifest. Everything that is wrong with it is listed, each with its path."""
    document = await bodies.read_manifest(request)
    job = parse_manifest(_in_namespace(document, namespace))
    created = await store.create(job, dry_run=dry_run is not None)
    response = job_response(created, 201)
    response.headers["location"] = JOB.format(namespace=namespace, name=created.metadata.name)
    return response


def _in_namespace(document: object, namespace: str) -> object:
    """The manifest with the path's namespace where it names none. Fault where it names another."""
    metadata = document.get("metadata") if isinstance(document, dict) else None
    if not isinstance(document, dict) or not isinstance(metadata, dict):
        return document
    written = metadata.get("namespace")
    if written is not None and written != namespace:
        message = f"the path says {namespace}: write the same here, or leave it out"
        raise SpecError([Fault("metadata.namespace", written, message)])
    return document | {"metadata": metadata | {"namespace": namespace}}


@router.get(
    JOB,
    summary="Read a job",
    response_model=RolloutJob,
    dependencies=[Depends(Allowed("get"))],
    responses=documented(Kind.NOT_FOUND, Kind.UNAVAILABLE),
)
async def get_job(job: TheJobNow) -> JSONResponse:
    """The job as it is kept: what is wanted (`spec`) and what was seen (`status`). Live numbers: `/status`."""
    return job_response(job)


@router.patch(
    JOB,
    summary="Change a job",
    response_model=RolloutJob,
    dependencies=[Depends(Allowed("patch"))],
    responses=documented(
        Kind.MALFORMED,
        Kind.NOT_FOUND,
        Kind.CONFLICT,
        Kind.PRECONDITION_FAILED,
        Kind.TOO_LARGE,
        Kind.UNSUPPORTED_MEDIA,
        Kind.SPEC_INVALID,
        Kind.IMMUTABLE,
        Kind.UNAVAILABLE,
    ),
    openapi_extra=_PATCH_BODY,
)
async def patch_job(
    request: Request, patcher: ThePatcher, dry_run: DryRun = None, if_match: IfMatch = None
) -> JSONResponse:
    """A JSON merge patch of spec, labels and annotations, such as `{"spec": {"replicas": 4}}`.

    With `metadata.resourceVersion` in the patch (409), or `If-Match` (412), it is refused if the job has changed since.
    """
    patch = await bodies.read_merge_patch(request)
    check_patch(patch)
    job = await patcher.apply(patch, dry_run=dry_run is not None, if_match=tag_to_match(if_match))
    return job_response(job)


@router.delete(
    JOB,
    summary="Delete a job",
    response_model=RolloutJob,
    dependencies=[Depends(Allowed("delete"))],
    responses=documented(
        Kind.NOT_FOUND, Kind.CONFLICT, Kind.PRECONDITION_FAILED, Kind.UNSUPPORTED, Kind.UNAVAILABLE
    ),
)
async def delete_job(
    namespace: Namespace,
    name: JobName,
    gateway: TheGateway,
    store: TheStore,
    if_match: IfMatch = None,
) -> JSONResponse:
    """Ask for the job's end: workers are drained and its data goes with it. Answers the job as it was."""
    version = tag_to_match(if_match)
    try:
        job = await store.delete(namespace, name, resource_version=version)
    except Conflict as error:
        if version is None:
            raise
        raise Problem(Kind.PRECONDITION_FAILED, str(error)) from error
    gateway.forget(job)
    return job_response(job)
