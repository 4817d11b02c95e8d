"""Processes that are lost or stuck and replaced in place: what the caller gets, what the others notice, when it ends."""

from __future__ import annotations

import functools
import multiprocessing
import os
import random
import signal
import time

import pytest
import torch
import toys
import toys_td

from rollout_contract.errors import ChildLost, EnvError
from rollout_worker.envs import ParallelEnv, open_envs

ROUNDS = 100 if os.environ.get("SOAK") else 10

GYM = functools.partial(toys.Count, k=1000)
OURS = functools.partial(toys_td.CountEnv, k=1000)

KINDS = [
    pytest.param(GYM, {}, id="gymnasium"),
    pytest.param(OURS, {}, id="block"),
    pytest.param(functools.partial(toys_td.CountEnv, k=1000, device="cpu"), {}, id="memory"),
    pytest.param(OURS, {"use_buffers": False}, id="direct"),
]

HOWS = [
    pytest.param("kill", id="SIGKILL"),
    pytest.param("stop", id="SIGSTOP"),
]

LIMITS_S = {"kill": 60.0, "stop": 2.0}
"""How long a process may be silent: where one is stopped, the test waits for that."""


@pytest.fixture
def batch():
    """Batches of four in two processes, closed after the test; nothing may be left of them."""
    made = []

    def make(factory, num_workers=4, **more):
        more = {"num_processes": 2, "mp_start_method": "fork", "on_env_error": "restart", **more}
        made.append(ParallelEnv(num_workers, factory, **more))
        return made[-1]

    yield make
    for env in made:
        env.close(raise_if_closed=False)
    assert multiprocessing.active_children() == []


def lose(env, position, how):
    pid = env.vector.pids[position]
    os.kill(pid, signal.SIGSTOP if how == "stop" else signal.SIGKILL)
    return pid


def acting(env, td):
    return td.set("action", torch.ones_like(env.action_spec.zero()[: len(td)]))


def column(td, name):
    return td[name].squeeze(-1).tolist()


def flags(td, name):
    return td["next", name].squeeze(-1).tolist()


@pytest.mark.row("E-151")
@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize(("factory", "more"), KINDS)
@pytest.mark.parametrize("resets", [True, False], ids=["and reset", "step alone"])
def test_a_step_whose_process_is_lost(batch, how, factory, more, resets, capfd):
    env = batch(factory, step_timeout_s=LIMITS_S[how], **more)
    root = env.reset()
    for _ in range(2):
        _, root = env.step_and_maybe_reset(acting(env, root))
    lost = lose(env, 1, how)
    if resets:
        stepped, root = env.step_and_maybe_reset(acting(env, root))
    else:
        stepped = env.step(acting(env, root))
        root = env.maybe_reset(stepped["next"].exclude("reward", "valid").clone())
    assert flags(stepped, "valid") == [True, True, False, False]
    assert flags(stepped, "truncated") == flags(stepped, "done") == [False, False, True, True]
    assert flags(stepped, "terminated") == [False] * 4
    assert column(stepped, "observation") == [2] * 4
    assert flags(stepped, "observation") == [3, 3, 2, 2]
    assert flags(stepped, "reward") == [1, 1, 0, 0]
    assert column(root, "observation") == [3, 3, 0, 0]
    assert column(root, "done") == [False] * 4
    stepped, root = env.step_and_maybe_reset(acting(env, root))
    assert flags(stepped, "valid") == [True] * 4
    assert flags(stepped, "observation") == [4, 4, 1, 1]
    assert env.restarts == [0, 0, 1, 1]
    assert lost not in env.vector.pids
    assert not env.is_closed
    said = capfd.readouterr().err
    assert "environments 2 to 3" in said
    assert ("SIGKILL" if how == "kill" else "no answer within 2 s") in said


@pytest.mark.parametrize(("factory", "more"), KINDS)
def test_a_partial_step_tells_the_others_at_their_next(batch, factory, more):
    env = batch(factory, **more)
    _, root = env.step_and_maybe_reset(acting(env, env.reset()))
    lose(env, 0, "kill")
    mask = torch.tensor([True, False, True, False])
    stepped, root = env.step_and_maybe_reset(acting(env, root).set("_step", mask))
    assert flags(stepped, "valid") == [False, True, True, True]
    assert flags(stepped, "truncated") == [True, False, False, False]
    assert column(root, "observation") == [0, 1, 2, 1]
    stepped, root = env.step_and_maybe_reset(acting(env, root))
    assert flags(stepped, "valid") == [True, False, True, True]
    assert flags(stepped, "truncated") == [False, True, False, False]
    assert flags(stepped, "observation") == [1, 1, 3, 2]
    assert column(root, "observation") == [1, 0, 3, 2]
    assert env.restarts == [1, 1, 0, 0]


@pytest.mark.parametrize(("factory", "more"), KINDS)
def test_a_reset_whose_process_is_lost(batch, factory, more):
    env = batch(factory, **more)
    env.step(acting(env, env.reset()))
    lose(env, 0, "kill")
    assert column(env.reset(), "observation") == [0] * 4
    stepped, _ = env.step_and_maybe_reset(acting(env, env.reset()))
    assert flags(stepped, "valid") == [True] * 4
    assert env.restarts == [1, 1, 0, 0]


@pytest.mark.parametrize(("factory", "more"), KINDS)
def test_a_partial_reset_whose_process_is_lost(batch, factory, more):
    env = batch(factory, **more)
    _, root = env.step_and_maybe_reset(acting(env, env.reset()))
    lose(env, 0, "kill")
    root = env.reset(root.set("_reset", torch.tensor([[True], [False], [False], [True]])))
    assert column(root, "observation") == [0, 1, 1, 0]
    stepped, root = env.step_and_maybe_reset(acting(env, root))
    assert flags(stepped, "valid") == [True, False, True, True]
    assert flags(stepped, "observation") == [1, 1, 2, 1]
    assert column(root, "observation") == [1, 0, 2, 1]


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize(("factory", "more"), KINDS)
def test_sent_environments_whose_process_is_lost(batch, how, factory, more):
    env = batch(factory, step_timeout_s=LIMITS_S[how], **more)
    root = acting(env, env.reset())
    lose(env, 1, how)
    env.send(root)
    valid, others = {}, 0
    end = time.monotonic() + 120
    while len(valid) < 4 or others < 2:
        assert time.monotonic() < end
        ready = env.recv(1)
        for position, index in enumerate(ready.indices):
            valid.setdefault(index, ready.stepped["next", "valid"][position].item())
        again = [position for position, index in enumerate(ready.indices) if index < 2]
        if again:
            others += 1
            env.send(acting(env, ready.root[again]), [ready.indices[position] for position in again])
    assert valid == {0: True, 1: True, 2: False, 3: False}
    assert env.restarts == [0, 0, 1, 1]


def test_the_others_are_not_held_up(batch, tmp_path):
    marker = tmp_path / "marker"
    env = batch(functools.partial(toys.Marked, marker=str(marker), waits=True), num_workers=2)
    root = acting(env, env.reset())
    marker.touch()
    lose(env, 1, "kill")
    env.send(root)
    for _ in range(6):
        ready = env.recv(1)
        assert ready.indices == [0]
        env.send(acting(env, ready.root), [0])
    marker.unlink()
    seen = set()
    while 1 not in seen:
        ready = env.recv(1)
        seen.update(ready.indices)
        if 0 in ready.indices:
            position = ready.indices.index(0)
            env.send(acting(env, ready.root[position : position + 1]), [0])


@pytest.mark.parametrize("how", ["exit", "kill"])
@pytest.mark.parametrize("only", [None, 1])
def test_a_process_that_is_lost_again_and_again_ends_in_the_first_error(batch, how, only):
    env = batch(functools.partial(toys.Fault, how=how, where=1, only=only), num_workers=2)
    root = env.reset()
    for _ in range(3):
        stepped, root = env.step_and_maybe_reset(acting(env, root))
        assert flags(stepped, "valid") == [only == 1, False]
    with pytest.raises(ChildLost, match="lost 4 times in a row, and this was the first") as caught:
        env.step_and_maybe_reset(acting(env, root))
    assert ("exit code 3" if how == "exit" else "SIGKILL") in str(caught.value)
    assert caught.value.call == "step"
    assert env.is_closed
    assert column(env.reset(), "observation") == [0, 0]


def test_a_process_that_cannot_reset_ends_in_an_error(batch):
    env = batch(functools.partial(toys.Fault, how="kill", where="reset", only=1), num_workers=2)
    with pytest.raises(ChildLost, match="lost 4 times in a row"):
        env.reset()


def test_losses_with_good_steps_between_go_on_until_the_limit(batch):
    env = batch(functools.partial(toys.Fault, how="exit", where=3, only=1), num_workers=2, max_restarts=5)
    root = env.reset()
    for number in range(1, 18):
        stepped, root = env.step_and_maybe_reset(acting(env, root))
        assert flags(stepped, "valid") == [True, number % 3 != 0]
    with pytest.raises(ChildLost, match="replaced 5 times already, and max_restarts allows no more"):
        env.step(acting(env, root))


def test_exceptions_count_against_the_same_limit(make):
    env = make(2, functools.partial(toys_td.Crooked, where=2), on_env_error="restart", max_restarts=2)
    root = env.reset()
    for _ in range(5):
        _, root = env.step_and_maybe_reset(acting(env, root))
    assert env.restarts == [0, 2]
    with pytest.raises(EnvError, match="boom"):
        env.step(acting(env, root))


def test_a_limit_below_nothing(make):
    with pytest.raises(ValueError, match="max_restarts"):
        make(1, toys_td.CountEnv, max_restarts=-1)


def test_a_run_of_frames_goes_on_where_it_was_lost():
    with open_envs(
        toys.Fault,
        kwargs={"how": "kill", "where": 3, "only": 1},
        num_envs=2,
        num_steps=10,
        num_processes=2,
        start_method="fork",
        restarts=True,
    ) as envs:
        envs.reset([1, 2])
        envs.begin(0)
        envs.step_range(0, 0, 10)
        arrays = envs.blocks[0].arrays
        assert arrays["next", "valid"][:, :, 0].tolist() == [[True] * 10, [True, True, False] * 3 + [True]]
        assert arrays["observation",][1, :, 0].tolist() == [0, 1, 2, 0, 1, 2, 0, 1, 2, 0]
        assert arrays["next", "truncated"][1, :, 0].tolist() == [False, False, True] * 3 + [False]
        assert envs.restarts == [0, 3]
        assert len(envs.episodes(0).env_index) == 0


def test_texts_of_a_lost_process():
    with open_envs(
        functools.partial(toys.Text, k=99),
        num_envs=2,
        num_steps=3,
        num_processes=2,
        start_method="fork",
        restarts=True,
    ) as envs:
        envs.reset()
        envs.begin(0)
        envs.step(0, 0)
        os.kill(envs.pids[1], signal.SIGKILL)
        envs.step_range(0, 1, 3)
        arrays = envs.blocks[0].arrays
        assert arrays["observation",].tolist() == [["w0-s0", "w0-s1", "w0-s2"], ["w1-s0", "w1-s1", "w1-s0"]]
        assert arrays["next", "observation"].tolist() == [
            ["w0-s1", "w0-s2", "w0-s3"],
            ["w1-s1", "w1-s1", "w1-s1"],
        ]
        assert arrays["next", "valid"][1, :, 0].tolist() == [True, False, True]


def test_a_method_that_kills_is_not_called_again(batch):
    env = batch(GYM, num_workers=2)
    root = env.reset()
    with pytest.raises(ChildLost) as caught:
        env.call("die", indices=[1])
    assert caught.value.env_index == 1
    assert "die" in str(caught.value)
    assert not env.is_closed
    stepped, _ = env.step_and_maybe_reset(acting(env, root))
    assert flags(stepped, "valid") == [True, False]


def test_what_was_staged_for_a_reset_is_not_lost(batch):
    env = batch(OURS, num_workers=2)
    env.reset()
    lose(env, 1, "kill")
    assert column(env.reset(list_of_kwargs=[{"start": 5}, {"start": 6}]), "observation") == [5, 6]


def test_new_environments_draw_numbers_of_their_own(batch):
    def drawn():
        env = batch(toys.Rng, num_workers=2)
        env.set_seed(3)
        found = []
        root = env.reset()
        for _ in range(3):
            lose(env, 1, "kill")
            for _ in range(2):
                _, root = env.step_and_maybe_reset(acting(env, root))
                found.append(root["observation"][1].item())
        return found

    first = drawn()
    assert first == drawn()
    assert len(set(first)) == len(first)


@pytest.mark.probe("P-08")
@pytest.mark.probe("P-10")
@pytest.mark.parametrize(("factory", "more"), KINDS)
def test_random_kills_change_nothing_but_the_frames_that_say_so(batch, factory, more, leftovers):
    chosen = random.Random(repr(more))
    before = leftovers()
    env = batch(factory, **more)
    root = env.reset()
    steps = [0] * 4
    for _ in range(ROUNDS):
        victim = chosen.choice([0, 1])
        for _ in range(chosen.randint(2, 4)):
            stepped, root = env.step_and_maybe_reset(acting(env, root))
            steps = checked(steps, stepped)
        lose(env, victim, "kill")
    _, root = env.step_and_maybe_reset(acting(env, root))
    assert sum(env.restarts) == 2 * ROUNDS
    env.close()
    assert leftovers(before) == {}


def checked(steps, stepped):
    """The counters that follow: one more where the frame is valid, 0 where it says that it is not."""
    found = []
    for row, count in enumerate(steps):
        at, to = stepped["observation"][row].item(), stepped["next", "observation"][row].item()
        assert at == count
        is_valid = stepped["next", "valid"][row].item()
        assert to == (count + 1 if is_valid else count)
        assert stepped["next", "truncated"][row].item() == (not is_valid)
        found.append(count + 1 if is_valid else 0)
    return found


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_every_start_method_replaces(batch, method):
    env = batch("toys:Count", num_workers=2, create_env_kwargs={"k": 100}, mp_start_method=method)
    root = env.reset()
    lose(env, 0, "kill")
    stepped, _ = env.step_and_maybe_reset(acting(env, root))
    assert flags(stepped, "valid") == [False, True]


def test_a_constructor_that_fails_in_the_new_process(batch, tmp_path):
    marker = tmp_path / "marker"
    env = batch(functools.partial(toys.Marked, marker=str(marker)), num_workers=2)
    root = env.reset()
    marker.touch()
    lose(env, 0, "kill")
    with pytest.raises(EnvError, match="there is a mark") as caught:
        env.step_and_maybe_reset(acting(env, root))
    assert caught.value.call == "constructor"
    assert env.is_closed


def test_a_batch_is_closed_while_a_process_is_replaced(batch, tmp_path):
    marker = tmp_path / "marker"
    env = batch(functools.partial(toys.Marked, marker=str(marker), waits=True), num_workers=2)
    root = acting(env, env.reset())
    marker.touch()
    lose(env, 1, "kill")
    env.send(root)
    assert env.recv(1).indices == [0]
    end = time.monotonic() + 60
    while env.restarts != [0, 1]:
        assert time.monotonic() < end
        assert env.recv(1, timeout_s=0.05).indices == []
    env.close()
    assert multiprocessing.active_children() == []


def test_without_restarts_a_lost_process_ends_the_batch(batch):
    env = batch(OURS, on_env_error="raise")
    root = env.reset()
    lose(env, 0, "kill")
    with pytest.raises(ChildLost):
        env.step(acting(env, root))
