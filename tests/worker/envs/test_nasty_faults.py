"""Environments that fail, end or misbehave in ways that real ones do: each is told by name, soon, and leaves nothing."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import time
from pathlib import Path

import pytest
import toys
import toys_nasty

from rollout_contract.errors import ChildLost, EnvError, StepTimeout
from rollout_worker.envs import ParallelEnv, SerialEnv
from rollout_worker.envs.faults import MAX_DETAILS, MAX_SUMMARY

PLACES = ["constructor", "reset", 2, "close"]

MODES = [pytest.param({}, id="block"), pytest.param({"use_buffers": False}, id="direct")]


def everywhere(names, fully):
    """Every deed in a step, and some of them at every place: what a place does with one it does with all."""
    return [
        pytest.param(name, place, id=f"{name} in {place}")
        for name in names
        for place in (PLACES if name in fully else [2])
    ]


QUICK_S = 30.0
"""More than any of these may take on a busy machine, and less than `step_timeout_s`; the promise is a second."""

OF_THE_CALLER = {"keyboard", "cancelled", "generator", "base"}
"""Raised in the caller's own process, these are not the environment's alone: they go through as they are."""

READABLE = 2 * (MAX_SUMMARY + MAX_DETAILS)


def forked(num_workers, factory, **more):
    return ParallelEnv(num_workers, factory, **{"num_processes": 2, "mp_start_method": "fork", **more})


def use(env):
    """Start, reset, step and close."""
    td = env.rand_action(env.reset())
    for _ in range(3):
        _, td = env.step_and_maybe_reset(td)
        td = env.rand_action(td)
    env.close()


def nasty(deed, where):
    return functools.partial(toys_nasty.Nasty, deed, where, 1)


@pytest.mark.probe("P-09")
@pytest.mark.parametrize(
    ("deed", "where"), everywhere(toys_nasty.RAISES, ["mute", "keyboard", "unpicklable", "sys.exit 0"])
)
@pytest.mark.parametrize("kind", ["serial", "block", "direct"])
def test_whatever_is_raised_arrives(kind, deed, where):
    if kind == "serial" and deed in OF_THE_CALLER | {"hogs memory"}:
        kind = "block"  # in the caller's own process this is not the environment's alone; tested below
    begins = toys_nasty.RAISES[deed][1]
    begin = time.monotonic()
    more = {"use_buffers": False} if kind == "direct" else {}
    env = SerialEnv(3, nasty(deed, where)) if kind == "serial" else forked(3, nasty(deed, where), **more)
    with pytest.raises(EnvError) as caught:
        use(env)
    assert time.monotonic() - begin < QUICK_S
    error, call = caught.value, "step" if where == 2 else where
    assert (error.env_index, error.call) == (1, call)
    first, _, details = str(error).partition("\n")
    assert first.startswith(f"environment 1 (pid {error.pid}) during {call}: {begins}")
    assert "toys_nasty.py" in details
    assert len(str(error)) < READABLE
    assert env.is_closed
    env.close(raise_if_closed=False)


@pytest.mark.probe("P-09")
@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("deed", sorted(OF_THE_CALLER))
def test_an_interrupt_in_the_callers_process_stays_one(deed, where):
    env = SerialEnv(3, nasty(deed, where))
    with pytest.raises(BaseException, match="deed-") as caught:
        use(env)
    assert not isinstance(caught.value, Exception)
    assert env.is_closed
    env.close(raise_if_closed=False)


@pytest.mark.probe("P-09")
@pytest.mark.parametrize("deeds", [("mute", "unpicklable"), ("keyboard", "local"), ("exit 0", "empty")])
@pytest.mark.parametrize("more", MODES)
@pytest.mark.usefixtures("all_report")
def test_several_at_once_are_all_named(deeds, more):
    factories = [
        toys.Count,
        functools.partial(toys_nasty.Nasty, deeds[0], 2),
        toys.Count,
        functools.partial(toys_nasty.Nasty, deeds[1], 2),
    ]
    env = forked(4, factories, num_processes=4, **more)
    with pytest.raises((EnvError, ChildLost)) as caught:
        use(env)
    for index, deed in zip((1, 3), deeds, strict=True):
        begins = {**toys_nasty.RAISES, **toys_nasty.ENDS}[deed][1]
        assert any(
            f"environment {index} (pid" in line and begins in line for line in str(caught.value).splitlines()
        ), str(caught.value)


def lost(env, action):
    """The error of a process that is lost under an action; the batch is closed."""
    begin = time.monotonic()
    try:
        action(env)
    except ChildLost as error:
        assert time.monotonic() - begin < QUICK_S
        assert env.is_closed
        env.close(raise_if_closed=False)
        return error.with_traceback(None)
    raise AssertionError("no process was lost")


@pytest.mark.row("E-151")
@pytest.mark.probe("P-08")
@pytest.mark.parametrize("more", MODES)
@pytest.mark.parametrize(("deed", "where"), everywhere(toys_nasty.ENDS, ["exit 0", "SIGSEGV"]))
def test_however_a_process_ends_it_is_named(leftovers, deed, where, more):
    before = leftovers()
    if where == "close":
        use(forked(4, nasty(deed, where), **more))
    else:
        error = lost(forked(4, nasty(deed, where), **more), use)
        assert (error.env_index, error.call) == (1, "step" if where == 2 else where)
        assert f"environment 1 (pid {error.pid}) during {error.call}: " in str(error)
        assert toys_nasty.ENDS[deed][1] in str(error)
    assert leftovers(before) == {}


@pytest.mark.probe("P-10")
@pytest.mark.parametrize(
    ("habit", "where"), everywhere(toys_nasty.HABITS, ["closes stdout", "ignores signals", "leaves a thread"])
)
@pytest.mark.parametrize("more", MODES)
def test_habits_of_an_environment_do_not_matter(leftovers, habit, where, more):
    before = leftovers()
    begin = time.monotonic()
    use(forked(3, nasty(habit, where), **more))
    assert time.monotonic() - begin < QUICK_S
    assert leftovers(before) == {}


@pytest.mark.probe("P-10")
@pytest.mark.parametrize("ending", ["closed", "killed", "raised"])
@pytest.mark.parametrize("how", ["fork", "subprocess"])
def test_processes_of_an_environment_hold_nobody(tmp_path, leftovers, how, ending):
    before = leftovers()
    told = tmp_path / "pids"
    env = forked(2, functools.partial(toys_nasty.Parenting, how, str(told), ending == "raised"))
    td = env.rand_action(env.reset())
    if ending == "killed":
        os.kill(env.vector.pids[1], signal.SIGKILL)
        lost(env, lambda env: env.step(td))
    elif ending == "raised":
        with pytest.raises(EnvError, match="boom"):
            env.step(td)
    begin = time.monotonic()
    env.close(raise_if_closed=False)
    assert time.monotonic() - begin < QUICK_S
    del env
    for pid in told.read_text().split():
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(int(pid), signal.SIGKILL)
            os.waitpid(int(pid), 0)  # one was made here, to look at
    assert leftovers(before) == {}


def silent(env):
    """The error of a process that says nothing any more."""
    begin = time.monotonic()
    try:
        use(env)
    except StepTimeout as error:
        assert time.monotonic() - begin < QUICK_S
        env.close(raise_if_closed=False)
        return error.with_traceback(None)
    raise AssertionError("nobody was silent")


@pytest.mark.row("E-148")
@pytest.mark.probe("P-08")
@pytest.mark.parametrize("where", ["reset", 2, "close"])
@pytest.mark.parametrize("more", MODES)
def test_a_process_that_is_stopped_is_ended(monkeypatch, leftovers, where, more):
    monkeypatch.setenv("BATCHED_PIPE_TIMEOUT", "2.0")
    before = leftovers()
    error = silent(forked(2, nasty("stops", where), **more))
    assert (error.env_index, error.call) == (1, "step" if where == 2 else where)
    assert leftovers(before) == {}


CGROUP = Path("/sys/fs/cgroup/memory")


@pytest.fixture
def small_group():
    """A control group whose members may use 64 MiB."""
    group = CGROUP / f"rollout-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(64 * 2**20))
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    yield group
    for _ in range(100):
        try:
            group.rmdir()
            return
        except OSError:
            time.sleep(0.05)


@pytest.mark.probe("P-08")
@pytest.mark.parametrize("more", MODES)
def test_the_kernels_own_kill_for_want_of_memory(small_group, leftovers, more):
    before = leftovers()
    env = forked(2, toys_nasty.Hungry, **more)
    env.reset()
    victim = env.vector.pids[1]
    (small_group / "cgroup.procs").write_text(str(victim))
    error = lost(env, lambda env: env.rollout(200, break_when_any_done=False))
    assert (error.env_index, error.pid) == (1, victim)
    assert "SIGKILL (9) (out of memory is a common cause)" in str(error)
    del env
    assert leftovers(before) == {}


@pytest.mark.parametrize("factory", [toys_nasty.Falsy, toys_nasty.Answering])
def test_environments_that_answer_strangely_are_environments(make, factory):
    with make(2, factory) as env:
        stepped = env.rand_step(env.reset())
        assert stepped["next", "observation"].tolist() == [[1], [1]]
