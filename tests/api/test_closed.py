"""The gateway is closed by default: callers, hosts, origins, settings, secrets."""

from __future__ import annotations

import logging
import re
import stat
from pathlib import Path

import httpx2
import pytest
from fastapi import FastAPI
from starlette.routing import Route

from rollout_api.app import create_app
from rollout_api.auth import NoAuth, TokenAuth, create_token_file
from rollout_api.middleware import PUBLIC
from rollout_api.settings import ApiSettings, SettingsError
from rollout_cli.local.job_store import LocalStore
from rollout_contract.spec import RolloutJob
from rollout_stream.aio import AsyncSession

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")


def routes_of(app: FastAPI) -> list[tuple[str, str]]:
    """Every path of the app, ours and the framework's, with values in its place holders, and every method."""
    paths = [route.path for route in app.routes if isinstance(route, Route)]
    paths += list(app.openapi()["paths"])
    values = {"{namespace}": "default", "{name}": "cartpole", "{version}": "latest"}
    filled = [re.sub(r"\{\w+\}", lambda m: values[m[0]], path) for path in paths]
    return [
        (method, path)
        for path in sorted({*filled, "/nothing", "/v1", "/docs", "/redoc"})
        for method in METHODS
    ]


@pytest.mark.probe("P-50")
@pytest.mark.parametrize(
    "headers",
    [
        pytest.param({}, id="no token"),
        pytest.param({"authorization": "Bearer wrong-token-0123456789"}, id="wrong token"),
        pytest.param({"authorization": "Bearer "}, id="empty token"),
        pytest.param({"authorization": "Basic dGVzdDp0ZXN0"}, id="another scheme"),
        pytest.param({"authorization": "Bearer " + "x" * 100_000}, id="huge token"),
        pytest.param({"cookie": "rollout_session=1.1.99999999999.ab.00"}, id="forged cookie"),
    ],
)
async def test_every_route_and_method_wants_a_token(
    app: FastAPI, stranger: httpx2.AsyncClient, job: RolloutJob, headers: dict[str, str]
) -> None:
    routes = routes_of(app)
    assert len(routes) > 100
    for method, path in routes:
        answer = await stranger.request(method, path, headers=headers)
        if (method, path) in PUBLIC - {("GET", "/"), ("POST", "/login")}:
            assert answer.status_code in (200, 503), (method, path)
        elif (method, path) == ("GET", "/"):
            assert answer.status_code == 401
            assert "Sign in" in answer.text
            assert "cartpole" not in answer.text
        elif (method, path) == ("POST", "/login"):
            assert answer.status_code in (401, 415)
        else:
            assert answer.status_code == 401, (method, path)
            assert answer.headers["content-type"] == "application/problem+json"
            assert answer.headers["www-authenticate"].startswith("Bearer")
            if method != "HEAD":
                assert answer.json()["type"] == "urn:rolloutjob:problem:unauthenticated"


async def test_of_two_tokens_none_is_taken(stranger: httpx2.AsyncClient, path: str, token: str) -> None:
    """Something in front of the gateway may have looked at the other one."""
    for tokens in ((token, "x"), ("x", token), (token, token)):
        headers = [("authorization", f"Bearer {value}") for value in tokens]
        assert (await stranger.get(path, headers=headers)).status_code == 401


async def test_an_expired_session_is_refused(
    app: FastAPI, store: LocalStore, stream: AsyncSession, job: RolloutJob
) -> None:
    now = [1_000_000.0]
    auth = TokenAuth("test-token-0123456789abcdef", session_s=60, session_max_s=100, clock=lambda: now[0])
    cookie = await auth.open_session("test-token-0123456789abcdef")
    assert cookie is not None
    identity = await auth.identity_of_session(cookie)
    assert identity is not None
    assert identity.expires == 1_000_060
    now[0] += 59
    renewed = await auth.renew_session(cookie)
    assert renewed is not None
    now[0] += 2
    assert await auth.identity_of_session(cookie) is None
    assert await auth.renew_session(cookie) is None
    assert await auth.identity_of_session(renewed) is not None
    now[0] += 40  # past the longest life that renewals can give
    assert await auth.identity_of_session(renewed) is None
    assert await auth.renew_session(renewed) is None


@pytest.mark.parametrize(
    "cookie",
    [
        "",
        ".",
        "1.2.3",
        "1.2.3.4.5",
        "1.1.9999999999.ab." + "0" * 64,
        "é.ü",
        "a" * 10_000,
        "1..9..",
        "\udcff.x",
    ],
)
async def test_no_made_up_session_is_taken(cookie: str) -> None:
    auth = TokenAuth("test-token-0123456789abcdef")
    assert await auth.identity_of_session(cookie) is None
    assert await auth.renew_session(cookie) is None


async def test_a_session_of_another_token_is_refused() -> None:
    cookie = await TokenAuth("another-token-0123456789").open_session("another-token-0123456789")
    assert cookie is not None
    assert await TokenAuth("test-token-0123456789abcdef").identity_of_session(cookie) is None


async def test_a_cookie_only_reads(app: FastAPI, stranger: httpx2.AsyncClient, path: str, token: str) -> None:
    answer = await stranger.post("/login", data={"token": token})
    assert answer.status_code == 303
    cookie = answer.headers["set-cookie"]
    assert {"HttpOnly", "SameSite=strict", "Path=/", "Max-Age=900"} <= set(cookie.split("; "))
    assert token not in cookie
    headers = {"cookie": cookie.split(";")[0]}
    assert (await stranger.get(path, headers=headers)).status_code == 200
    for method in ("POST", "PUT", "PATCH", "DELETE"):
        for end in ("", "/suspend", "/weights", "/seed"):
            assert (await stranger.request(method, path + end, headers=headers)).status_code == 401


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7", "rollout.example", ""])
def test_without_authentication_only_on_loopback(store: LocalStore, stream: AsyncSession, host: str) -> None:
    with pytest.raises(SettingsError, match="--no-auth"):
        create_app(store=store, stream=stream, auth=NoAuth(), settings=ApiSettings(host=host))


def test_without_any_setting_it_does_not_start(store: LocalStore, stream: AsyncSession) -> None:
    with pytest.raises(SettingsError, match="`auth` is not set"):
        create_app(store=store, stream=stream, auth=None)


def test_a_token_that_can_be_guessed_is_refused() -> None:
    with pytest.raises(SettingsError, match="16 bytes"):
        TokenAuth("short")


def test_the_token_file_is_the_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "token"
    token = create_token_file(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert token not in repr(TokenAuth.from_file(path))
    with pytest.raises(FileExistsError):
        create_token_file(path)
    path.chmod(0o640)
    with pytest.raises(SettingsError, match="chmod 600"):
        TokenAuth.from_file(path)
    with pytest.raises(SettingsError, match="cannot be read"):
        TokenAuth.from_file(tmp_path / "missing")


@pytest.mark.parametrize(
    ("host", "status"),
    [
        pytest.param("127.0.0.1:8000", 200, id="address"),
        pytest.param("localhost", 200, id="name"),
        pytest.param("LOCALHOST:1", 200, id="forwarded port"),
        pytest.param("[::1]:8000", 200, id="IPv6"),
        pytest.param("evil.example", 421, id="rebound name"),
        pytest.param("127.0.0.1.evil.example", 421, id="looks like an address"),
        pytest.param("localhost.evil.example:8000", 421, id="looks like the name"),
        pytest.param("", 421, id="empty"),
        pytest.param("192.0.2.7", 421, id="another address"),
    ],
)
async def test_other_hosts_are_not_answered(client: httpx2.AsyncClient, host: str, status: int) -> None:
    for path in ("/healthz", "/v1/rolloutjobs"):
        assert (await client.get(path, headers={"host": host})).status_code == status


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param({"origin": "https://evil.example"}, id="origin"),
        pytest.param({"origin": "null"}, id="opaque origin"),
        pytest.param({"origin": "http://127.0.0.1:9999"}, id="another port"),
        pytest.param({"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}, id="fetch metadata"),
    ],
)
async def test_scripts_of_other_pages_are_refused(
    client: httpx2.AsyncClient, path: str, headers: dict[str, str]
) -> None:
    for method, end in (("GET", ""), ("POST", "/suspend"), ("OPTIONS", "")):
        answer = await client.request(method, path + end, headers=headers)
        assert answer.status_code == 403
        assert not [name for name in answer.headers if name.startswith("access-control")]


async def test_every_answer_has_the_security_headers(client: httpx2.AsyncClient, path: str) -> None:
    for found in ("/", "/healthz", path, "/nothing"):
        headers = (await client.get(found)).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert headers["referrer-policy"] == "same-origin"
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert "no-store" in headers["cache-control"]
        assert "server" not in headers


@pytest.mark.parametrize(
    "end",
    [
        "/../../x",
        "/UPPER",
        "/" + "a" * 300,
        "/a%2Fb",
        "/..%2f..%2fetc",
        "/a%00b",
        "/a%0d%0ab",
        "/-a",
        "/a%20b",
        "/{x}",
        "/a*",
    ],
)
async def test_names_are_checked_before_they_reach_a_key(
    client: httpx2.AsyncClient, job: RolloutJob, end: str
) -> None:
    for path in (f"/v1/namespaces/default/rolloutjobs{end}/status", f"/v1/namespaces{end}/rolloutjobs"):
        answer = await client.get(path)
        assert answer.status_code in (404, 422), path
        assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.probe("P-54")
async def test_no_secret_leaves_the_process(
    app: FastAPI,
    client: httpx2.AsyncClient,
    path: str,
    token: str,
    caplog: pytest.LogCaptureFixture,
    redis_server: object,
) -> None:
    caplog.set_level(logging.DEBUG)
    password = redis_server.password  # type: ignore[attr-defined]
    texts = []
    for found in (
        "/",
        path,
        path + "/status",
        path + "/workers",
        path + "/seed?token=" + token,
        "/metrics",
        "/readyz",
    ):
        answer = await client.get(found, headers={"cookie": f"other={token}"})
        texts += [answer.text, str(answer.headers)]
    answer = await client.post("/login", data={"token": token})
    ours = [record.getMessage() for record in caplog.records if not record.name.startswith("http")]
    texts += [answer.text, str(answer.headers), *ours, repr(app.state.gateway)]
    assert any("/seed" in text for text in ours)
    for text in texts:
        assert token not in text
        assert password not in text


async def test_a_wrong_redis_password_is_told_without_it(
    store: LocalStore,
    redis_server: object,
    job: RolloutJob,
    path: str,
    token: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with AsyncSession.connect(redis_server.url, password="s3cr3t-wrong-42", patience_s=0.2) as stream:  # type: ignore[attr-defined]
        app = create_app(store=store, stream=stream, auth=TokenAuth(token))
        transport = httpx2.ASGITransport(app=app, raise_app_exceptions=False)
        headers = {"authorization": f"Bearer {token}"}
        async with httpx2.AsyncClient(
            transport=transport, base_url="http://127.0.0.1", headers=headers
        ) as client:
            answer = await client.get(path + "/status")
            ready = await client.get("/readyz")
    assert answer.json()["live"] is None
    assert answer.json()["liveError"]["reason"] == "StreamUnavailable"
    assert ready.status_code == 503
    assert ready.json() == {"status": "failing", "checks": {"store": "ok", "stream": "does not answer"}}
    for text in (answer.text, ready.text, caplog.text):
        assert "s3cr3t" not in text
