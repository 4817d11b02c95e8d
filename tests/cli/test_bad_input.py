"""Every kind of bad input: exit code 2, the cause in words, nothing left."""

from __future__ import annotations

import resource
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import yaml


def changed(manifest: dict, path: str, value: object) -> dict:
    *parents, last = path.split(".")
    target = manifest
    for key in parents:
        target = target.setdefault(key, {})
    target[last] = value
    return manifest


FAULTY = [
    pytest.param("spec.collector.framesPerBatch", 0, "spec.collector.framesPerBatch", id="zero"),
    pytest.param("spec.collector.framesPerBatch", 10**30, "spec.collector.framesPerBatch", id="absurd"),
    pytest.param("spec.collector.framesPerBatch", 3, "spec.collector.framesPerBatch", id="contradictory"),
    pytest.param("spec.collector.framesPerBatch", "many", "spec.collector.framesPerBatch", id="wrong type"),
    pytest.param("spec.collector.totalFrames", -1, "spec.collector.totalFrames", id="negative"),
    pytest.param("spec.env.colour", "red", "spec.env.colour", id="unknown field"),
    pytest.param("spec.env.entrypoint", "../envs", "spec.env.entrypoint", id="no entrypoint"),
    pytest.param("metadata.name", "x" * 41, "metadata.name", id="41 characters"),
    pytest.param("metadata.name", "x" * 300, "metadata.name", id="300 characters"),
    pytest.param("metadata.name", "../up", "metadata.name", id="a path as a name"),
    pytest.param("metadata.namespace", "a/b", "metadata.namespace", id="a path as a namespace"),
    pytest.param("kind", "Pod", "kind", id="another kind"),
    pytest.param("apiVersion", "v1", "apiVersion", id="another version"),
    pytest.param("spec", None, "spec", id="no spec"),
    pytest.param("spec.collector.mode", "MultiSync", "spec.collector.mode", id="a mode that is not built"),
    pytest.param("spec.collector.coordination", "Barrier", "spec.collector.coordination", id="not built"),
]


@pytest.mark.probe("P-60")
@pytest.mark.parametrize("command", ["validate", "run"])
@pytest.mark.parametrize(("path", "value", "named"), FAULTY)
def test_a_faulty_manifest_is_refused_with_its_path(
    command, path, value, named, manifest, write_manifest, ctl_here, tmp_path
):
    file = write_manifest(changed(manifest, path, value))

    done = ctl_here(command, file)

    assert done.returncode == 2, done.stderr
    assert named in done.stderr
    assert "Traceback" not in done.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["job.yaml"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        pytest.param("a: [", "not YAML", id="not YAML"),
        pytest.param("- 1\n- 2\n", "job.yaml", id="a list"),
        pytest.param("just text", "job.yaml", id="text"),
        pytest.param("{}", "job.yaml", id="nothing in it"),
    ],
)
@pytest.mark.parametrize("command", ["validate", "run"])
def test_what_is_no_job_is_refused(command, content, words, write_manifest, ctl_here):
    done = ctl_here(command, write_manifest(content))

    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_all_faults_of_all_files_are_listed(manifest, write_manifest, ctl_here, tmp_path):
    good = write_manifest(manifest)
    bad = tmp_path / "bad.yaml"
    manifest["spec"]["collector"]["framesPerBatch"] = 0
    manifest["spec"]["env"]["envsPerWorker"] = -3
    bad.write_text(yaml.safe_dump(manifest))

    done = ctl_here("validate", bad, good, tmp_path / "missing.yaml")

    assert done.returncode == 2
    assert done.stdout == f"{good}: RolloutJob tiny is valid\n"
    for words in ("bad.yaml: 2 faults", "framesPerBatch", "envsPerWorker", "missing.yaml"):
        assert words in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        pytest.param(["--port", "70000"], "--port 70000", id="port too large"),
        pytest.param(["--port", "-1"], "--port -1", id="port negative"),
        pytest.param(["--learner", "nowhere.py"], "nowhere.py", id="no learner"),
        pytest.param(["--learner", "job.yaml"], "no Python program", id="a learner that is no program"),
        pytest.param(["--seed", "-1"], "spec.seed", id="negative seed"),
        pytest.param(["--set", "spec.seed"], "--set", id="no assignment"),
        pytest.param(["--set", "spec.env.envsPerWorker=0"], "spec.env.envsPerWorker", id="a bad change"),
        pytest.param(["--no-auth", "--host", "0.0.0.0"], "loopback", id="no token for everybody"),
        pytest.param(["--redis", "http://x"], "--redis", id="no Redis URL"),
        pytest.param(["--redis", "redis://h:1/3"], "--redis", id="a database"),
        pytest.param(["--run-dir", "/proc/here"], "/proc/here", id="directory not writable"),
        pytest.param(["--run-dir", "job.yaml/below"], "job.yaml/below", id="directory below a file"),
        pytest.param(["--bogus"], "--bogus", id="unknown option"),
    ],
)
def test_a_command_line_that_cannot_be_run(arguments, words, manifest, write_manifest, ctl_here, tmp_path):
    done = ctl_here("run", write_manifest(manifest), *arguments)

    assert done.returncode == 2, done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["job.yaml"]


def test_imports_are_checked_on_request(manifest, write_manifest, ctl, tmp_path):
    manifest["spec"]["policy"]["entrypoint"] = "policy:make_polcy"
    manifest["spec"]["env"]["entrypoint"] = "broken:Env"
    (tmp_path / "policy.py").write_text("def make_policy(a, b): ...\n")
    (tmp_path / "broken.py").write_text("def f(:\n")
    file = write_manifest(manifest)

    assert ctl("validate", file).returncode == 0
    done = ctl("validate", "--imports", file)

    assert done.returncode == 2
    assert "spec.policy.entrypoint" in done.stderr
    assert "policy:make_policy" in done.stderr  # did you mean
    assert "spec.env.entrypoint" in done.stderr
    assert "SyntaxError" in done.stderr


def test_a_port_in_use_starts_nothing(manifest, write_manifest, ctl, tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = ctl("run", write_manifest(manifest), "--port", port)

    assert done.returncode == 2
    assert f"127.0.0.1:{port}" in done.stderr
    assert "in use" in done.stderr
    assert not list((tmp_path / "runs").glob("*"))


def test_a_server_that_does_not_start_is_quoted_and_leaves_nothing(manifest, write_manifest, ctl, tmp_path):
    fake = tmp_path / "bin" / "redis-server"
    fake.parent.mkdir()
    fake.write_text(
        "#!/bin/sh\n[ \"$1\" = --version ] && echo 'Redis server v=7.4.1 sha=0' && exit\n"
        "echo 'Bad directive: my disk is full'; exit 1\n"
    )
    fake.chmod(0o755)

    done = ctl("run", write_manifest(manifest), env={"PATH": f"{fake.parent}:/usr/bin:/bin"})

    assert done.returncode == 2
    assert "my disk is full" in done.stderr
    assert "Redis 7.4.1" in done.stderr
    assert not list((tmp_path / "runs").glob("*"))


def test_a_server_elsewhere_that_does_not_answer_is_named(manifest, write_manifest, ctl, tmp_path):
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        port = nobody.getsockname()[1]
        done = ctl("run", write_manifest(manifest), "--redis", f"redis://user:secret@127.0.0.1:{port}")

    assert done.returncode == 2
    assert f"127.0.0.1:{port}" in done.stderr
    assert "secret" not in done.stderr
    assert not list((tmp_path / "runs").glob("*"))


def cpu_seconds_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_help_is_quick(tmp_path):
    """In the time that it works: how long it is kept waiting is up to the machine."""
    seconds = []
    for _ in range(3):
        before = cpu_seconds_of_children()
        done = subprocess.run(
            [Path(sys.executable).with_name("rolloutctl"), "--help"], capture_output=True, check=True
        )
        seconds.append(cpu_seconds_of_children() - before)

    assert b"validate" in done.stdout
    assert min(seconds) < 0.5


def test_the_version_is_the_installed_one(ctl_here):
    from importlib.metadata import version

    assert ctl_here("--version").stdout == f"rolloutctl {version('rolloutjob')}\n"


@pytest.mark.parametrize(
    "command",
    [[], ["run"], ["nonsense"], ["validate"], ["seed", "a", "b"], ["logs", "-n", "-3"], ["logs", "-n", "x"]],
)
def test_a_wrong_command_line_says_how_to_call_it(command, ctl_here):
    done = ctl_here(*command)

    assert done.returncode == 2
    assert "usage: rolloutctl" in done.stderr


@pytest.mark.parametrize(
    "command", ["run", "validate", "get", "logs", "weights", "seed", "suspend", "resume", "complete"]
)
def test_every_command_has_help(command, ctl_here):
    assert ctl_here(command, "--help").returncode == 0


def test_asking_for_help_loads_nothing_heavy():
    script = (
        "import sys\nfrom rollout_cli.main import main\n"
        "try: main(['run', '--help'])\nexcept SystemExit: pass\n"
        "heavy = {'torch', 'kopf', 'kubernetes', 'fastapi', 'pydantic', 'redis', 'rich', 'yaml'} & set(sys.modules)\n"
        "print(sorted(heavy), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert done.stderr == "[]\n"


@pytest.mark.parametrize("command", ["get", "suspend", "seed", "weights"])
def test_without_a_gateway_the_commands_say_what_to_name(command, ctl_here):
    done = ctl_here(command, *(["tiny"] if command != "get" else []))

    assert done.returncode == 2
    assert "--url" in done.stderr


def test_a_gateway_that_does_not_answer(ctl_here):
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        done = ctl_here(
            "get", "tiny", "--url", f"http://127.0.0.1:{nobody.getsockname()[1]}", "-n", "default"
        )

    assert done.returncode == 1
    assert "does not answer" in done.stderr
