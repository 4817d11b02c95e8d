"""Which server holds a job's stream, and with which password the gateway goes there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rollout_api.live import away_of
from rollout_api.reach import PASSWORD_TTL_S, CredentialsMissing, Passwords, Reach, Sessions
from rollout_contract.spec import RolloutJob, parse_manifest
from rollout_stream.connection import ServerAddress

DEFAULT = ServerAddress("redis.example", 6379, "app", "default-secret")
OWN = {"host": "own.example", "port": 6380, "authSecretRef": {"name": "redis-auth", "key": "password"}}


@pytest.fixture
def make_job(make_manifest: Any) -> Any:
    def make(redis: dict[str, Any] | None = None, namespace: str = "rl") -> RolloutJob:
        document = make_manifest(**({"redis": redis} if redis else {}))
        document["metadata"] = {"name": "cartpole", "namespace": namespace, "uid": "0" * 32}
        return parse_manifest(document)

    return make


@pytest.fixture
def secrets(tmp_path: Path) -> Path:
    path = tmp_path / "rl" / "redis-auth" / "password"
    path.parent.mkdir(parents=True)
    path.write_text("own-secret\n")
    return tmp_path


def test_jobs_without_a_server_are_on_the_default_one(make_job: Any) -> None:
    assert Reach(DEFAULT)(make_job()) == DEFAULT


def test_a_job_with_a_server_of_its_own(make_job: Any, secrets: Path) -> None:
    found = Reach(DEFAULT, secrets_dir=secrets)(make_job(OWN))
    assert (found.host, found.port, found.username, found.password) == (
        "own.example",
        6380,
        None,
        "own-secret",
    )


def test_the_default_password_goes_to_no_other_server(make_job: Any, secrets: Path) -> None:
    found = Reach(DEFAULT, secrets_dir=secrets)(make_job({"host": "other.example"}))
    assert found.password is None


@pytest.mark.parametrize("has_directory", [False, True])
def test_a_secret_of_another_namespace_is_not_used(make_job: Any, secrets: Path, has_directory: bool) -> None:
    reach = Reach(DEFAULT, secrets_dir=secrets if has_directory else None)
    with pytest.raises(CredentialsMissing, match=r"key password of Secret other/redis-auth") as caught:
        reach(make_job(OWN, namespace="other"))
    assert "reads no Secrets" in away_of(caught.value).error.detail


def test_a_changed_password_holds_after_seconds(tmp_path: Path) -> None:
    now, path = [0.0], tmp_path / "password"
    reach = Reach(DEFAULT, password_file=path, passwords=Passwords(clock=lambda: now[0]))
    with pytest.raises(CredentialsMissing):
        reach.default()
    path.write_text("one")
    assert reach.default().password == "one"
    path.write_text("two")
    assert reach.default().password == "one"
    now[0] += PASSWORD_TTL_S
    assert reach.default().password == "two"


async def test_sessions_are_shared_and_bounded(make_job: Any) -> None:
    sessions = Sessions(Reach(DEFAULT))
    assert sessions.of(make_job()) is sessions.default()
    for number in range(200):
        sessions.of(make_job({"host": f"redis-{number}.example"}))
    assert len(sessions._open) == 64
    await sessions.close()
