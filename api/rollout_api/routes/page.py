"""The page for people: the list of jobs, one job live, and the sign-in. The only routes that use a cookie.

The cookie holds a signed session, not the token; it opens what reads (the page and its event stream) for some minutes,
and is renewed by each view of the page.
"""

from __future__ import annotations

import secrets
from typing import Annotated, Final
from urllib.parse import parse_qs

from fastapi import APIRouter, Query, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from rollout_api.bodies import media_type_of
from rollout_api.errors import Kind, Problem
from rollout_api.gateway import RESOURCE, Gateway, TheGateway
from rollout_api.identity import Action, Identity
from rollout_api.listing import list_visible
from rollout_api.live import Look
from rollout_api.middleware import SESSION_COOKIE, session_cookie
from rollout_api.models import Episodes, WorkerList
from rollout_api.routes.jobs import JOB
from rollout_api.store import LabelSelector
from rollout_api.views import episodes_of, status_of, worker_row
from rollout_api.web import render
from rollout_contract import names
from rollout_contract.errors import StreamError
from rollout_contract.spec import RolloutJob

router = APIRouter(include_in_schema=False)
MAX_JOBS: Final = 200
CURVE_POINTS: Final = 200
CURVE_EPISODES: Final = 10_000
MAX_FORM_BYTES: Final = 16 * 1024


@router.get("/")
async def show_page(
    request: Request,
    gateway: TheGateway,
    namespace: Annotated[str, Query(max_length=63)] = "",
    job: Annotated[str, Query(max_length=names.MAX_JOB_NAME)] = "",
) -> Response:
    """The list, or the job that the query names; the sign-in for somebody we do not know."""
    identity: Identity | None = request.state.identity
    nonce = secrets.token_urlsafe(16)
    if identity is None:
        return _html(render.login_page(nonce, gateway.auth.hint), nonce, status=401)
    response = _html(await _page(gateway, identity, nonce, namespace, job), nonce)
    cookie = session_cookie(request.headers)
    renewed = await gateway.auth.renew_session(cookie) if cookie else None
    if renewed is not None:
        _set_cookie(response, renewed, gateway)
    return response


async def _page(gateway: Gateway, identity: Identity, nonce: str, namespace: str, name: str) -> str:
    if namespace and not names.NAMESPACE.fullmatch(namespace):
        raise Problem(Kind.NOT_FOUND, "There is no such namespace.")
    store = gateway.store.acting_for(identity)
    if name:
        if not (namespace and names.JOB_NAME.fullmatch(name)):
            raise Problem(Kind.NOT_FOUND, "There is no such job.")
        await gateway.require(identity, Action("get", RESOURCE, namespace, name))
        return await _job_page(gateway, nonce, await store.get(namespace, name))
    if namespace:
        await gateway.require(identity, Action("list", RESOURCE, namespace))
        page = await store.list(namespace, selector=LabelSelector(), limit=MAX_JOBS)
        return render.list_page(nonce, page, namespace=namespace)
    try:
        page = await list_visible(gateway, identity, selector=LabelSelector(), limit=MAX_JOBS)
    except Problem as problem:
        if problem.kind is not Kind.FORBIDDEN:
            raise
        return render.namespace_page(nonce, identity.name)
    if len(page.jobs) == 1 and not page.continue_token and not page.unknown:
        return await _job_page(gateway, nonce, page.jobs[0])
    return render.list_page(nonce, page)


async def _job_page(gateway: Gateway, nonce: str, job: RolloutJob) -> str:
    look = await gateway.live.get(job)
    workers, episodes = WorkerList(items=[]), None
    if isinstance(look, Look):
        workers = WorkerList(items=[worker_row(beat, look.server_now) for beat in look.facts.workers])
        episodes = await _curve(gateway, job)
    path = JOB.format(namespace=job.metadata.namespace, name=job.metadata.name)
    return render.job_page(nonce, status_of(job, look), workers, episodes, path=path)


async def _curve(gateway: Gateway, job: RolloutJob) -> Episodes | None:
    try:
        progress = await gateway.control(job).read_progress(episodes=CURVE_EPISODES)
    except StreamError:
        return None  # the page says so by the look that came before, or by its event stream
    return episodes_of(progress.episodes, total=progress.counters.episodes, last=100, points=CURVE_POINTS)


@router.post("/login")
async def sign_in(request: Request, gateway: TheGateway) -> Response:
    """Takes the token of the form, gives the cookie, and leads to the page."""
    media_type, _ = media_type_of(request)
    if media_type != "application/x-www-form-urlencoded":
        raise Problem(Kind.UNSUPPORTED_MEDIA, "The sign-in takes the form of the page.")
    body = await request.body()
    if len(body) > MAX_FORM_BYTES:
        raise Problem(Kind.TOO_LARGE, f"The form may have at most {MAX_FORM_BYTES} bytes.")
    try:
        fields = parse_qs(body.decode("utf-8", "replace"), max_num_fields=8)
    except ValueError as error:
        raise Problem(Kind.MALFORMED, "The form has more fields than the page's.") from error
    session = await gateway.auth.open_session(fields.get("token", [""])[0].strip())
    if session is None:
        nonce = secrets.token_urlsafe(16)
        return _html(render.login_page(nonce, gateway.auth.hint, was_refused=True), nonce, status=401)
    response = RedirectResponse("/", status_code=303)
    _set_cookie(response, session, gateway)
    return response


def _html(text: str, nonce: str, *, status: int = 200) -> HTMLResponse:
    policy = (
        f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; "
        "img-src data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    )
    headers = {"content-security-policy": policy}
    if status == 401:
        headers["www-authenticate"] = 'Bearer realm="rollout"'
    return HTMLResponse(text, status, headers)


def _set_cookie(response: Response, value: str, gateway: Gateway) -> None:
    is_secure = gateway.settings.secure_cookie
    prefix = "__Host-" if is_secure else ""
    response.set_cookie(
        prefix + SESSION_COOKIE,
        value,
        max_age=gateway.auth.session_s,
        path="/",
        secure=is_secure,
        httponly=True,
        samesite="strict",
    )
