"""Rows that are stepped through memory: environments with a batch size of their own, states, flags at several levels."""

from __future__ import annotations

import functools
import os
import signal

import pytest
import torch
import toys_td
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rollout_contract.errors import ChildLost, EnvError
from rollout_worker.envs import MetaDataMismatch, ParallelEnv, SerialEnv
from rollout_worker.envs.row_memory import RowMemory
from rollout_worker.envs.row_memory_engine import RowMemoryEngine

NUM_ENVS, SIZE = 3, (2,)

VECTOR = functools.partial(toys_td.CountEnv, k=2.5, batch_size=SIZE, extra=3)

FACTORIES = [
    pytest.param(VECTOR, id="batch size"),
    pytest.param(functools.partial(toys_td.Two, 3), id="flags of agents"),
    pytest.param(functools.partial(toys_td.CountEnv, device="cpu"), id="device"),
]

MASK = st.lists(st.booleans(), min_size=6, max_size=6).map(
    lambda marks: torch.tensor(marks).reshape(NUM_ENVS, 2)
)
ACTIONS = st.lists(st.sampled_from([0.0, 1.0, 3.0]), min_size=6, max_size=6).map(
    lambda values: torch.tensor(values).reshape(NUM_ENVS, 2, 1)
)
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("reset"), st.none()),
        st.tuples(st.just("reset"), MASK),
        st.tuples(st.just("step"), st.tuples(ACTIONS, st.none() | MASK)),
        st.tuples(st.just("step and reset"), st.tuples(ACTIONS, st.none() | MASK)),
        st.tuples(st.just("step bare"), st.tuples(ACTIONS, st.none() | MASK)),
        st.tuples(st.just("again"), ACTIONS),
    ),
    min_size=1,
    max_size=8,
)


def parallel(factory, num_workers=NUM_ENVS, **more):
    more = {"num_processes": 2, "mp_start_method": "fork", **more}
    return ParallelEnv(num_workers, factory, **more)


def record(env, operations):
    """All that a batch gives."""
    with env:
        td, found = env.reset(), []
        for name, arguments in operations:
            if name == "reset":
                mask = None if arguments is None else arguments.unsqueeze(-1)
                td = env.reset() if mask is None else env.reset(td.clone().set("_reset", mask))
            elif name == "again":
                stepped = env.step(td.clone().set("action", arguments))
                stepped = env.step(stepped)  # what stands under next is handed on
                found.append(stepped.clone())
                td = stepped["next"].exclude("reward")
            else:
                action, mask = arguments
                given_td = td.clone() if name != "step bare" else td.select()
                given_td.set("action", action)
                if mask is not None:
                    given_td.set("_step", mask)
                if name == "step and reset":
                    stepped, td = env.step_and_maybe_reset(given_td)
                else:
                    stepped = env.step(given_td)
                    td = stepped["next"].exclude("reward")
                found.append(stepped.clone())
            found.append(td.clone())
        return found


def same(one, other):
    assert one.batch_size == other.batch_size
    left, right = dict(one.items(True, True)), dict(other.items(True, True))
    assert set(left) == set(right)
    for key, value in left.items():
        assert value.dtype == right[key].dtype, key
        assert torch.equal(value, right[key]), key


@given(operations=OPERATIONS)
@settings(
    max_examples=100 if os.environ.get("SOAK") else 10,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
@pytest.mark.row("E-48")
@pytest.mark.row("E-65")
@pytest.mark.row("E-106")
def test_masks_of_elements_mean_the_same_in_every_mode(operations):
    expected = record(SerialEnv(NUM_ENVS, VECTOR), operations)
    for more in ({}, {"use_buffers": False}):
        found = record(parallel(VECTOR, **more), operations)
        assert len(found) == len(expected)
        for one, other in zip(expected, found, strict=True):
            same(one, other)


@pytest.mark.row("E-27")
@pytest.mark.row("E-41")
@pytest.mark.parametrize("factory", FACTORIES)
def test_rollouts_go_through_memory(factory):
    torch.manual_seed(0)
    actions = iter(SerialEnv(NUM_ENVS, factory).full_action_spec.rand((12,)).unbind(0))
    drawn = list(actions)

    def acting():
        given_actions = iter(drawn)
        return lambda td: td.update(next(given_actions))

    with SerialEnv(NUM_ENVS, factory) as serial, parallel(factory) as env:
        expected = serial.rollout(12, acting(), break_when_any_done=False)
        found = env.rollout(12, acting(), break_when_any_done=False)
        assert isinstance(env.__dict__["_engine"], RowMemoryEngine)
        same(expected, found)


@pytest.mark.row("E-35")
@pytest.mark.row("E-87")
def test_states_are_taken_from_the_root():
    with parallel(toys_td.Recurrent, 2) as env:
        td = env.reset()
        td["hid"], td["action"] = torch.tensor([[1.0, 1.0], [2.0, 2.0]]), torch.ones(2, 1)
        stepped, root = env.step_and_maybe_reset(td)
        assert stepped["next", "observation"].tolist() == [[3.0], [5.0]]
        assert root["hid"].tolist() == [[1.0, 1.0], [2.0, 2.0]]
        with pytest.raises(KeyError, match="'hid'"):
            env.step(env.reset().set("action", torch.ones(2, 1)))
        with pytest.raises(RuntimeError, match=r"'hid' has shape \[2, 3\]; its spec says \[2, 2\]"):
            env.step(env.reset().set("action", torch.ones(2, 1)).set("hid", torch.ones(2, 3)))
        assert not env.is_closed


@pytest.mark.row("E-26")
def test_results_are_the_callers_own():
    with parallel(VECTOR) as env:
        root = env.reset()
        kept = []
        for _ in range(3):
            stepped, root = env.step_and_maybe_reset(root.set("action", torch.full((NUM_ENVS, 2, 1), 0.5)))
            kept.append((stepped, stepped.clone()))
        root["observation"].fill_(-1)
        for stepped, before in kept:
            same(stepped, before)
        assert not kept[0][0].is_shared()


@pytest.mark.row("E-136")
def test_the_memory_can_be_looked_at():
    with parallel(VECTOR) as env:
        root = env.reset()
        env.step(root.set("action", torch.full((NUM_ENVS, 2, 1), 0.5)))
        shared = env.shared_tensordict_parent
        assert shared.is_shared()
        assert shared.is_locked
        assert shared["next", "observation"].tolist() == [[[0.5], [0.5]]] * NUM_ENVS
        assert len(env.shared_tensordicts) == NUM_ENVS


@pytest.mark.row("E-150")
def test_what_a_row_raises_is_named():
    with parallel(functools.partial(toys_td.Crooked, where=2, device="cpu"), 2) as env:
        root = env.reset()
        assert isinstance(env.vector.memory, RowMemory)
        _, root = env.step_and_maybe_reset(env.rand_action(root))
        with pytest.raises(EnvError, match="boom") as caught:
            env.step(env.rand_action(root))
        assert caught.value.env_index == 1
        assert caught.value.call == "step"


@pytest.mark.row("E-151")
def test_a_child_of_rows_is_killed():
    with parallel(VECTOR) as env:
        root = env.rand_action(env.reset())
        os.kill(env.vector.pids[1], signal.SIGKILL)
        with pytest.raises(ChildLost):
            env.step(root)


def test_a_lost_row_is_lost_whole(capfd):
    factory = functools.partial(toys_td.CountEnv, k=1e9, batch_size=SIZE)
    with parallel(factory, 2, on_env_error="restart") as env:
        one = torch.ones(2, 2, 1)
        _, root = env.step_and_maybe_reset(env.reset().set("action", one))
        os.kill(env.vector.pids[0], signal.SIGKILL)
        mask = torch.tensor([[True, False], [True, False]])
        stepped, root = env.step_and_maybe_reset(root.set("action", one).set("_step", mask))
        following = stepped["next"]
        assert following["valid"].squeeze(-1).tolist() == [[False, False], [True, True]]
        assert following["truncated"].squeeze(-1).tolist() == [[True, True], [False, False]]
        assert following["observation"].squeeze(-1).tolist() == [[1, 1], [2, 1]]
        assert root["observation"].squeeze(-1).tolist() == [[0, 0], [2, 1]]
        assert env.restarts == [1, 0]
    assert "the process is replaced" in capfd.readouterr().err


class Elsewhere(toys_td.CountEnv):
    """Another one in other processes than that."""

    def __init__(self, pid):
        super().__init__(batch_size=SIZE, extra=2 if os.getpid() == pid else 1)


@pytest.mark.row("E-39")
def test_rows_that_are_otherwise_in_their_process_are_refused():
    env = parallel(functools.partial(Elsewhere, os.getpid()), 2)
    with pytest.raises(
        MetaDataMismatch,
        match=r"observation 'extra': in the caller's process .*\(2, 2\).*, reported .*\(2, 1\)",
    ) as caught:
        env.reset()
    assert caught.value.env_index == 0
    assert env.is_closed
