"""What goes wrong in user code ends the worker soon, with the right code, and says who, where and why."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

import psutil
import pytest
from process_ends import is_gone

pytestmark = pytest.mark.timeout(400)

SOON_S = 120.0
"""A worker starts Python and torch, where others compute."""

COUNT = {"entrypoint": "worker_toys:Count", "envsPerWorker": 4}


LIMIT_S = 4
"""How long an environment may be silent, where one is that."""


def fault(how: str, **kwargs: Any) -> dict[str, Any]:
    return {
        "entrypoint": "worker_toys:Fault",
        "kwargs": {"how": how, **kwargs},
        "envsPerWorker": 4,
        "processes": 2,
        "stepTimeoutSeconds": LIMIT_S if how == "sleep" else 120,
    }


@pytest.mark.probe("P-09")
@pytest.mark.parametrize("backend", ["Process", "Serial"])
@pytest.mark.parametrize(
    ("env", "code", "parts", "last"),
    [
        pytest.param(
            fault("raise", at=1000), 1, ["environment 1", "boom-step", "in deeper"], "boom-step", id="raises"
        ),
        pytest.param(
            fault("constructor"), 1, ["environment 1", "constructor"], "boom-constructor", id="constructor"
        ),
        pytest.param(fault("shape"), 1, ["environment 1", "[7]", "[1]"], "[1]", id="wrong-shape"),
        pytest.param(fault("nan-reward"), 1, ["environment 1", "reward", "nan"], "finite", id="nan"),
        pytest.param({"entrypoint": "no_such:make", "envsPerWorker": 4}, 64, ["no_such"], "", id="no-module"),
        pytest.param(
            {"entrypoint": "worker_toys:Cuont", "envsPerWorker": 4}, 64, ["Cuont"], "", id="no-attribute"
        ),
        pytest.param(
            {"entrypoint": "worker_syntax:make_env", "envsPerWorker": 4}, 64, ["SyntaxError"], "", id="syntax"
        ),
        pytest.param(
            {"entrypoint": "worker_toys:not_callable", "envsPerWorker": 4}, 64, ["int"], "", id="not-callable"
        ),
    ],
)
def test_an_environment_that_fails(
    rig: Callable[..., Any], backend: str, env: dict[str, Any], code: int, parts: list[str], last: str
) -> None:
    job = rig(env={**env, "backend": backend}, collector={"framesPerBatch": 64, "totalFrames": 100_000})
    process = job.start()
    assert process.wait(SOON_S) == code
    words = job.words_of_first()
    log = job.log()
    assert all(part in words for part in parts), words
    assert "default-0-0" in words
    assert last in log.rstrip().splitlines()[-1]


@pytest.mark.parametrize(
    ("how", "parts"),
    [
        pytest.param("kill", ["SIGKILL", "environment"], id="killed"),
        pytest.param("exit", ["exit code 3", "environment"], id="exits"),
        pytest.param("sleep", ["environment 1", f"{LIMIT_S} s", "step"], id="never-returns"),
    ],
)
@pytest.mark.probe("P-08")
def test_an_environment_process_that_is_lost(rig: Callable[..., Any], how: str, parts: list[str]) -> None:
    job = rig(env=fault(how), collector={"framesPerBatch": 64, "totalFrames": 100_000})
    process = job.start()
    children = wait_for_children(process.pid)
    assert process.wait(SOON_S) == 1
    words = job.words_of_first()
    assert all(part in words for part in parts), words
    until = time.monotonic() + SOON_S
    while not all(is_gone(child.pid) for child in children):
        assert time.monotonic() < until
        time.sleep(0.02)


def wait_for_children(pid: int) -> list[psutil.Process]:
    """The worker's children as soon as there are some; none where it has ended before they were seen."""
    until = time.monotonic() + SOON_S
    while time.monotonic() < until:
        try:
            if children := psutil.Process(pid).children(recursive=True):
                return children
        except psutil.NoSuchProcess:
            break
        time.sleep(0.005)
    return []


@pytest.mark.parametrize(
    ("entrypoint", "code", "parts"),
    [
        pytest.param("worker_toys:make_raising", 1, ["RuntimeError: boom-policy"], id="raises"),
        pytest.param("worker_toys:make_nan", 1, ["'value'", "nan", "environment 0"], id="nan"),
        pytest.param("worker_toys:make_failing", 64, ["KeyError", "boom-factory"], id="factory-raises"),
        pytest.param("worker_toys:make_wrong_shape", 64, ["[4, 3]", "[4]"], id="wrong-shape"),
        pytest.param("worker_toys:make_clashing", 64, ["'observation'", "a name of its own"], id="clashing"),
        pytest.param("worker_toys:nope", 64, ["no 'nope'"], id="no-attribute"),
        pytest.param("nope:make", 64, ["no module 'nope'"], id="no-module"),
        pytest.param("worker_syntax:make_env", 64, ["SyntaxError"], id="syntax"),
    ],
)
def test_a_policy_that_fails(rig: Callable[..., Any], entrypoint: str, code: int, parts: list[str]) -> None:
    job = rig(policy={"entrypoint": entrypoint}, env=COUNT)
    assert job.start().wait(SOON_S) == code
    words = job.words_of_first()
    assert all(part in words for part in parts), words


@pytest.mark.probe("P-54")
def test_a_wrong_password_is_named_but_not_shown(rig: Callable[..., Any]) -> None:
    job = rig()
    process = job.start(redis=job.address(username="nobody"))
    assert process.wait(SOON_S) == 75
    text = job.words_of_first() + job.log()
    assert "s3cr3t-probe-42" not in text
    assert str(job.server.port) in text


@pytest.mark.probe("P-48")
@pytest.mark.parametrize(
    ("backend", "allowed", "code"),
    [
        pytest.param("Process", 1024, 64, id="too-little"),
        pytest.param("Process", 1 << 20, 0, id="enough"),
        pytest.param("Serial", 1024, 0, id="nothing-is-shared"),
    ],
)
def test_shared_memory_that_the_job_allows(
    rig: Callable[..., Any], backend: str, allowed: int, code: int
) -> None:
    """Checked before the first frame, with both numbers, whatever this machine's own memory is."""
    job = rig(env={**COUNT, "backend": backend}, collector={"framesPerBatch": 64, "totalFrames": 64})
    assert job.start(shared_memory_bytes=allowed).wait(SOON_S) == code
    if code:
        words = job.words_of_first()
        assert re.search(
            r"needs \d{4,} bytes .*sharedMemory of worker group default allows 1024 \(1Ki\)", words
        ), words
