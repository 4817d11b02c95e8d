"""Batches are started from threads, notebooks, daemons, as the first process, without a disk to write to, with little
shared memory: they do the same there, or say what is missing.

`toys_work` is what is done; here is where.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
import toys_work

pytestmark = pytest.mark.slow

LIMIT_S = 300


def run(*command: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
        env={**os.environ, **more},
    )


def script(name: str) -> list[str]:
    return [sys.executable, toys_work.__file__, name]


def told(done: subprocess.CompletedProcess[str]) -> list[str]:
    assert done.returncode == 0, done.stderr
    return done.stdout.split("\n")[:-1]


ALL_FINE = [f"{method} fine" for method in toys_work.METHODS]


@pytest.mark.timeout(LIMIT_S)
@pytest.mark.parametrize("where", ["in_threads", "in_daemons"])
def test_threads_and_daemons(where: str) -> None:
    done = run(*script(where))
    assert told(done) == ALL_FINE
    assert "leaked" not in done.stderr


def unshared(*flags: str) -> list[str]:
    """The start of a command in namespaces of its own; skips where there are none to be had."""
    program = shutil.which("unshare")
    if program is None:
        pytest.skip("unshare is not installed")
    tried = run(program, *flags, "true")
    if tried.returncode:
        pytest.skip(f"no namespaces can be made here: {tried.stderr.strip()}")
    return [program, *flags]


@pytest.mark.timeout(LIMIT_S)
def test_as_the_first_process() -> None:
    done = run(*unshared("--pid", "--fork", "--mount-proc"), *script("as_first_process"))
    assert told(done) == ALL_FINE


@pytest.mark.timeout(LIMIT_S)
def test_on_a_read_only_root() -> None:
    before = unshared("--mount")
    shell = 'mount -o remount,ro,bind / && exec "$@"'
    if run(*before, "sh", "-c", shell, "sh", "true").returncode:
        pytest.skip("the root cannot be mounted anew here")
    done = run(*before, "sh", "-c", shell, "sh", *script("on_a_read_only_root"), PYTHONDONTWRITEBYTECODE="1")
    assert told(done) == ALL_FINE


@pytest.mark.probe("P-48")
@pytest.mark.timeout(LIMIT_S)
def test_with_little_shared_memory() -> None:
    before = unshared("--mount")
    shell = 'mount -t tmpfs -o size=64m tmpfs /dev/shm && exec "$@"'
    done = run(*before, "sh", "-c", shell, "sh", *script("with_little_shared_memory"))
    assert told(done) == ["fine"]


CELLS = [
    """
import numpy as np, gymnasium
from gymnasium import spaces
from rollout_worker.envs import ParallelEnv, EnvBase, Composite, Unbounded

class Mine(gymnasium.Env):
    observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float64)
    action_space = spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.n = 0.0
        return np.array([self.n]), {}
    def step(self, action):
        self.n += STRIDE
        return np.array([self.n]), 1.0, False, False, {}
""",
    "STRIDE = 0.5",
    """
for method in ("spawn", "fork", "forkserver"):
    for factory in (Mine, lambda: Mine()):
        with ParallelEnv(2, factory, mp_start_method=method, auto_wrap_envs=False, num_processes=2) as env:
            print(method, env.rollout(3)["next", "observation"].squeeze(-1).tolist())
""",
    """
import os, signal
env = ParallelEnv(2, Mine, num_processes=2)
env.reset()
os.kill(env.vector.pids[0], signal.SIGKILL)
try:
    env.reset()
except RuntimeError as error:
    print(error)
env.reset()  # and is left open
""",
]


@pytest.fixture
def runtime() -> Iterator[Path]:
    """A directory for sockets, whose paths must be short."""
    with tempfile.TemporaryDirectory(prefix="rollout-") as path:
        yield Path(path)


EXECUTE = """
import sys
import nbformat
from jupyter_client import AsyncKernelManager
from nbclient import NotebookClient

path, connection, limit_s = sys.argv[1:]
notebook = nbformat.read(path, as_version=4)
# Over sockets in the file system: free ports would be looked for, and taken by others before the kernel has them.
manager = AsyncKernelManager(transport="ipc", connection_file=connection)
NotebookClient(notebook, km=manager, timeout=int(limit_s), startup_timeout=int(limit_s)).execute()
nbformat.write(notebook, path)
"""
"""In a process of its own: the client leaves sockets to the collector, whose warnings would be some later test's."""


@pytest.mark.probe("P-57")
@pytest.mark.timeout(LIMIT_S)
def test_in_a_notebook(tmp_path: Path, runtime: Path) -> None:
    path = tmp_path / "it.ipynb"
    cells = [nbformat.v4.new_code_cell(text) for text in CELLS]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    done = run(sys.executable, "-c", EXECUTE, str(path), str(runtime / "kernel.json"), str(LIMIT_S))
    assert done.returncode == 0, done.stderr
    executed = nbformat.read(path, as_version=4).cells
    texts = ["".join(each.get("text", "") for each in cell.outputs) for cell in executed]
    meant = [f"{method} [[0.5, 1.0, 1.5], [0.5, 1.0, 1.5]]" for method in toys_work.METHODS for _ in range(2)]
    assert [line for line in texts[2].splitlines() if line] == meant
    assert "SIGKILL (9)" in texts[3]


TESTS = """
import pytest, toys_work

class Mine(__import__("toys").Count):
    pass

@pytest.mark.parametrize("method", toys_work.METHODS)
@pytest.mark.parametrize("factory", [Mine, lambda: Mine()], ids=["class", "lambda"])
def test_it(method, factory):
    toys_work.work(method, factory)
"""


@pytest.mark.timeout(LIMIT_S)
def test_under_xdist(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(TESTS)
    done = run(sys.executable, "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider", str(tmp_path))
    assert done.returncode == 0, done.stdout
    assert "6 passed" in done.stdout
