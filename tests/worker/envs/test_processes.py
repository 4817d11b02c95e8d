"""Start methods, threads, orphans and scripts: what children are like and when they end."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import toys
from process_ends import as_from_a_terminal, is_gone

from rollout_contract.errors import ConfigurationError
from rollout_worker.envs import ParallelEnv, open_envs
from rollout_worker.envs.crew.settings import shares
from rollout_worker.envs.launch import START_METHODS
from rollout_worker.envs.resources import cpu_count

TOYS = str(Path(__file__).parents[2] / "toys")

# Scripts that import torch in every process take long where others compute.
pytestmark = pytest.mark.timeout(300)


@pytest.mark.parametrize("start_method", START_METHODS)
@pytest.mark.parametrize(
    "factory",
    [
        pytest.param("toys:Rng", id="entrypoint"),
        pytest.param(toys.Rng, id="class"),
        pytest.param(lambda: toys.Rng(), id="lambda"),
    ],
)
def test_every_start_method_gives_the_same(start_method, factory):
    with open_envs(factory, num_envs=3, num_steps=12, num_processes=0) as serial:
        serial.reset([1, 2, 3])
        serial.begin(0)
        serial.step_range(0, 0, 12)
        expected = serial.blocks[0].arrays["next", "observation"].copy()
    with open_envs(factory, num_envs=3, num_steps=12, num_processes=2, start_method=start_method) as envs:
        envs.reset([1, 2, 3])
        envs.begin(0)
        envs.step_range(0, 0, 12)
        np.testing.assert_array_equal(envs.blocks[0].arrays["next", "observation"], expected)
        reports = envs.call("report")
    assert len({report["pid"] for report in reports}) == 2
    assert os.getpid() not in {report["pid"] for report in reports}
    assert all(report["sigint"] for report in reports)


@pytest.mark.probe("P-11")
@pytest.mark.parametrize("num_threads", [None, 3])
def test_children_load_no_torch_and_few_threads(num_threads):
    more = {} if num_threads is None else {"num_sub_threads": num_threads}
    env = ParallelEnv(2, "toys:Count", num_processes=2, mp_start_method="spawn", **more)
    try:
        for report in env.report():
            assert report["omp"] == str(num_threads or 1)
            assert not report["has_torch"]
    finally:
        env.close(raise_if_closed=False)


@pytest.mark.probe("P-11")
def test_children_of_torch_environments_use_one_thread():
    env = ParallelEnv(2, "toys_td:CountEnv", num_processes=1)
    try:
        assert env.threads() == [1, 1]
    finally:
        env.close(raise_if_closed=False)


def test_children_can_be_started_from_a_thread_that_ends():
    opened = []
    thread = threading.Thread(
        target=lambda: opened.append(open_envs("toys:Count", num_envs=2, num_steps=2, num_processes=2))
    )
    thread.start()
    thread.join()
    with opened[0] as envs:
        envs.reset()
        envs.step(0, 0)
        assert envs.blocks[0].arrays["next", "observation"][:, 0, 0].tolist() == [1, 1]


def run_script(tmp_path: Path, text: str, **more) -> subprocess.CompletedProcess[str]:
    script = tmp_path / "script.py"
    script.write_text(text)
    environment = {**os.environ, "PYTHONPATH": TOYS}
    return subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=240,
        env=environment,
        check=False,
        preexec_fn=as_from_a_terminal,
        **more,
    )


OPEN = """
import os, sys, signal, time
from rollout_worker.envs import open_envs
def make():
    import toys
    return toys.Count(5)
def main():
    envs = open_envs(make, num_envs=3, num_steps=4, num_processes=2, start_method={method!r})
    envs.reset()
    print(*envs.pids, flush=True)
    {ending}
if __name__ == "__main__":
    main()
"""


@pytest.mark.probe("P-58")
@pytest.mark.parametrize("method", START_METHODS)
@pytest.mark.parametrize(
    ("ending", "code", "last"),
    [
        pytest.param("pass", 0, "", id="falls off"),
        pytest.param("raise KeyError('mine')", 1, "KeyError: 'mine'", id="raises"),
    ],
)
def test_a_script_that_forgets_to_close_ends(tmp_path, wait_until, method, ending, code, last):
    done = run_script(tmp_path, OPEN.format(method=method, ending=ending))
    assert done.returncode == code, done.stderr
    assert (done.stderr.rstrip().splitlines() or [""])[-1] == last
    assert "leaked" not in done.stderr
    wait_until(lambda: all(is_gone(int(pid)) for pid in done.stdout.split()))


@pytest.mark.probe("P-47")
@pytest.mark.row("E-155")
@pytest.mark.parametrize("method", START_METHODS)
@pytest.mark.parametrize("is_busy", [False, True], ids=["idle", "busy"])
def test_children_end_with_their_parent(tmp_path, wait_until, method, is_busy):
    toy = "toys.Busy" if is_busy else "toys.Count"
    text = OPEN.replace("toys.Count(5)", f"{toy}()").format(
        method=method,
        ending="envs.begin_step(0, 0, 1); time.sleep(0.3); os.kill(os.getpid(), signal.SIGKILL)",
    )
    done = run_script(tmp_path, text)
    assert done.returncode == -signal.SIGKILL, done.stderr
    pids = [int(pid) for pid in done.stdout.split()]
    assert len(pids) == 2
    wait_until(lambda: all(is_gone(pid) for pid in pids), 20.0)  # the promise is 5 s


def test_ctrl_c_reaches_the_parent_alone(tmp_path, wait_until):
    text = OPEN.format(
        method="spawn",
        ending="""
    try:
        os.killpg(0, signal.SIGINT)
        time.sleep(600)
    except KeyboardInterrupt:
        envs.step(0, 0)
        envs.close()
        print("closed")""",
    )
    done = run_script(tmp_path, text, start_new_session=True)
    assert (done.returncode, done.stdout.split()[-1]) == (0, "closed"), done.stderr
    assert done.stderr == ""


@pytest.mark.probe("P-56")
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_script_without_a_main_guard_is_told_the_line(tmp_path, method):
    text = f"""
from rollout_worker.envs import ParallelEnv
import toys
env = ParallelEnv(2, lambda: toys.Count(), mp_start_method={method!r}, num_processes=2)
env.rand_step(env.reset())
env.close()
"""
    done = run_script(tmp_path, text)
    assert done.returncode == 1
    assert 'if __name__ == "__main__":' in done.stderr
    assert done.stderr.count("Traceback") == 1, done.stderr


@pytest.mark.probe("P-48")
def test_too_little_shared_memory_is_an_error_with_both_numbers(leftovers):
    before = leftovers()
    with pytest.raises(ConfigurationError, match=r"needs \d{13,} bytes, but \d+ are available"):
        open_envs("toys:Nested", num_envs=4, num_steps=10**11, num_processes=2)
    assert leftovers(before) == {}


def test_the_arena_has_no_name_and_no_descriptor(leftovers):
    with open_envs("toys:Count", num_envs=4, num_steps=10, num_processes=2) as envs:
        counted = leftovers()
        assert counted["shm"] == 0
        for pid in envs.pids:
            assert not [link for link in links_of(pid) if "rollout-arena" in link]


def links_of(pid: int) -> list[str]:
    """What a process has open; it may close some of it meanwhile."""
    found = []
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/{pid}/fd/{fd}"))
    return found


def test_a_batch_that_is_kept_outlives_its_environments(leftovers):
    before = leftovers()
    with open_envs("toys:Count", num_envs=2, num_steps=3, num_processes=2, kwargs={"k": 9}) as envs:
        envs.reset()
        envs.begin(0)
        envs.step_range(0, 0, 3)
        kept = envs.blocks[0].tensors["next", "observation"]
    assert "descriptors" not in leftovers(before)
    assert kept[..., 0].tolist() == [[1, 2, 3], [1, 2, 3]]
    del kept, envs
    assert leftovers(before) == {}


@pytest.mark.parametrize(
    ("num_envs", "num_processes", "expected"),
    [
        pytest.param(4, 2, [(0, 2), (2, 4)], id="even"),
        pytest.param(5, 3, [(0, 2), (2, 4), (4, 5)], id="uneven"),
        pytest.param(2, 2, [(0, 1), (1, 2)], id="one each"),
        pytest.param(3, 1, [(0, 3)], id="all in one"),
    ],
)
def test_shares(num_envs, num_processes, expected):
    assert [(share.start, share.stop) for share in shares(num_envs, num_processes)] == expected


def test_the_default_number_of_processes_follows_the_processors():
    with open_envs("toys:Count", num_envs=64, num_steps=1, start_method="fork") as envs:
        assert len(envs.pids) == min(64, cpu_count())


@pytest.mark.parametrize(
    ("more", "error", "says"),
    [
        pytest.param({"num_envs": 0}, ValueError, "num_envs is 0", id="no environment"),
        pytest.param({"num_steps": 0}, ValueError, "num_steps is 0", id="no step"),
        pytest.param(
            {"num_processes": 3}, ValueError, "num_processes is 3; allowed is 1 to 2", id="too many processes"
        ),
        pytest.param({"start_method": "magic"}, ValueError, "'magic'; allowed are spawn", id="start method"),
        pytest.param({"kwargs": [{}]}, RuntimeError, "1 mappings for 2", id="too few keywords"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(more, error, says):
    with pytest.raises(error, match=says):
        open_envs("toys:Count", **{"num_envs": 2, "num_steps": 2, **more})
    assert multiprocessing.active_children() == []
