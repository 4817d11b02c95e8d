"""The gateway as a process: it starts only with a way to know callers, and ends in order."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml

pytestmark = pytest.mark.slow
DEADLINE_S = 60.0
ADA = {"username": "ada", "groups": ["system:authenticated"]}


def respond(stored: dict[str, Any]) -> Any:
    """A server with one job and one account that may do everything."""

    def answer(call: Any) -> Any:
        match call.path.rpartition("/")[2]:
            case "tokenreviews":
                is_known = call.body["spec"]["token"] == "good-token"
                return 201, {"status": {"authenticated": is_known, "user": ADA if is_known else {}}}
            case "subjectaccessreviews":
                return 201, {"status": {"allowed": True}}
            case "v1alpha1":
                return 200, {"resources": [{"name": "rolloutjobs"}]}
            case "cartpole":
                return 200, stored
            case "rolloutjobs" if call.query.get("watch"):
                return []
            case _:
                return 200, {"items": [stored], "metadata": {}}

    return answer


@asynccontextmanager
async def started(environ: dict[str, str]) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "rollout_api", env=environ, stderr=asyncio.subprocess.PIPE
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@pytest.fixture
def environ(tmp_path: Path, server_url: str, redis_server: Any) -> dict[str, str]:
    kubeconfig = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "it",
        "clusters": [{"name": "it", "cluster": {"server": server_url}}],
        "users": [{"name": "it", "user": {"token": "own-token"}}],
        "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
    }
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(kubeconfig))
    return {
        "PATH": os.environ["PATH"],
        "KUBECONFIG": str(tmp_path / "kubeconfig"),
        "ROLLOUT_AUTH": "TokenReview",
        "ROLLOUT_REDIS_URL": redis_server.url,
        "ROLLOUT_REDIS_PASSWORD": redis_server.password,
        "ROLLOUT_HTTP_HOST": "127.0.0.1",
        "ROLLOUT_HTTP_PORT": "0",
        "ROLLOUT_PLAIN_HTTP": "true",
        "ROLLOUT_DRAIN_SECONDS": "60",
        "ROLLOUT_LOG_FORMAT": "json",
    }


async def url_from(process: asyncio.subprocess.Process) -> str:
    assert process.stderr is not None
    async with asyncio.timeout(DEADLINE_S):
        while True:
            line = (await process.stderr.readline()).decode()
            assert line, "the gateway ended at its start"
            if found := re.search(r"answers at (http://[0-9.:]+)", line):
                return found[1]


async def test_it_lives_and_ends_in_order(
    environ: dict[str, str], server: Any, stored: dict[str, Any], until: Any
) -> None:
    server.respond = respond(stored)
    async with started(environ) as process:
        url = await url_from(process)
        headers = {"authorization": "Bearer good-token"}
        async with httpx2.AsyncClient(base_url=url, headers=headers, timeout=DEADLINE_S) as caller:

            async def is_ready() -> bool:
                checks = (await caller.get("/readyz")).json()["checks"]
                return bool(checks == {"store": "ok", "stream": "ok"})

            await until(is_ready)
            path = "/v1/namespaces/rl/rolloutjobs/cartpole"
            async with caller.stream("GET", path + "/events") as events:
                lines = events.aiter_lines()
                assert [line async for line in _until_event(lines)]
                process.send_signal(signal.SIGTERM)

                async def is_unready() -> bool:
                    return (await caller.get("/readyz")).status_code == 503

                await until(is_unready)
                # who does not know yet that it is ending still gets an answer
                assert (await caller.get(path)).status_code == 200
                process.send_signal(signal.SIGTERM)  # again: without waiting for the rest of the drain
                async with asyncio.timeout(DEADLINE_S):
                    rest = [line async for line in lines]  # the stream ends: a cut one would raise
                    assert await process.wait() == 0
                    assert "event: deleted" not in rest


async def _until_event(lines: AsyncIterator[str]) -> AsyncIterator[str]:
    async for line in lines:
        if line.startswith("event: "):
            yield line
            return


@pytest.mark.probe("P-50")
@pytest.mark.parametrize(
    ("changes", "text"),
    [
        pytest.param({"ROLLOUT_AUTH": ""}, "ROLLOUT_AUTH", id="no auth"),
        pytest.param({"KUBECONFIG": "/nowhere"}, "KUBECONFIG", id="no cluster"),
    ],
)
async def test_it_does_not_start_without(environ: dict[str, str], changes: dict[str, str], text: str) -> None:
    async with started(environ | changes) as process:
        async with asyncio.timeout(DEADLINE_S):
            _, errors = await process.communicate()
    assert process.returncode == 64
    assert text in errors.decode()
    assert "Traceback" not in errors.decode()


async def test_a_port_in_use(environ: dict[str, str], server_url: str) -> None:
    async with started(environ | {"ROLLOUT_HTTP_PORT": server_url.rpartition(":")[2]}) as process:
        async with asyncio.timeout(DEADLINE_S):
            _, errors = await process.communicate()
    assert process.returncode == 1
    assert "in use" in errors.decode()
    assert "Traceback" not in errors.decode()
