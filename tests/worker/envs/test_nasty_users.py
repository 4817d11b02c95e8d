"""Factories of all kinds, arguments and seeds: what is given is checked, private, and independent."""

from __future__ import annotations

import functools
import os
import random
import threading

import numpy as np
import pytest
import torch
import toys
from toys_td import CountEnv

from rollout_worker.envs import EnvCreator, ParallelEnv, SerialEnv
from rollout_worker.envs.seeding import chain

pytestmark = pytest.mark.timeout(
    300
)  # scripts that import torch in every process take long where others compute


# -- factories ---------------------------------------------------------------------------------------------------------


class Maker:
    """An object with a method that makes environments."""

    def __init__(self, start):
        self.start = start

    def make(self):
        return toys.Count(start=self.start)

    __call__ = make

    @classmethod
    def made(cls):
        return cls(3).make()

    @staticmethod
    def static():
        return Maker(3).make()


def with_default(start=3, *, k=9):
    return toys.Count(k, start)


@pytest.mark.probe("P-57")
@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_anything_that_can_be_called_is_a_factory(method):
    captured = {"start": [3]}

    class Local(toys.Count):
        def __init__(self):
            super().__init__(start=captured["start"][0])

    factories = [
        Maker(3).make,
        Maker(3),
        Maker.made,
        Maker.static,
        with_default,
        functools.partial(functools.partial(with_default, 3), k=4),
        lambda start=3: toys.Count(start=start),
        Local,
        "toys:count",
    ]
    kwargs = [{}] * 8 + [{"start": 3}]
    more = {"mp_start_method": method, "num_processes": 2, "auto_wrap_envs": False}
    with ParallelEnv(9, factories, create_env_kwargs=kwargs, **more) as env:
        captured["start"][0] = 99
        assert env.reset()["observation"].tolist() == [[3]] * 9


@pytest.mark.probe("P-57")
@pytest.mark.parametrize(
    ("name", "value", "kind"),
    [
        pytest.param("stream", lambda path: path.open("w"), "TextIOWrapper", id="an open file"),
        pytest.param("frames", lambda _: (n for n in range(3)), "generator", id="a generator"),
        pytest.param("worker", lambda _: threading.Thread(), "Thread", id="a thread"),
        pytest.param("gate", lambda _: threading.Condition(), "RLock|Condition|lock", id="a condition"),
    ],
)
def test_what_cannot_be_sent_is_named_with_its_type(tmp_path, name, value, kind):
    held = value(tmp_path / "file")
    scope = {"toys": toys, name: held}
    exec(f"def factory():\n    return toys.Count(k={name} and 3)", scope)  # noqa: S102 (names of the cases' own)
    for make in (SerialEnv, ParallelEnv):
        with pytest.raises(TypeError, match=rf"create_env_fn cannot be sent to a process: '.*' \(.*({kind})"):
            make(2, scope["factory"])
    if hasattr(held, "close"):
        held.close()


@pytest.mark.probe("P-57")
@pytest.mark.parametrize("given", ["env", "list", "batch", "made"])
def test_environments_are_no_factories(make, given):
    what = {
        "env": CountEnv(),
        "list": [CountEnv, CountEnv()],
        "batch": SerialEnv(2, CountEnv),
        "made": __import__("gymnasium").make("CartPole-v1"),
    }[given]
    with pytest.raises(TypeError, match=r"create_env_fn.* is an environment .*factory"):
        make(2, what)


# -- arguments and seeds -----------------------------------------------------------------------------------------------


@pytest.mark.probe("P-23")
def test_arguments_are_private_and_fixed_when_given(make):
    shared = {"starts": [5], "array": np.array([1])}
    default = [7]

    def factory(env_index, deep, table=default):
        deep["starts"][0] += 1
        deep["array"] += 1
        table[0] += 1
        return toys.Count(start=100 * env_index + deep["starts"][0] + int(deep["array"][0]) + table[0])

    env = make(3, factory, create_env_kwargs={"deep": shared})
    shared["starts"][0] = 50
    default[0] = 70
    for _ in range(2):
        assert env.reset()["observation"].tolist() == [[16], [116], [216]]
        env.close()
    assert (shared["starts"], shared["array"].tolist(), default) == ([50], [1], [70])


@pytest.mark.probe("P-23")
def test_one_mapping_in_a_list_is_copied_for_each(make):
    one = {"start": 4}
    env = make(3, toys.Count, create_env_kwargs=[one] * 3)
    one["start"] = 9
    assert env.reset()["observation"].tolist() == [[4]] * 3


@pytest.mark.probe("P-21")
@pytest.mark.parametrize("first", [0, 2**31 - 50, 2**32 - 101, 10**9])
def test_chains_of_neighbouring_seeds_share_nothing(first):
    seeds = [seed for job in range(first, first + 100) for seed in chain(job, 32)[0]]
    assert len(set(seeds)) == 3200
    assert max(seeds) < 2**32


@pytest.mark.probe("P-21")
def test_serial_and_parallel_hand_out_the_same_seeds(make):
    for seed in (0, 1, 99, 2**32 - 2):
        env = make(4, CountEnv)
        env.set_seed(seed)
        assert list(env.seed_seen) == chain(seed, 4)[0]
        env.close()


@pytest.mark.probe("P-22")
@pytest.mark.parametrize(
    "factory",
    [toys.Rng, EnvCreator(toys.Rng), functools.partial(toys.Rng, 7), lambda: toys.Rng(k=10)],
    ids=["class", "creator", "partial", "lambda"],
)
def test_equal_arguments_give_different_streams(make, factory):
    def first(**more):
        env = make(4, factory)
        env.set_seed(0, **more)
        return env.reset()["observation"].squeeze(-1).tolist()

    one, other = first(), first()
    assert one == other
    assert len(set(one)) == 4
    assert len(set(first(static_seed=True))) == 1


@pytest.mark.probe("P-22")
def test_streams_differ_without_any_seed(make):
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    env = make(4, toys.Rng)
    assert len(set(env.reset()["observation"].squeeze(-1).tolist())) == 4


@pytest.mark.probe("P-24")
@pytest.mark.parametrize("k", [1, 4])
def test_a_seed_fixes_the_whole_future(make, k):
    def run(env, num_steps):
        td, seen = env.reset(), []
        for step in range(num_steps):
            seen.append(td["observation"].squeeze(-1).tolist())
            _, td = env.step_and_maybe_reset(env.rand_action(td))
            if step == num_steps // 2:
                td = env.reset()  # goes on with the stream
            if step == num_steps // 3:
                mask = torch.tensor([[True], [False], [False]])
                td = env.reset(td.set("_reset", mask))
        return seen

    env, other = make(3, functools.partial(toys.Rng, k)), make(3, functools.partial(toys.Rng, k))
    for each in (env, other):
        each.set_seed(5)
    first, second = run(env, 40), run(other, 40)
    assert first == second
    shown = [value for step in first for value in step]
    assert len(set(shown)) == len(shown)
    env.set_seed(5)
    assert run(env, 40) == first


@pytest.mark.probe("P-10")
@pytest.mark.parametrize("ending", ["step raises", "constructor raises", "killed", "left open"])
@pytest.mark.parametrize("more", [{}, {"use_buffers": False}], ids=["block", "direct"])
def test_runs_that_end_badly_leave_nothing_either(leftovers, ending, more):
    def one():
        where = {"step raises": 1, "constructor raises": "constructor"}.get(ending, "nowhere")
        factory = functools.partial(toys.Fault, "raise", where, 1)
        env = ParallelEnv(2, factory, num_processes=2, mp_start_method="fork", **more)
        try:
            td = env.rand_action(env.reset())
            if ending == "killed":
                os.kill(env.vector.pids[0], 9)
            env.step(td)
        except RuntimeError:
            assert ending != "left open"

    one()
    before = leftovers()
    for _ in range(50 if os.environ.get("SOAK") else 5):
        one()
    assert leftovers(before) == {}
