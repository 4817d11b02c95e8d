"""A learner that knows the gateway alone: it asks there where the stream is, and brings the password itself."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from rollout_api.serve import bind, serving_plainly
from rollout_contract.errors import JobNotFound, StreamUnavailable
from rollout_contract.spec import RolloutJob
from rollout_stream import RolloutStream
from rollout_stream.aio import Control
from rollout_stream.gateway import stream_url

JOB = "default/cartpole"


async def connected(url: str, **options: Any) -> RolloutStream:
    return await asyncio.to_thread(RolloutStream.from_gateway, url, **options)


async def test_the_stream_that_the_gateway_names(
    base_url: str, token: str, job: RolloutJob, control: Control, redis_server: Any
) -> None:
    with await connected(base_url, token=token, job=JOB, password=redis_server.password) as stream:
        assert (stream.job.namespace, stream.job.name) == ("default", "cartpole")
        assert stream.job.uid8 == job.ref.uid8
        assert (await asyncio.to_thread(stream.control.seed)).seed == 7


async def test_from_the_environment(
    base_url: str,
    token: str,
    job: RolloutJob,
    control: Control,
    redis_server: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in {
        "ROLLOUT_GATEWAY_URL": base_url,
        "ROLLOUT_TOKEN": token,
        "ROLLOUT_JOB": JOB,
        "ROLLOUT_REDIS_PASSWORD": f"{redis_server.password}\n",  # as from a Secret that was made from a file
    }.items():
        monkeypatch.setenv(name, value)
    (await asyncio.to_thread(RolloutStream.from_gateway)).close()


@pytest.mark.probe("P-54")
@pytest.mark.parametrize("text", ["s3cr3t-probe-42\r\nX: y", "s3cr3t-probe-42\0", "s3cr3t-probe-42é", " "])
async def test_a_token_that_no_header_can_hold_is_in_no_traceback(base_url: str, text: str) -> None:
    with pytest.raises(ValueError, match="the token") as caught:
        await connected(base_url, token=text, job=JOB, password="p")
    assert "s3cr3t" not in "".join(traceback.format_exception(caught.value))


async def test_the_line_end_of_a_token_is_none_of_it(
    base_url: str, token: str, job: RolloutJob, control: Control, redis_server: Any
) -> None:
    (await connected(base_url, token=f"{token}\n", job=JOB, password=redis_server.password)).close()


@pytest.mark.probe("P-54")
async def test_the_gateway_tells_no_secret(client: Any, path: str, redis_server: Any) -> None:
    answer = await client.get(path + "/stream")
    assert answer.json()["url"] == f"redis://127.0.0.1:{redis_server.port}"
    assert redis_server.password not in answer.text


async def test_a_wrong_token_and_a_wrong_name(base_url: str, token: str, job: RolloutJob) -> None:
    with pytest.raises(StreamUnavailable, match="401"):
        await connected(base_url, token="wrong-token-0123456789", job=JOB)
    with pytest.raises(JobNotFound, match="default/other"):
        await connected(base_url, token=token, job="other")


@pytest.mark.parametrize("url", ["", "localhost:8080", "file:///etc/passwd", "ftp://host"])
async def test_what_is_no_gateway(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ROLLOUT_GATEWAY_URL", raising=False)
    with pytest.raises(ValueError, match="gateway"):
        await connected(url, job=JOB)


class TestOtherServers:
    """What answers is no gateway, or sends us on."""

    @pytest.fixture
    async def other(self) -> AsyncIterator[str]:
        self.seen: list[str | None] = []

        async def answer(request: Request) -> Response:
            self.seen.append(request.headers.get("authorization"))
            if request.url.path.endswith("/elsewhere"):
                return JSONResponse({"url": "redis://evil.example:6379"})
            if "/html/" in request.url.path:
                return Response("<html>welcome</html>")
            return RedirectResponse("/elsewhere")

        sock = bind("127.0.0.1", 0)
        app = Starlette(routes=[Route("/{path:path}", answer)])
        async with serving_plainly(app, sock, grace_s=1.0) as url:
            yield url

    async def test_a_token_does_not_follow_a_redirection(self, other: str) -> None:
        with pytest.raises(StreamUnavailable, match="307"):
            await connected(other, token="secret-token", job=JOB)
        assert len(self.seen) == 1

    async def test_something_else_answers(self, other: str) -> None:
        with pytest.raises(StreamUnavailable, match="no gateway of RolloutJobs"):
            await asyncio.to_thread(
                stream_url,
                other + "/html",
                ("default", "x"),
                token=None,
                ca_file=None,
                timeout_s=60.0,
            )

    async def test_nothing_answers(self) -> None:
        with pytest.raises(StreamUnavailable, match="cannot be reached"):
            await connected("http://127.0.0.1:9", job=JOB)
