"""Children killed at random moments, under every call: always the right error, never a wait, nothing left."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import threading
import time
from contextlib import suppress

import pytest
import toys
import toys_td

from rollout_contract.errors import ChildLost
from rollout_worker.envs import ParallelEnv

ROUNDS = 100 if os.environ.get("SOAK") else 10

NUM_ENVS = 4

QUICK_S = 30.0
"""More than this takes on a busy machine, and less than `step_timeout_s`; the promise is a second."""

NUM_MODES = 2
"""Every call is tried in so many modes at least; the rounds are shared among them."""


def batch(**more):
    return ParallelEnv(
        NUM_ENVS, more.pop("factory", toys.Count), num_processes=2, mp_start_method="fork", **more
    )


def steps(env):
    td = env.rand_action(env.reset())
    for _ in range(10_000):
        _, td = env.step_and_maybe_reset(td)
        td = env.rand_action(td)


def resets(env):
    for _ in range(10_000):
        env.reset()


def rollouts(env):
    for _ in range(10_000):
        env.rollout(50, break_when_any_done=False)


def calls(env):
    for _ in range(10_000):
        env.hello(1)


def asynchronous(env):
    td = env.rand_action(env.reset())
    env.send(td)
    for _ in range(10_000):
        ready = env.recv(1)
        env.send(ready.root, ready.indices)


@pytest.mark.row("E-151")
@pytest.mark.row("E-153")
@pytest.mark.probe("P-08")
@pytest.mark.probe("P-10")
@pytest.mark.parametrize(
    "work", [steps, resets, rollouts, calls, asynchronous], ids=lambda work: work.__name__
)
@pytest.mark.parametrize(
    "more", [{}, {"use_buffers": False}, {"factory": toys_td.Recurrent}], ids=["block", "direct", "rows"]
)
def test_a_child_is_killed_under_a_call(work, more, leftovers):
    if "factory" in more and work is not resets and work is not calls:
        pytest.skip("its steps need a state")
    chosen = random.Random(f"{work.__name__}{more}")
    before = leftovers()
    for _ in range(-(-ROUNDS // NUM_MODES)):
        one_round(work, more, chosen)
    assert leftovers(before) == {}


def one_round(work, more, chosen):
    env = batch(**more)
    env.reset()
    victim = chosen.choice(env.vector.pids)
    timer = threading.Timer(chosen.uniform(0.0, 0.03), os.kill, (victim, signal.SIGKILL))
    timer.start()
    begin = time.monotonic()
    with pytest.raises(ChildLost) as caught:
        work(env)
    timer.join()
    assert time.monotonic() - begin < QUICK_S
    assert caught.value.pid == victim
    assert "SIGKILL (9)" in str(caught.value)
    assert env.is_closed
    assert multiprocessing.active_children() == []
    env.close()


@pytest.mark.row("E-146")
@pytest.mark.parametrize("more", [{}, {"use_buffers": False}], ids=["block", "direct"])
def test_a_child_is_killed_while_its_batch_is_closed(more, leftovers):
    chosen = random.Random(str(more))
    before = leftovers()
    for _ in range(ROUNDS):
        env = batch(**more)
        env.reset()
        victim = os.pidfd_open(chosen.choice(env.vector.pids))
        timer = threading.Timer(chosen.uniform(0.0, 0.004), kill_if_there, (victim,))
        timer.start()
        env.close()
        timer.join()
        os.close(victim)
        assert env.is_closed
        assert multiprocessing.active_children() == []
    assert leftovers(before) == {}


def kill_if_there(pidfd):
    """Kill a process, unless it has ended and was waited for: by then its number may be another's."""
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
