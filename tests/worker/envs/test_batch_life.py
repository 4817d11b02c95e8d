"""Rows of the behaviour table on state, attributes, devices, threads, life and failures of batches."""

from __future__ import annotations

import copy
import functools
import gc
import multiprocessing
import os
import pickle
import signal
import threading

import pytest
import torch
import toys
import toys_td
from toys_td import CountEnv

from rollout_contract.errors import ChildLost, EnvError, StepTimeout
from rollout_worker.envs import GymEnv, ParallelEnv, SerialEnv
from rollout_worker.envs.batch_settings import PIPE_TIMEOUT

LOCKS = (type(threading.Lock()), type(threading.RLock()))

FORKED = {"mp_start_method": "fork"}


# -- state and attributes --------------------------------------------------------------------------------------------


@pytest.mark.row("E-116")
def test_locks_in_a_state(make):
    state = make(2, toys_td.Locked).state_dict()["worker1"]
    found = [state["deep"][0]["lock"], state["deep"][0]["more"][0]]
    if make.is_serial:
        assert all(isinstance(lock, LOCKS) for lock in found)
    else:
        assert found == [None, None]
    assert state["deep"][0]["more"][1] == 3


@pytest.mark.row("E-117")
def test_a_state_that_cannot_be_loaded_names_its_environment(make):
    env = make(3, functools.partial(toys_td.Crooked, where="load"))
    with pytest.raises(ValueError, match="boom") as caught:
        env.load_state_dict({"buf": torch.tensor(1.0)})
    assert "environment 1" in caught.value.__notes__[0]
    assert env.reset()["observation"].tolist() == [[0]] * 3


@pytest.mark.row("E-117")
def test_a_state_that_takes_too_long_to_load():
    env = ParallelEnv(2, functools.partial(toys_td.Crooked, "sleep", "load"), step_timeout_s=2.0, **FORKED)
    env.reset()
    with pytest.raises(StepTimeout, match="2 s") as caught:
        env.load_state_dict({"buf": torch.tensor(1.0)})
    assert caught.value.call == "load_state_dict"
    env.close()


@pytest.mark.row("E-120")
def test_the_batch_itself_as_an_argument(make):
    env = make(2, CountEnv)
    if make.is_serial:
        assert env.hello(env, 3) == [("x", env, 3)] * 2
    else:
        assert env.hello(env, 3) == [("x", 3, None)] * 2


@pytest.mark.row("E-123")
def test_names_that_are_never_asked_for(make):
    env = make(2, CountEnv)
    for name in ("__len__", "parent_channels", "_private"):
        with pytest.raises(AttributeError):
            getattr(env, name)
    assert env.is_closed


@pytest.mark.row("E-127")
def test_tensors_go_by_value(make):
    env = make(2, CountEnv)
    given = torch.ones(2)
    found = env.twice(given)
    assert [each.tolist() for each in found] == [[2.0, 2.0]] * 2
    found[0].fill_(9)
    assert given.tolist() == [1.0, 1.0]
    assert env.twice(given)[0].tolist() == [2.0, 2.0]


@pytest.mark.row("E-128")
def test_methods_with_short_names_and_to(make):
    env = make(2, CountEnv)
    assert env.t() == ["given", "given"]
    assert env.call("to", "cpu") == [None, None]


def test_a_result_that_cannot_be_sent_is_an_error_of_its_own(make):
    env = make(2, CountEnv)
    if not make.is_serial:
        with pytest.raises(TypeError, match="environment 0 gave a generator, which cannot be sent"):
            env.unsendable()
    assert env.reset()["observation"].tolist() == [[0], [0]]
    with pytest.raises(IndexError, match="no environment 2; indices go from 0 to 1"):
        env.get_attr("tag", indices=[2])


# -- devices ---------------------------------------------------------------------------------------------------------


@pytest.mark.row("E-129")
def test_without_a_device_results_have_none(make):
    env = make(2, CountEnv)
    assert env.device is None
    td = env.rand_step(env.reset())
    assert td.device is None
    assert td["next"].device is None


@pytest.mark.row("E-130")
@pytest.mark.row("E-131")
@pytest.mark.row("E-133")
def test_results_follow_the_device(make, acting, column):
    env = make(2, functools.partial(CountEnv, device="cpu"), device="meta")
    assert env.observation_spec["observation"].device == torch.device("meta")
    assert env.reset()["observation"].device == torch.device("meta")
    env.close()
    env = make(2, CountEnv)
    td = env.step(acting(env.reset(), 1))
    assert env.to("cpu") is env
    assert env.non_blocking
    assert env.to(torch.device("cpu")) is env
    assert env.device == torch.device("cpu")
    assert env.observation_spec.device == torch.device("cpu")
    stepped = env.step(acting(env.reset(), 1))
    assert stepped["next"].device == torch.device("cpu")
    assert column(stepped, ("next", "observation")) == [1.0, 1.0]
    del td


@pytest.mark.row("E-132")
@pytest.mark.parametrize(("static", "seeds"), [(False, [3, 2346560485]), (True, [3, 3])])
def test_a_seeded_batch_that_is_moved(make, static, seeds):
    env = make(2, CountEnv)
    env.set_seed(3, static_seed=static)
    if make.is_serial:
        env.to("cpu")
    else:
        env.call("_set_seed", None)
        with pytest.warns(UserWarning, match="seeded again"):
            env.to("cpu")
    assert list(env.seed_seen) == seeds


@pytest.mark.row("E-134")
def test_writes_are_over_before_anybody_is_told(make, acting):
    env = make(2, CountEnv)
    td = env.reset()
    for number in range(20):
        td = acting(td, float(number))
        stepped = env.step(td)
        td["action"].fill_(-1)
        assert stepped["next", "reward"].tolist() == [[number], [number]]
        td = stepped["next"].exclude("reward")


@pytest.mark.row("E-135")
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is an accelerator")
def test_a_device_that_is_not_there(make):
    with pytest.raises(RuntimeError, match=r"cuda|CUDA"):
        make(2, CountEnv, device="cuda").reset()


# -- memory and threads ----------------------------------------------------------------------------------------------


@pytest.mark.row("E-136")
@pytest.mark.row("E-137")
@pytest.mark.parametrize("more", [{}, {"memmap": True, "shared_memory": False}, {"shared_memory": False}])
def test_the_block_is_shared_however_it_is_made(more, acting, column):
    with ParallelEnv(2, CountEnv, num_processes=2, **FORKED, **more) as env:
        td = env.step(acting(env.reset(), 1))
        assert column(td, ("next", "observation")) == [1.0, 1.0]
        parent = env.shared_tensordict_parent
        assert parent["next", "observation"].squeeze(-1).tolist() == [1.0, 1.0]
        assert parent.is_memmap() is bool(more.get("memmap"))
        assert parent.is_shared() is not bool(more.get("memmap"))
        row = env.shared_tensordicts[1]
        assert row["next", "observation"].tolist() == [1.0]
        with pytest.raises(RuntimeError, match="lock"):
            row["other"] = torch.zeros(1)
        env.step(acting(td["next"].exclude("reward"), 1))
        assert row["next", "observation"].tolist() == [2.0]
    with pytest.raises(RuntimeError, match="started"):
        _ = env.shared_tensordict_parent


def test_without_a_block_there_is_nothing_to_show():
    with ParallelEnv(2, CountEnv, use_buffers=False, **FORKED) as env:
        env.reset()
        with pytest.raises(RuntimeError, match="without a buffer"):
            _ = env.shared_tensordicts


@pytest.mark.row("E-138")
def test_threads_of_parent_and_children():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with ParallelEnv(3, CountEnv, num_processes=3, **FORKED) as env:
            env.reset()
            assert (torch.get_num_threads(), env.num_threads, list(env.threads())) == (1, 1, [1, 1, 1])
        assert torch.get_num_threads() == 2
        with ParallelEnv(3, CountEnv, num_threads=2, num_sub_threads=2, **FORKED) as env:
            assert list(env.threads()) == [2, 2, 2]
            assert torch.get_num_threads() == 2
        with ParallelEnv(2, CountEnv, num_processes=2, **FORKED) as env:
            env.reset()
            torch.set_num_threads(3)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


@pytest.mark.row("E-139")
def test_daemons():
    with ParallelEnv(2, CountEnv, num_processes=2, daemon=True, **FORKED) as env:
        env.reset()
        daemons = {child.pid: child.daemon for child in multiprocessing.active_children()}
        assert [daemons[pid] for pid in env.vector.pids] == [True, True]
    inner = functools.partial(ParallelEnv, 1, CountEnv, **FORKED)
    with ParallelEnv(2, inner, daemon=True, **FORKED) as env, pytest.raises(EnvError, match="daemonic"):
        env.reset()


# -- copies and ends -------------------------------------------------------------------------------------------------


def pickled(env):
    return pickle.loads(pickle.dumps(env))  # noqa: S301 (our own bytes)


@pytest.mark.row("E-144")
@pytest.mark.parametrize("copied", [pickled, copy.deepcopy], ids=["pickle", "copy"])
def test_a_serial_batch_is_copied_with_its_state(acting, column, copied):
    with SerialEnv(2, CountEnv) as env:
        td = env.step(acting(env.reset(), 1))["next"].exclude("reward")
        twin = copied(env)
        assert not twin.is_closed
        assert column(twin.step(acting(td.clone(), 1)), ("next", "observation")) == [2.0, 2.0]
        assert column(env.step(acting(td.clone(), 0.5)), ("next", "observation")) == [1.5, 1.5]
        twin.close()


@pytest.mark.row("E-144")
def test_a_serial_batch_of_gymnasium_environments_is_copied_too():
    with SerialEnv(2, GymEnv, create_env_kwargs={"env_name": "CartPole-v1"}) as env:
        env.set_seed(0)
        td = env.rand_action(env.reset())
        twin = pickle.loads(pickle.dumps(env))  # noqa: S301
        one, other = env.step(td.clone()), twin.step(td.clone())
        assert (one == other).all()
        twin.close()


@pytest.mark.row("E-145")
@pytest.mark.parametrize("more", [{}, {"use_buffers": False}])
def test_the_last_reference_closes(more, wait_until):
    env = ParallelEnv(2, CountEnv, num_processes=2, **FORKED, **more)
    env.rollout(2)
    del env
    gc.collect()
    wait_until(lambda: multiprocessing.active_children() == [])


@pytest.mark.row("E-146")
@pytest.mark.timeout(60)
@pytest.mark.parametrize("more", [{}, {"use_buffers": False}])
def test_closing_with_a_stuck_child_is_bounded(more):
    env = ParallelEnv(3, CountEnv, num_processes=3, close_timeout_s=0.5, **FORKED, **more)
    env.reset()
    os.kill(env.vector.pids[1], signal.SIGSTOP)
    with pytest.raises(StepTimeout, match=r"environment 1 .*0\.5 s"):
        env.close()
    assert multiprocessing.active_children() == []


@pytest.mark.row("E-146")
@pytest.mark.timeout(60)
@pytest.mark.parametrize("more", [{}, {"use_buffers": False}])
def test_closing_does_not_wait_for_a_dead_child(more):
    env = ParallelEnv(3, CountEnv, num_processes=3, close_timeout_s=600.0, **FORKED, **more)
    env.reset()
    os.kill(env.vector.pids[1], signal.SIGKILL)
    env.close(raise_if_closed=False)
    assert multiprocessing.active_children() == []


# -- failures --------------------------------------------------------------------------------------------------------


@pytest.mark.row("E-148")
def test_a_late_answer_is_never_taken_for_the_next(monkeypatch):
    monkeypatch.setenv(PIPE_TIMEOUT, "2.0")
    env = ParallelEnv(2, functools.partial(toys_td.Crooked, "sleep"), **FORKED)
    td = env.rand_action(env.reset())
    env.step(td)
    with pytest.raises(StepTimeout, match=r"2 s.*BATCHED_PIPE_TIMEOUT") as caught:
        env.step(td)
    assert caught.value.env_index == 1
    assert env.is_closed
    assert env.reset()["observation"].tolist() == [[0], [0]]
    env.close()


def test_a_limit_that_is_no_number(monkeypatch):
    monkeypatch.setenv(PIPE_TIMEOUT, "soon")
    with pytest.raises(ValueError, match="BATCHED_PIPE_TIMEOUT is 'soon'"):
        ParallelEnv(2, CountEnv)


@pytest.mark.row("E-149")
@pytest.mark.parametrize("more", [{}, {"use_buffers": False}])
def test_an_idle_parent_loses_nobody(more):
    with ParallelEnv(2, CountEnv, step_timeout_s=2.0, **FORKED, **more) as env:
        td = env.rand_action(env.reset())
        threading.Event().wait(2.5)
        env.step(td)


@pytest.mark.row("E-150")
@pytest.mark.row("E-151")
@pytest.mark.row("E-153")
@pytest.mark.parametrize(("how", "kind"), [("raise", EnvError), ("kill", ChildLost)])
@pytest.mark.probe("P-08")
@pytest.mark.probe("P-09")
def test_failures_in_every_mode(make, how, kind):
    if how == "kill" and make.is_serial:
        pytest.skip("that would kill the test itself")
    env = make(3, functools.partial(toys_td.Crooked, how))
    td = env.rand_action(env.reset())
    env.step(td)
    for _ in range(2):
        with pytest.raises(kind) as caught:
            env.step(td)
        assert (caught.value.env_index, caught.value.call) == (1, "step")
    if how == "raise":
        assert str(caught.value).rstrip().endswith("ValueError: boom")
    else:
        assert "SIGKILL (9)" in str(caught.value)
        assert str(caught.value.pid) in str(caught.value)
    assert env.is_closed
    assert env.reset()["observation"].tolist() == [[0]] * 3


@pytest.mark.row("E-152")
@pytest.mark.parametrize("more", [{}, {"use_buffers": False}])
@pytest.mark.parametrize("call", ["step", "reset", "hello", "set_seed"])
def test_a_child_that_died_meanwhile_is_named(more, call):
    env = ParallelEnv(3, CountEnv, num_processes=3, **FORKED, **more)
    td = env.rand_action(env.reset())
    victim = env.vector.pids[2]
    os.kill(victim, signal.SIGKILL)
    arguments = {"step": [td], "reset": [td], "hello": [1], "set_seed": [1]}[call]
    with pytest.raises(ChildLost) as caught:
        getattr(env, call)(*arguments)
    assert (caught.value.env_index, caught.value.pid) == (2, victim)
    assert multiprocessing.active_children() == []
    env.close()


@pytest.mark.row("E-154")
@pytest.mark.parametrize(("how", "kind"), [("raise", EnvError), ("kill", ChildLost)])
def test_a_factory_that_fails_in_a_child_alone(how, kind):
    env = ParallelEnv(3, functools.partial(toys_td.Crooked, how, "constructor"), num_processes=3, **FORKED)
    with pytest.raises(kind) as caught:
        env.reset()
    assert (caught.value.env_index, caught.value.call) == (1, "constructor")
    assert multiprocessing.active_children() == []
    env.close(raise_if_closed=False)


def test_what_is_no_environment_is_refused_at_construction(make):
    with pytest.raises(TypeError, match="the factory made str"):
        make(2, toys.not_an_env)
