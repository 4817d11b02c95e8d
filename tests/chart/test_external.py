"""An installation as production has it: a server behind TLS, the gateway on HTTPS, scaled by load, behind an ingress."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from typing import Any

import httpx2
import installed
import pytest
import tls_redis
from installed import Commands, Release, until
from small_jobs import code, job

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.xdist_group("external")]

PASSWORD = "p@ss w/o:rd%42"
"""With all that would have to be escaped in a URL."""


@pytest.fixture(scope="module")
def external() -> Iterator[tuple[Release, tls_redis.Authority, str]]:
    """The release, the authority of both certificates, and the server's host."""
    installed.image_values()
    authority, stranger = tls_redis.Authority.new(), tls_redis.Authority.new()
    with installed.namespaces("own", "server") as (home, space):
        host = tls_redis.start(space, authority, PASSWORD)
        gateway = f"{home.namespace}-rollout-gateway.{home.namespace}.svc"
        home.apply(
            tls_redis.secret("auth", {"pass": PASSWORD}),
            tls_redis.secret("root", {"root.pem": authority.pem}),
            tls_redis.secret("other-root", {"ca.crt": stranger.pem}),
            tls_redis.tls_secret("https", authority.pair(gateway, "localhost")),
            code(),
        )
        own = [
            {"namespace": home.namespace, "name": "other-root", "keys": ["ca.crt"]},
            {"namespace": home.namespace, "name": "root", "keys": ["root.pem"]},
            {"namespace": home.namespace, "name": "auth", "keys": ["pass"]},
        ]
        values = {
            "operator": {"observeSeconds": 1, "progressSeconds": 1},
            "redis": {
                "external": {
                    "host": host,
                    "port": 6380,
                    "username": "default",
                    "tls": {"enabled": True, "caSecret": "root", "caKey": "root.pem"},
                },
                "auth": {"existingSecret": "auth", "secretKey": "pass"},
                "jobSecrets": own,
            },
            "gateway": {
                "tls": {"existingSecret": "https"},
                "service": {"port": 443},
                "autoscaling": {"enabled": True, "minReplicas": 1, "maxReplicas": 2},
                "ingress": {"enabled": True, "host": "rl.example.org"},
            },
            "metrics": {"dashboard": {"enabled": True}},
        }
        with installed.release(home, values) as found:
            yield found, authority, host


def test_a_job_over_tls(external: Any) -> None:
    """Operator, workers and gateway check the server's certificate, each with the authority that it was given."""
    release, authority, host = external
    home: Commands = release.home
    home.apply(job("over", collector={"framesPerBatch": 64, "totalFrames": 256}))
    home.condition("over", "Complete", "True", within_s=120)
    assert home.status("over")["progress"]["frames"] == 256

    home("create", "serviceaccount", "viewer")
    role = ["--clusterrole=rolloutjob-view", f"--serviceaccount={home.namespace}:viewer"]
    home("create", "rolebinding", "viewer", *role)
    token = home("create", "token", "viewer").strip()
    trusted = ssl.create_default_context(cadata=authority.pem)
    path = f"/v1/namespaces/{home.namespace}/rolloutjobs/over"
    with home.forwarded(f"service/{release.full}-gateway", 443) as address:
        port = address.partition(":")[2]
        with httpx2.Client(verify=trusted, base_url=f"https://localhost:{port}") as client:
            headers = {"authorization": f"Bearer {token}"}
            status = client.get(f"{path}/status", headers=headers)
            assert status.status_code == 200, status.text
            assert status.json()["live"]["progress"]["frames"] == 256, status.text
            place = client.get(f"{path}/stream", headers=headers).json()
            assert place["url"] == f"rediss://default@{host}:6380"


@pytest.mark.parametrize(("name", "redis", "reason"), [
    ("stranger", {"tls": {"enabled": True, "caSecretRef": {"name": "other-root", "key": "ca.crt"}}}, "TlsFailed"),
    ("public", {"tls": {"enabled": True}}, "TlsFailed"),
    ("nameless", {"tls": {"enabled": True, "caSecretRef": {"name": "root", "key": "root.pem"}}}, "AuthenticationFailed"),
    ("unknown", {"tls": {"enabled": True, "caSecretRef": {"name": "root", "key": "no.pem"}}}, "SecretMissing"),
])  # fmt: skip
def test_a_server_that_cannot_be_trusted_or_does_not_trust(
    external: Any, name: str, redis: Any, reason: str
) -> None:
    release, _, host = external
    release.home.apply(job(name, redis={"host": host, "port": 6380, **redis}))
    message = release.home.condition(name, "RedisReady", "False", reason)
    assert PASSWORD not in message
    assert reason == "SecretMissing" or f"{host}:6380" in message
    assert release.home.workers(name) == {}
    release.home("delete", "rolloutjob", name, "--wait=false")


def test_it_passes_its_own_test(external: Any) -> None:
    release, _, _ = external
    assert "Succeeded" in release.home.helm("test", release.name, "--timeout", "90s")


def test_what_belongs_to_the_gateway_finds_it(external: Any) -> None:
    """The autoscaler its numbers, the budget its pods, the ingress its Service."""
    release, _, _ = external
    home, name = release.home, f"{release.full}-gateway"

    def conditions() -> dict[str, str]:
        found = home.get("horizontalpodautoscaler", name)["status"].get("conditions") or ()
        return {c["type"]: c["status"] for c in found}

    until(lambda: conditions().get("ScalingActive") == "True", "numbers for the autoscaler", within_s=120)
    budget = home.get("poddisruptionbudget", name)["status"]
    assert budget["expectedPods"] >= 1
    backend = home.get("ingress", name)["spec"]["rules"][0]["http"]["paths"][0]["backend"]["service"]
    assert backend == {"name": name, "port": {"name": "http"}}
    slices = home.get("endpointslices", "", "--selector", f"kubernetes.io/service-name={name}")["items"]
    assert [e for s in slices for e in s["endpoints"] if e["conditions"]["ready"]]
