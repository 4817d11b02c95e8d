"""Scripts of beginners, scripts that end however they do, and threads: nothing hangs, nothing is left, one message says what
to write."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
import toys_work
from process_ends import as_from_a_terminal

from rollout_worker.envs import ParallelEnv

TOYS = str(Path(__file__).parents[2] / "toys")

# Scripts that import torch in every process take long where others compute.
pytestmark = pytest.mark.timeout(300)

HEAD = """
import os, sys, threading, time
with open("log", "a") as log:
    print(os.getpid(), file=log)
import toys
from rollout_worker.envs import ParallelEnv, open_envs
more = {{"mp_start_method": {method!r}, "num_processes": 2, "auto_wrap_envs": False}}
"""

GUARD = 'if __name__ == "__main__":'


@contextmanager
def started(tmp_path, body, method, how="file"):
    """A script's process, in a session of its own. Nothing is left of it after the block: neither processes nor pipes."""
    text = HEAD.format(method=method) + body
    script = tmp_path / "script.py"
    script.write_text(text)
    command = {
        "file": [sys.executable, str(script)],
        "stdin": [sys.executable, "-"],
        "text": [sys.executable, "-c", text],
        "exec": [sys.executable, "-c", f"exec(open({str(script)!r}).read())"],
        "module": [sys.executable, "-m", "script"],
    }[how]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE if how == "stdin" else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": TOYS},
        start_new_session=True,
        preexec_fn=as_from_a_terminal,
    ) as process:
        if process.stdin is not None:
            process.stdin.write(text)
            process.stdin.close()
            process.stdin = None
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def in_session(leader):
    """Processes of a session that are alive."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, _, _, session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(session) == leader and state != "Z":
                found.append(int(entry.name))
    return found


def run(tmp_path, body, method, how="file"):
    """A script to its end: exit code, output, errors."""
    with started(tmp_path, body, method, how) as process:
        out, err = process.communicate(timeout=240)
    return process, out, err


# -- no main guard -----------------------------------------------------------------------------------------------------

USE = "env.rand_step(env.reset())\nenv.close()\n"


@pytest.mark.probe("P-56")
@pytest.mark.parametrize(
    ("body", "how", "method"),
    [
        pytest.param(
            f"env = ParallelEnv(2, lambda: toys.Count(), **more)\n{USE}", "module", "forkserver", id="module"
        ),
        pytest.param(
            "def make(): return toys.Count()\n"
            "open_envs(make, num_envs=4, num_steps=1, num_processes=2, start_method=more['mp_start_method'])",
            "file",
            "spawn",
            id="open_envs",
        ),
        pytest.param(
            "class Mine(toys.Count): pass\nfor _ in range(3):\n    ParallelEnv(2, Mine, **more).set_seed(0)",
            "file",
            "forkserver",
            id="in a loop",
        ),
        pytest.param(
            "ParallelEnv(2, toys.Count, meta_data='workers', **more)",
            "file",
            "spawn",
            id="looked at by workers",
        ),
    ],
)
def test_scripts_without_a_guard_are_told_the_line(tmp_path, wait_until, body, how, method):
    process, _, err = run(tmp_path, body, method, how)
    assert process.returncode == 1
    assert GUARD in err
    assert err.count("Traceback") == 1, err
    assert err.count(GUARD) == 1
    assert len((tmp_path / "log").read_text().split()) <= 3, (
        "the script ran in more processes than it asked for"
    )
    wait_until(lambda: not in_session(process.pid))


@pytest.mark.probe("P-56")
@pytest.mark.parametrize(
    ("how", "method"),
    [("stdin", "spawn"), ("stdin", "forkserver"), ("text", "spawn"), ("exec", "forkserver")],
)
def test_scripts_that_are_no_file_need_no_guard(tmp_path, how, method):
    body = """
class Mine(toys.Count):
    pass
with ParallelEnv(2, Mine, **more) as env:
    print(env.rand_step(env.reset())["next", "observation"].tolist())
"""
    process, out, err = run(tmp_path, body, method, how)
    assert (process.returncode, out.strip()) == (0, "[[1], [1]]"), err


@pytest.mark.probe("P-56")
def test_entrypoints_need_no_guard(tmp_path):
    """Where nothing of the script is needed, children do not import it."""
    process, _, err = run(tmp_path, f"env = ParallelEnv(2, 'toys:Count', **more)\n{USE}", "spawn")
    assert (process.returncode, err) == (0, "")
    assert len((tmp_path / "log").read_text().split()) == 1


# -- the end -----------------------------------------------------------------------------------------------------------

MAIN = """
def main():
    env = ParallelEnv(2, toys.Count, **more)
    td = env.reset()
    print("ready", flush=True)
    {ending}
if __name__ == "__main__":
    main()
"""

STEPPING = "[env.step(env.rand_action(td)) for _ in range(10**7)]"


@pytest.mark.probe("P-58")
@pytest.mark.parametrize(
    ("ending", "method", "code", "last"),
    [
        pytest.param("sys.exit(3)", "spawn", 3, "", id="sys.exit"),
        pytest.param("\n    with env: sys.exit('bye')", "fork", 1, "bye", id="sys.exit inside a with"),
        pytest.param("os._exit(7)", "spawn", 7, "", id="os._exit"),
        pytest.param("env.send(env.rand_action(td))", "fork", 0, "", id="sent and not received"),
        pytest.param("env.vector.begin_step(0, 0, 1)", "spawn", 0, "", id="begun and not finished"),
        pytest.param(
            "env.send(env.rand_action(td)); raise KeyError('mine')", "spawn", 1, "KeyError: 'mine'", id="both"
        ),
        pytest.param("import atexit; atexit.register(lambda: env.reset())", "fork", 0, "", id="used at exit"),
        pytest.param("globals()['kept'] = [env]; env.loop = env", "forkserver", 0, "", id="in a cycle"),
        pytest.param(
            "env2 = ParallelEnv(2, toys.Rng, use_buffers=False, **more); env2.reset()", "spawn", 0, "", id="two"
        ),
        pytest.param(
            f"threading.Thread(target=lambda: {STEPPING}, daemon=True).start(); time.sleep(0.5)", "fork", 0, "",
            id="a thread that steps",
        ),
        pytest.param(
            "threading.Thread(target=lambda: (env.reset(), time.sleep(99)), daemon=True).start(); time.sleep(0.5)",
            "fork", 0, "", id="a thread that has stepped",
        ),
        pytest.param(
            "threading.Thread(target=lambda: [env.step(env.rand_action(td)) for _ in range(300)]).start()", "fork",
            0, "", id="a thread that is waited for",
        ),
    ],
)  # fmt: skip
def test_scripts_end_however_they_do(tmp_path, wait_until, ending, method, code, last):
    process, out, err = run(tmp_path, MAIN.format(ending=ending), method)
    assert (process.returncode, out) == (code, "ready\n"), err
    assert (err.rstrip().splitlines() or [""])[-1] == last, err
    assert "leaked" not in err
    wait_until(lambda: not in_session(process.pid))


@pytest.mark.probe("P-58")
def test_an_exception_at_module_level_is_the_last_word(tmp_path, wait_until):
    body = "if __name__ == '__main__':\n    env = ParallelEnv(2, toys.Count, **more)\n    env.reset()\n    1 / 0\n"
    process, _, err = run(tmp_path, body, "spawn")
    assert process.returncode == 1
    assert err.rstrip().splitlines()[-1] == "ZeroDivisionError: division by zero"
    assert err.count("Traceback") == 1
    wait_until(lambda: not in_session(process.pid))


# Both processes say that they are ready: in one write each, which print takes two for where output is not buffered.
SLOW = """
def slow():
    os.write(1, b"ready\\n")
    time.sleep(600)
def main():
    ParallelEnv(2, slow, meta_data='workers', **more)
if __name__ == "__main__":
    main()
"""


@pytest.mark.probe("P-58")
@pytest.mark.parametrize(
    ("body", "number", "method"),
    [
        pytest.param(MAIN.format(ending="time.sleep(600)"), signal.SIGTERM, "spawn", id="SIGTERM, idle"),
        pytest.param(MAIN.format(ending="time.sleep(600)"), signal.SIGINT, "forkserver", id="SIGINT, idle"),
        pytest.param(MAIN.format(ending=STEPPING), signal.SIGTERM, "forkserver", id="SIGTERM, stepping"),
        pytest.param(MAIN.format(ending=STEPPING), signal.SIGINT, "fork", id="SIGINT, stepping"),
        pytest.param(SLOW, signal.SIGINT, "spawn", id="SIGINT, starting"),
        pytest.param(SLOW, signal.SIGTERM, "forkserver", id="SIGTERM, starting"),
        pytest.param(SLOW, signal.SIGKILL, "spawn", id="SIGKILL, starting"),
    ],
)
def test_scripts_that_are_ended(tmp_path, wait_until, body, number, method):
    with started(tmp_path, body, method) as process:
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.1)
        process.send_signal(number)
        _, err = process.communicate(timeout=240)
        assert process.returncode == -number, err
        if number == signal.SIGINT:
            assert err.rstrip().splitlines()[-1] == "KeyboardInterrupt"
            assert err.count("Traceback") == 1, err
        else:
            assert err == ""
        wait_until(lambda: not in_session(process.pid))


# -- threads -----------------------------------------------------------------------------------------------------------


@pytest.mark.probe("P-11")
@pytest.mark.parametrize(
    ("number", "method", "num_processes"),
    [
        (1, "spawn", 2),
        (2, "spawn", 2),
        (5, "fork", 2),
        (1, "fork", 6),
        (3, "forkserver", 2),
        (1, "forkserver", 4),
    ],
)
def test_threads_are_as_many_as_asked_for(method, number, num_processes):
    """Also with more processes than processors; the caller's own process is as it was."""
    before, threads = dict(os.environ), torch.get_num_threads()
    more = {} if number == 1 else {"num_sub_threads": number}
    with ParallelEnv(
        num_processes, toys_work.Threads, num_processes=num_processes, mp_start_method=method, **more
    ) as env:
        assert env.count() == [[number] * 4] * num_processes
        assert torch.get_num_threads() == max(1, threads - num_processes)
    assert dict(os.environ) == before
    assert torch.get_num_threads() == threads


@pytest.mark.probe("P-11")
def test_a_replaced_process_has_as_many_threads():
    with ParallelEnv(
        2,
        toys_work.Threads,
        num_processes=2,
        mp_start_method="spawn",
        num_sub_threads=2,
        on_env_error="restart",
    ) as env:
        td = env.rand_action(env.reset())
        os.kill(env.vector.pids[1], signal.SIGKILL)
        env.step(td)
        assert env.count() == [[2] * 4] * 2


@pytest.mark.probe("P-11")
def test_an_environment_that_sets_threads_does_not_keep_them():
    with ParallelEnv(2, toys_work.Greedy, num_processes=2, mp_start_method="fork") as env:
        env.reset()
        assert env.count() == [[1] * 4] * 2


@pytest.mark.probe("P-11")
def test_as_many_processes_as_there_are_processors_for_this_one(tmp_path):
    body = """
if __name__ == "__main__":
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    del more["num_processes"]
    with ParallelEnv(4, toys.Count, **more) as env:
        env.reset()
        print(len(env.vector.pids))
    with ParallelEnv(4, toys.Count, num_processes=3, **more) as env:
        env.reset()
        print(len(env.vector.pids), [report["omp"] for report in env.report()])
"""
    process, out, err = run(tmp_path, body, "fork")
    assert (process.returncode, out.splitlines()) == (0, ["1", "3 ['1', '1', '1', '1']"]), err
