"""Every command that a document shows is run, as it is printed, beside a job that runs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from process_ends import end

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
WORDS = ("make", "rolloutctl", "curl", "python", "set", "kubectl", "helm")

pytestmark = [pytest.mark.timeout(900), pytest.mark.slow, pytest.mark.probe("P-55")]


@dataclass(frozen=True)
class Command:
    """One command of a document's code block, with its continuation lines."""

    document: str
    text: str

    @property
    def word(self) -> str:
        return self.text.split()[0]


def commands_of(path: Path) -> Iterator[Command]:
    """Those for one machine: what stands under "On a cluster" is run on one, by tests/e2e/jobs/test_readme.py."""
    parts = re.split(r"^(?=## )", path.read_text(), flags=re.MULTILINE)
    text = "".join(part for part in parts if not part.startswith("## On a cluster\n"))
    for language, block in re.findall(r"^```(\w*)\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        if language not in ("", "sh", "console"):
            continue
        for line in block.replace("\\\n", " ").splitlines():
            text = re.sub(r"\s+", " ", re.sub(r"\s{2,}#.*", "", line)).strip()
            if text.startswith(WORDS):
                yield Command(path.relative_to(ROOT).as_posix(), text)


DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
COMMANDS = [command for path in DOCUMENTS for command in commands_of(path)]
MAKE = [c for c in COMMANDS if c.word == "make"]
RUNS = sorted({c.text for c in COMMANDS if c.text.startswith(("rolloutctl run", "rolloutctl validate"))})
BESIDE = sorted({c.text for c in COMMANDS if c.word in ("curl", "python", "set", "rolloutctl")} - set(RUNS))


def test_documents_show_commands() -> None:
    """The collection itself works: the README's first commands are found."""
    assert {"make run", "make test"} <= {c.text for c in MAKE if c.document == "README.md"}
    assert len(BESIDE) >= 8
    assert any(text.startswith("rolloutctl run examples/custom_env") for text in RUNS)


@pytest.mark.parametrize("target", sorted({c.text.split()[1] for c in MAKE}))
def test_make_targets_exist(target: str) -> None:
    """Continuous integration runs them; here their recipes are only asked for."""
    dry = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=False)
    assert dry.returncode == 0, dry.stderr


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the examples, as a clone has them."""
    path = tmp_path_factory.mktemp("clone")
    shutil.copytree(ROOT / "examples", path / "examples")
    return path


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", **more}


@pytest.fixture(scope="module")
def running(workplace: Path) -> Iterator[dict[str, str]]:
    """The CartPole example, running and not about to end; the variables that the README's commands use."""
    out = workplace / "out"
    command = ["rolloutctl", "run", "examples/cartpole/job.yaml", "--learner", "reader.py"]
    command += [
        "--set",
        "spec.collector.totalFrames=100000000",
        "--set",
        "spec.weights.startPolicy=Immediate",
    ]
    (workplace / "reader.py").write_text(
        "from rollout_stream import RolloutStream\n"
        "for batch in RolloutStream.connect().batches(group='learner'):\n    batch.ack()\n"
    )
    with out.open("w") as file:
        process = subprocess.Popen(
            command, cwd=workplace, env=environment(), stdout=file, stderr=subprocess.STDOUT
        )
    try:
        until = time.monotonic() + 300
        while not re.search(r"Running \| [1-9]", out.read_text()):
            assert process.poll() is None, out.read_text()
            assert time.monotonic() < until, out.read_text()
            time.sleep(0.1)
        text = out.read_text()
        url = re.search(r"gateway +(http://\S+)", text)
        token = re.search(r"token +(\S+)", text)
        assert url
        assert token
        variables = environment(URL=url[1], TOKEN=token[1], CURL_HOME=str(workplace))
        (workplace / ".curlrc").write_text("fail-with-body\nsilent\nshow-error\nmax-time = 60\n")
        _publish_one(variables, workplace)
        yield variables
    finally:
        end(
            process,
            said=lambda: "\n".join(tail(path) for path in (out, *workplace.glob("runs/*/logs/*.log"))),
        )


def tail(path: Path) -> str:
    """The end of a log, with its name."""
    return f"--- {path.name}\n{path.read_text(errors='replace')[-5000:]}"


def _publish_one(variables: dict[str, str], workplace: Path) -> None:
    """Weights that fit the example's policy, so that there is a version to download."""
    code = (
        "import sys, torch; sys.path.insert(0, 'examples/cartpole')\n"
        "from policy import Policy; from rollout_stream.codec import state_bytes\n"
        "open('weights.safetensors', 'wb').write(state_bytes(Policy(4, 2)))"
    )
    subprocess.run([sys.executable, "-c", code], cwd=workplace, env=variables, check=True)
    put = 'curl -H "Authorization: Bearer $TOKEN" -X PUT --data-binary @weights.safetensors '
    put += "$URL/v1/namespaces/default/rolloutjobs/cartpole/weights"
    subprocess.run(["bash", "-euc", put], cwd=workplace, env=variables, check=True)


def test_commands_beside_a_run(running: dict[str, str], workplace: Path) -> None:
    failed = []
    for text in BESIDE:
        done = subprocess.run(
            ["bash", "-euc", text],
            cwd=workplace,
            env=running,
            capture_output=True,
            text=True,
            timeout=150,
            check=False,
        )
        if done.returncode:
            failed.append(f"{text}\n  exit {done.returncode}: {done.stdout[-500:]}{done.stderr[-500:]}")
    assert not failed, "\n".join(failed)


@pytest.mark.parametrize("text", [t for t in RUNS if "cartpole/learner.py" not in t])
def test_commands_that_run_or_validate(text: str, workplace: Path) -> None:
    """The CartPole training itself is `make run`, which continuous integration runs."""
    done = subprocess.run(
        ["bash", "-euc", text],
        cwd=workplace,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
