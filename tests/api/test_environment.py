"""The settings of the program: every variable, every fault at once, no value in any text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rollout_api.environment import AuthKind, settings_from
from rollout_contract.errors import SpecError

GOOD = {
    "ROLLOUT_AUTH": "TokenReview",
    "ROLLOUT_REDIS_URL": "redis://redis:6379",
    "ROLLOUT_PLAIN_HTTP": "true",
}


def paths_of(environ: dict[str, str]) -> set[str]:
    with pytest.raises(SpecError) as caught:
        settings_from(environ)
    return {fault.path for fault in caught.value.faults}


@pytest.mark.probe("P-50")
def test_nothing_set_is_refused_by_name() -> None:
    assert paths_of({}) == {"ROLLOUT_AUTH", "ROLLOUT_REDIS_URL", "ROLLOUT_TLS_CERT_FILE"}


def test_what_is_needed_is_enough() -> None:
    settings = settings_from({**GOOD, "ROLLOUT_POD_NAMESPACE": "rl"})
    assert settings.auth is AuthKind.TOKEN_REVIEW
    assert (settings.api.host, settings.port, settings.metrics_port, settings.tls) == (
        "0.0.0.0",
        8080,
        None,
        None,
    )
    assert settings.api.namespaces == ("rl",)
    assert not settings.api.secure_cookie
    assert settings.redis.password is None


def test_everything(tmp_path: Path) -> None:
    for name in ("tls.crt", "tls.key", "ca.crt", "password"):
        (tmp_path / name).write_text("x")
    settings = settings_from(
        {
            "ROLLOUT_AUTH": "SelfReview",
            "ROLLOUT_REDIS_URL": "rediss://app@redis.example:6380",
            "ROLLOUT_REDIS_PASSWORD": "s3cr3t",
            "ROLLOUT_REDIS_PASSWORD_FILE": str(tmp_path / "password"),
            "ROLLOUT_REDIS_CA_FILE": str(tmp_path / "ca.crt"),
            "ROLLOUT_SECRETS_DIR": str(tmp_path),
            "ROLLOUT_NAMESPACES": "b, a,b",
            "ROLLOUT_HTTP_HOST": "::",
            "ROLLOUT_HTTP_PORT": "8443",
            "ROLLOUT_METRICS_PORT": "9090",
            "ROLLOUT_TLS_CERT_FILE": str(tmp_path / "tls.crt"),
            "ROLLOUT_TLS_KEY_FILE": str(tmp_path / "tls.key"),
            "ROLLOUT_ALLOWED_HOSTS": "Rollout.example, other.example",
            "ROLLOUT_SESSION_KEY": "k" * 32,
            "ROLLOUT_DRAIN_SECONDS": "0",
            "ROLLOUT_GRACE_SECONDS": "2.5",
            "ROLLOUT_LOG_LEVEL": "debug",
            "ROLLOUT_LOG_FORMAT": "text",
        }
    )
    assert settings.auth is AuthKind.SELF_REVIEW
    redis = settings.redis
    assert (redis.host, redis.port, redis.username, redis.password) == (
        "redis.example",
        6380,
        "app",
        "s3cr3t",
    )
    assert (redis.tls, redis.ca_file) == (True, str(tmp_path / "ca.crt"))
    assert settings.api.namespaces == ("a", "b")
    assert settings.api.allowed_hosts == ("rollout.example", "other.example")
    assert settings.api.secure_cookie  # browsers come through HTTPS
    assert (settings.port, settings.metrics_port, settings.drain_s, settings.grace_s) == (
        8443,
        9090,
        0.0,
        2.5,
    )
    assert (settings.log_level, settings.log_as_json) == ("DEBUG", False)
    assert "s3cr3t" not in repr(settings)
    assert "k" * 32 not in repr(settings)


def test_all_namespaces_are_none_to_look_through() -> None:
    assert settings_from({**GOOD, "ROLLOUT_NAMESPACES": "*"}).api.namespaces == ()


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        pytest.param({"ROLLOUT_AUTH": "None"}, "ROLLOUT_AUTH", id="no such way"),
        pytest.param({"ROLLOUT_REDIS_URL": "http://s3cr3t@redis"}, "ROLLOUT_REDIS_URL", id="no redis"),
        pytest.param({"ROLLOUT_NAMESPACES": "Bad_Name"}, "ROLLOUT_NAMESPACES", id="namespace"),
        pytest.param({"ROLLOUT_HTTP_PORT": "70000"}, "ROLLOUT_HTTP_PORT", id="port"),
        pytest.param({"ROLLOUT_METRICS_PORT": "x"}, "ROLLOUT_METRICS_PORT", id="metrics port"),
        pytest.param({"ROLLOUT_PLAIN_HTTP": "yes"}, "ROLLOUT_PLAIN_HTTP", id="truth value"),
        pytest.param({"ROLLOUT_SESSION_KEY": "s3cr3t"}, "ROLLOUT_SESSION_KEY", id="short key"),
        pytest.param({"ROLLOUT_DRAIN_SECONDS": "nan"}, "ROLLOUT_DRAIN_SECONDS", id="no number"),
        pytest.param({"ROLLOUT_GRACE_SECONDS": "1e9"}, "ROLLOUT_GRACE_SECONDS", id="too long"),
        pytest.param({"ROLLOUT_LOG_LEVEL": "loud"}, "ROLLOUT_LOG_LEVEL", id="level"),
        pytest.param({"ROLLOUT_TLS_CERT_FILE": "/nowhere"}, "ROLLOUT_TLS_CERT_FILE", id="no file"),
        pytest.param(
            {"ROLLOUT_REDIS_PASSWORD_FILE": "/nowhere"}, "ROLLOUT_REDIS_PASSWORD_FILE", id="password file"
        ),
    ],
)
def test_a_fault_names_the_variable_and_not_the_value(changes: dict[str, str], path: str) -> None:
    with pytest.raises(SpecError) as caught:
        settings_from(GOOD | changes)
    assert path in {fault.path for fault in caught.value.faults}
    assert "s3cr3t" not in str(caught.value)


def test_certificate_and_key_go_together_and_not_with_plain_http(tmp_path: Path) -> None:
    certificate = tmp_path / "tls.crt"
    certificate.write_text("x")
    tls: dict[str, Any] = {**GOOD, "ROLLOUT_TLS_CERT_FILE": str(certificate)}
    assert paths_of(tls) == {"ROLLOUT_TLS_KEY_FILE"}
    assert paths_of({**tls, "ROLLOUT_TLS_KEY_FILE": str(certificate)}) == {"ROLLOUT_PLAIN_HTTP"}
