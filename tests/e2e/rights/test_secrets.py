"""Passwords and tokens stay where they are: looked for in everything that leaves a process, in the whole installation."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any
from urllib.parse import quote

import pytest
import redis
from installed import Commands, Refused, until
from small_jobs import job

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.xdist_group("platform")]

MADE_BY_TESTS = {"probe", "wrong", "stale", "served-client"}
"""Secrets that are the passwords' and tokens' place."""


def forms(secret: str) -> set[str]:
    """A secret as it may stand somewhere: as it is, in a URL, in JSON, in a Secret's data."""
    encoded = base64.b64encode(secret.encode()).decode().rstrip("=")
    return {secret, quote(secret, safe=""), json.dumps(secret)[1:-1], encoded}


@pytest.mark.probe("P-54")
def test_no_secret_is_anywhere_but_in_its_secret(platform: Any, token_of: Any) -> None:
    a: Commands = platform.a
    a.apply(job("well", collector={"framesPerBatch": 64, "totalFrames": 256}))
    a.apply(_on_own_server(platform, "refused", "wrong"), _on_own_server(platform, "halfway", "stale"))
    message = a.condition("refused", "RedisReady", "False", "AuthenticationFailed")
    assert f"{platform.redis_host}:6379" in message
    assert a.workers("refused") == {}
    a.condition("well", "Complete", "True", within_s=120)
    # Its workers have another password than the operator: they say so themselves.
    failure = until(lambda: a.status("halfway").get("lastFailure"), "a worker's last words", within_s=120)
    assert f"{platform.redis_host}:6379" in failure["message"]

    a.apply(job("steady"))
    a.ready("steady", 1)
    tokens = {name: token_of(getattr(platform, name)) for name in ("editor", "viewer")}
    # The end of a token is its signature: what stands before it is no secret of its own.
    secrets = {"password": platform.password, "wrong password": platform.wrong_password}
    secrets |= {f"token of {name}": token.rpartition(".")[2] for name, token in tokens.items()}
    texts = dict(_everything(platform, tokens["editor"]))
    for place in ("logs", "metrics", "answers", "stream", "objects", "traceback"):
        assert [text for name, text in texts.items() if name.startswith(place) and text.strip()], place
    hits = [
        (name, where)
        for name, secret in secrets.items()
        for where, text in texts.items()
        if any(form in text for form in forms(secret))
    ]
    assert hits == []
    a("delete", "rolloutjob", "well", "refused", "halfway", "steady", "--wait=false")


def _on_own_server(platform: Any, name: str, secret: str) -> dict[str, Any]:
    """A job that names the server itself, and a Secret of its namespace."""
    reference = {"name": secret, "key": "password"}
    found = job(name, redis={"host": platform.redis_host, "authSecretRef": reference})
    found["spec"]["failurePolicy"] = {"backoffLimit": 0}
    return found


def _everything(platform: Any, token: str) -> Iterator[tuple[str, str]]:
    """Where, and what stands there."""
    for space in (platform.home, platform.a, platform.b):
        yield from _objects(space)
        yield from _logs(space)
    yield from _answers(platform, token)
    yield from _metrics(platform)
    yield "stream", _stream(platform)
    yield "traceback", _traceback(platform)


def _objects(space: Commands) -> Iterator[tuple[str, str]]:
    kinds = space("api-resources", "--namespaced", "--verbs=list", "--output=name").split()
    for secret in space.get("secrets")["items"]:
        if secret["metadata"]["name"] not in MADE_BY_TESTS:
            yield f"objects: secret {secret['metadata']['name']}", json.dumps(secret)
    others = ",".join(kind for kind in kinds if kind != "secrets" and not kind.endswith("metrics.k8s.io"))
    yield f"objects: {space.namespace}", space("get", others, "--output=yaml", "--show-managed-fields")
    yield f"objects: described {space.namespace}", space("describe", "rolloutjobs,pods")


def _logs(space: Commands) -> Iterator[tuple[str, str]]:
    for pod in space.get("pods")["items"]:
        name = pod["metadata"]["name"]
        for previous in ((), ("--previous",)):
            try:
                yield f"logs: {name}{previous}", space("logs", name, "--all-containers", *previous)
            except Refused:  # it has not started, or nothing ran before
                continue


def _answers(platform: Any, token: str) -> Iterator[tuple[str, str]]:
    base = f"/v1/namespaces/{platform.a.namespace}/rolloutjobs"
    parts = ("", "/status", "/workers", "/stream", "/seed", "/weights", "/episodes", "/events")
    with platform.gateway(token) as client:
        paths = [f"{base}/{name}{part}" for name in ("steady", "refused", "halfway") for part in parts]
        for path in [base, "/v1/rolloutjobs", "/metrics", "/openapi.json", "/readyz", "/healthz", *paths]:
            with client.stream("GET", path) as answer:
                parts = answer.iter_bytes()
                first = next(parts, b"")  # of events: the first, which has everything
                whole = first if path.endswith("/events") else first + b"".join(parts)
                yield f"answers: {path} {answer.status_code}", whole.decode() + str(answer.headers)
        page = client.post("/login", data={"token": token})
        yield "answers: /login", page.text + str(page.headers)
        refused = client.post("/login", data={"token": f"{token}x"})
        yield "answers: refused login", refused.text + str(refused.headers)


def _metrics(platform: Any) -> Iterator[tuple[str, str]]:
    import httpx2

    home, full = platform.home, platform.release.full
    with ExitStack() as stack:
        places = [
            (f"{full}-operator", stack.enter_context(home.forwarded(f"service/{full}-operator", 8080)), "/metrics"),
            (f"{full}-operator", stack.enter_context(home.forwarded(f"service/{full}-operator", 8080)), "/readyz"),
            (f"{full}-gateway", stack.enter_context(home.forwarded(f"service/{full}-gateway-metrics", 9090)), "/metrics"),
        ]  # fmt: skip
        (worker,) = platform.a.workers("steady")
        places.append((worker, stack.enter_context(platform.a.forwarded(f"pod/{worker}", 8081)), "/readyz"))
        for name, address, path in places:
            yield f"metrics: {name}{path}", httpx2.get(f"http://{address}{path}", timeout=20).text


def _stream(platform: Any) -> str:
    """Every entry of the server, whatever its type."""
    with platform.home.forwarded(f"service/{platform.release.full}-redis", 6379) as address:
        host, _, port = address.partition(":")
        client = redis.Redis(host=host, port=int(port), password=platform.password, socket_timeout=20)
        reads = {
            b"string": client.get,
            b"hash": client.hgetall,
            b"stream": lambda key: client.xrange(key, count=50),
            b"list": lambda key: client.lrange(key, 0, -1),
            b"set": client.smembers,
            b"zset": lambda key: client.zrange(key, 0, -1, withscores=True),
        }
        found = {key: reads[client.type(key)](key) for key in client.scan_iter(count=1000)}
        client.close()
    assert found
    return repr(found)


def _traceback(platform: Any) -> str:
    """What a learner with the wrong password prints, in full."""
    script = (
        "import sys\nfrom rollout_stream import RolloutStream\n"
        "RolloutStream.connect(sys.argv[1], job=sys.argv[2], patience_s=3)\n"
    )
    with platform.home.forwarded(f"service/{platform.release.full}-redis", 6379) as address:
        done = subprocess.run(
            [sys.executable, "-c", script, f"redis://{address}", f"{platform.a.namespace}/steady"],
            env={"ROLLOUT_REDIS_PASSWORD": platform.wrong_password, "PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode
    assert "refuses the credentials" in done.stderr
    return done.stdout + done.stderr
