"""Some environments at a time: one that is slow does not hold the others."""

from __future__ import annotations

import functools
import os
import signal
import time
from itertools import pairwise

import pytest
import torch
import toys
import toys_td
from toys_td import CountEnv

from rollout_contract.errors import ChildLost, EnvError, StepTimeout
from rollout_worker.envs import ParallelEnv


def test_sent_environments_are_received_once_each(make, acting, column):
    env = make(4, CountEnv)
    td = acting(env.reset(), 1, 2, 3, 0.5)
    env.send(td[[3, 1]], [3, 1])
    with pytest.raises(RuntimeError, match=r"\[1\] are being stepped already"):
        env.send(td[[1]], [1])
    with pytest.raises(RuntimeError, match=r"\[1, 3\] are being stepped: receive them first"):
        env.reset()
    seen = {}
    while len(seen) < 2:
        ready = env.recv(1)
        for position, index in enumerate(ready.indices):
            seen[index] = (
                ready.stepped["next", "observation"][position].item(),
                ready.root["observation"][position].item(),
                ready.stepped["action"][position].item(),
            )
    assert seen == {3: (0.5, 0.5, 0.5), 1: (2.0, 2.0, 2.0)}
    with pytest.raises(RuntimeError, match="send some first"):
        env.recv()
    assert list(env.n_step) == [0, 1, 0, 1]
    env.send(td[[2]], [2])
    ready = env.recv()
    assert ready.indices == [2]
    assert column(ready.stepped, ("next", "done")) == [True]
    assert (column(ready.root), column(ready.root, "done")) == ([0.0], [False])
    assert column(env.step(acting(env.reset(), 1)), ("next", "observation")) == [1.0] * 4


@pytest.mark.parametrize("factory", [toys.Count, toys_td.Words, functools.partial(CountEnv, batch_size=(2,))])
def test_all_at_once_is_the_same_as_a_step(make, factory):
    one, other = make(3, factory), make(3, factory)
    torch.manual_seed(0)
    td, root = one.rand_action(one.reset()), None
    stepped, root = one.step_and_maybe_reset(td.clone())
    other.reset()
    other.send(td.clone())
    ready = other.recv(3)
    order = sorted(range(3), key=ready.indices.__getitem__)
    for expected, found in ((stepped, ready.stepped[order]), (root, ready.root[order])):
        assert set(expected.keys(True, True)) == set(found.keys(True, True))
        assert (expected == found).all()


@pytest.mark.parametrize("more", [{}, {"use_buffers": False}])
def test_a_slow_environment_does_not_hold_the_others(more):
    factories = [functools.partial(toys.Gate, name) for name in ("shut", "open", "open")]
    with ParallelEnv(3, factories, num_processes=3, mp_start_method="fork", **more) as env:
        td = env.rand_action(env.reset())
        env.send(td)
        for _ in range(5):
            done = []
            while len(done) < 2:
                ready = env.recv(1)
                done += ready.indices
                assert 0 not in ready.indices
            env.send(td[[1, 2]], [1, 2])
        done = []
        while len(done) < 2:
            done += env.recv(1).indices
        assert sorted(done) == [1, 2]
        assert env.recv(1, timeout_s=0.05).indices == []
        toys.Gate.open_all(env.vector.pids[0])
        assert env.recv(1).indices == [0]


def receive_all(env, number):
    while number:
        number -= len(env.recv(1).indices)


def test_a_failure_of_a_sent_environment(make):
    env = make(3, functools.partial(toys_td.Crooked, where=1))
    td = env.rand_action(env.reset())
    env.send(td)
    with pytest.raises(EnvError, match="boom") as caught:
        receive_all(env, 3)
    assert caught.value.env_index == 1
    assert env.is_closed
    assert env.reset()["observation"].tolist() == [[0]] * 3


@pytest.mark.parametrize(
    ("how", "kind", "step_timeout_s"), [(signal.SIGKILL, ChildLost, 60.0), (signal.SIGSTOP, StepTimeout, 2.0)]
)
@pytest.mark.parametrize("more", [{}, {"use_buffers": False}])
def test_a_lost_process_is_noticed_while_the_others_go_on(how, kind, step_timeout_s, more):
    more = {"num_processes": 2, "mp_start_method": "fork", "step_timeout_s": step_timeout_s, **more}
    with ParallelEnv(2, CountEnv, create_env_kwargs={"k": 1e9}, **more) as env:
        td = env.rand_action(env.reset())
        os.kill(env.vector.pids[1], how)
        env.send(td)
        with pytest.raises(kind) as caught:
            go_on_with_the_first(env)
        assert caught.value.env_index == 1


def go_on_with_the_first(env):
    end = time.monotonic() + 60
    while time.monotonic() < end:
        ready = env.recv(1)
        env.send(ready.root, ready.indices)


def test_rows_that_do_not_fit(make):
    env = make(3, CountEnv)
    td = env.rand_action(env.reset())
    with pytest.raises(RuntimeError, match=r"batch size \[3\] for 2 environments"):
        env.send(td, [0, 1])
    with pytest.raises(IndexError, match="no environment 3"):
        env.send(td[:1], [3])
    with pytest.raises(KeyError, match="'action'"):
        env.send(td[:1].exclude("action"), [0])
    env.send(td[:1], [0])
    assert env.recv().indices == [0]


def test_effort_tells_who_is_slow_and_how_long_was_waited():
    factories = [functools.partial(toys.Sleep, t=0.0), functools.partial(toys.Sleep, t=0.02)]
    with ParallelEnv(2, factories, num_processes=2, mp_start_method="fork") as env:
        td = env.rand_action(env.reset())
        efforts = [env.effort]
        for _ in range(5):
            env.step(td)
            efforts.append(env.effort)
    steps = list(pairwise(efforts))
    quick, slow = ([late.busy_s[at] - early.busy_s[at] for early, late in steps] for at in (0, 1))
    assert min(slow) >= 0.02
    # Where others compute, any one step may last, or be over before this process looks for it.
    assert min(quick) < 0.02
    assert max(late.waited_s - early.waited_s for early, late in steps) >= 0.015
    commands = [[late.commands[at] - early.commands[at] for early, late in steps] for at in (0, 1)]
    assert commands == [[1] * 5] * 2


def test_effort_without_processes(make):
    env = make(1, CountEnv)
    env.reset()
    assert len(env.effort.busy_s) == (0 if make.is_serial else 1)


def test_effort_of_what_does_not_run_is_nothing_and_starts_nothing(make):
    env = make(3, CountEnv)
    assert (env.effort.busy_s, env.effort.restarts, env.restarts) == ((), (0, 0, 0), [0, 0, 0])
    assert env.is_closed
    env.reset()
    env.close()
    assert env.effort.memory_bytes == 0
    assert env.is_closed


def test_effort_tells_bytes_and_memory_and_restarts(make):
    """Messages where rows go through pipes, none where they lie in memory; each failure once."""
    env = make(2, functools.partial(toys_td.Crooked, where=3), on_env_error="restart")
    td = env.rand_action(env.reset())
    before = env.effort
    for _ in range(4):
        env.step(td.exclude("next"))
    after = env.effort
    assert list(after.restarts) == env.restarts == [0, 1]
    assert len(after.sent_bytes) == len(after.received_bytes) == len(after.busy_s)
    sent = sum(after.sent_bytes) - sum(before.sent_bytes)
    received = sum(after.received_bytes) - sum(before.received_bytes)
    if make.mode == "direct":
        assert min(sent, received) > 1000
        assert after.memory_bytes == 0
    else:
        assert (sent, received) == (0, 0)
        assert (after.memory_bytes > 0) is not make.is_serial


def test_bytes_of_a_process_are_counted_over_those_before_it():
    with ParallelEnv(
        1, CountEnv, num_processes=1, mp_start_method="fork", use_buffers=False, on_env_error="restart"
    ) as env:
        td = env.rand_action(env.reset())
        before = env.effort
        os.kill(env.vector.pids[0], signal.SIGKILL)
        env.step(td)
        assert env.effort.received_bytes[0] > before.received_bytes[0] > 0
        assert env.effort.sent_bytes[0] > before.sent_bytes[0] > 0
        assert env.restarts == [1]
