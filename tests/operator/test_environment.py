"""Settings from the environment, and where a job's server is reached with which credentials."""

from __future__ import annotations

import pytest
from operator_builders import make_job

from rollout_contract.errors import SpecError
from rollout_contract.podenv import StreamAddress
from rollout_contract.spec import KeyRef
from rollout_contract.status import Reason
from rollout_operator.environment import settings_from
from rollout_operator.reach import Reach
from rollout_operator.troubles import CredentialsMissing, trouble_of
from rollout_stream.connection import ServerAddress

LEAST = {"ROLLOUT_POD_NAMESPACE": "ops", "ROLLOUT_REDIS_URL": "redis://redis.ops.svc:6380"}


def test_the_least():
    settings = settings_from(LEAST)

    assert settings.namespaces == ("ops",)
    assert settings.operator.redis == StreamAddress(host="redis.ops.svc", port=6380)
    assert settings.operator.redis_secret is None
    assert (settings.lease_name, settings.http_port, settings.log_as_json) == ("rollout-operator", 8080, True)
    assert settings.identity != settings_from(LEAST).identity


def test_everything():
    settings = settings_from(
        {
            **LEAST,
            "ROLLOUT_NAMESPACES": "rl, lab",
            "ROLLOUT_REDIS_URL": "rediss://user@redis:6380",
            "ROLLOUT_REDIS_PASSWORD": "s3cr3t",
            "ROLLOUT_WORKER_REDIS_SECRET": "redis-auth",
            "ROLLOUT_WORKER_REDIS_CA_SECRET": "redis-ca/tls.crt",
            "ROLLOUT_WORKER_IMAGE": "example.org/worker:1",
            "ROLLOUT_GATEWAY_URL": "http://gateway",
            "ROLLOUT_POD_NAME": "operator-1",
            "ROLLOUT_POD_UID": "abc",
            "ROLLOUT_TRUST_UNKNOWN_EVICTION": "true",
            "ROLLOUT_LOG_FORMAT": "text",
            "ROLLOUT_LOG_LEVEL": "debug",
        }
    )

    assert settings.namespaces == ("lab", "rl")
    assert settings.operator.redis_secret == KeyRef(name="redis-auth", key="password")
    assert settings.operator.redis.ca_file == "/etc/rollout/redis-ca/tls.crt"
    assert settings.redis.password == "s3cr3t"
    assert settings.operator.trust_unknown_eviction
    assert (settings.identity, settings.log_level, settings.log_as_json) == ("operator-1_abc", "DEBUG", False)
    assert "s3cr3t" not in repr(settings)


def test_all_namespaces():
    assert settings_from({**LEAST, "ROLLOUT_NAMESPACES": "*"}).namespaces == ()


@pytest.mark.parametrize(
    ("change", "name"),
    [
        pytest.param({"ROLLOUT_NAMESPACES": "A_b"}, "ROLLOUT_NAMESPACES", id="a namespace"),
        pytest.param({"ROLLOUT_REDIS_URL": ""}, "ROLLOUT_REDIS_URL", id="no server"),
        pytest.param({"ROLLOUT_REDIS_URL": "http://:s3cr3t@x"}, "ROLLOUT_REDIS_URL", id="a server"),
        pytest.param({"ROLLOUT_POD_NAMESPACE": ""}, "ROLLOUT_POD_NAMESPACE", id="no namespace"),
        pytest.param({"ROLLOUT_HTTP_PORT": "99999"}, "ROLLOUT_HTTP_PORT", id="a port"),
        pytest.param({"ROLLOUT_OBSERVE_SECONDS": "0"}, "ROLLOUT_OBSERVE_SECONDS", id="an interval"),
        pytest.param({"ROLLOUT_LOG_LEVEL": "loud"}, "ROLLOUT_LOG_LEVEL", id="a level"),
        pytest.param({"ROLLOUT_WORKER_LOG_LEVEL": "9"}, "ROLLOUT_WORKER_LOG_LEVEL", id="a worker's level"),
        pytest.param(
            {"ROLLOUT_WORKER_REDIS_SECRET": "A B"}, "ROLLOUT_WORKER_REDIS_SECRET", id="a secret's name"
        ),
        pytest.param(
            {"ROLLOUT_TRUST_UNKNOWN_EVICTION": "maybe"}, "ROLLOUT_TRUST_UNKNOWN_EVICTION", id="a flag"
        ),
    ],
)
def test_every_fault_names_its_variable_and_no_value(change, name):
    with pytest.raises(SpecError) as raised:
        settings_from({**LEAST, **change})

    assert [fault.path for fault in raised.value.faults] == [name]
    assert "s3cr3t" not in str(raised.value)


def test_all_faults_at_once():
    with pytest.raises(SpecError) as raised:
        settings_from({"ROLLOUT_HTTP_PORT": "x", "ROLLOUT_LOG_FORMAT": "xml"})

    assert len(raised.value.faults) == 4


DEFAULT = ServerAddress(host="redis", port=6379, password="default")
OWN = {"host": "own.svc", "port": 7000, "authSecretRef": {"name": "auth", "key": "pw"}}


@pytest.fixture
def secrets(tmp_path):
    folder = tmp_path / "rl" / "auth"
    folder.mkdir(parents=True)
    (folder / "pw").write_text("s3cr3t\n")
    (folder / "ca.crt").write_text("cert")
    return tmp_path


def test_the_default_server():
    assert Reach(DEFAULT)(make_job()) == DEFAULT


def test_the_default_servers_password_from_a_file(tmp_path):
    path = tmp_path / "password"
    reach = Reach(DEFAULT, password_file=path)
    with pytest.raises(CredentialsMissing, match="password of the default server"):
        reach(make_job())
    for text in ("first", "second"):
        path.write_text(text)
        assert reach(make_job()).password == text


def test_a_server_of_its_own(secrets):
    tls = {"enabled": True, "caSecretRef": {"name": "auth", "key": "ca.crt"}}
    found = Reach(DEFAULT, secrets_dir=secrets)(make_job(redis={**OWN, "tls": tls}))

    assert (found.host, found.port, found.password, found.tls) == ("own.svc", 7000, "s3cr3t", True)
    assert found.ca_file == str(secrets / "rl" / "auth" / "ca.crt")


@pytest.mark.parametrize("key", ["other", "pw"])
def test_a_secret_that_was_not_given(secrets, key):
    redis = {**OWN, "authSecretRef": {"name": "auth", "key": key}}
    reach = Reach(DEFAULT, secrets_dir=secrets if key == "other" else None)

    with pytest.raises(CredentialsMissing, match=f"key {key} of Secret rl/auth") as raised:
        reach(make_job(redis=redis))
    assert trouble_of(raised.value).reason is Reason.SECRET_MISSING
