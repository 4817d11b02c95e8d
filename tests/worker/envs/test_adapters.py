"""Adapters of vector environments, PettingZoo and TorchRL, and `make_env`, which finds the right one."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
import toys
import toys_agents
import toys_gym
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from tensordict import TensorDict

from rollout_worker.envs import (
    EnvBase,
    GymEnv,
    GymVectorEnv,
    ParallelEnv,
    PettingZooEnv,
    SerialEnv,
    TorchRLEnv,
    Unbounded,
    make_env,
)

COUNTS = [functools.partial(toys.Count, 3), functools.partial(toys.Count, 5)]


def flat(td: Any, key: Any = "observation") -> Any:
    return td.get(key).squeeze(-1).tolist()


# -- vector environments -----------------------------------------------------------------------------------------------


@pytest.mark.probe("P-01")
@pytest.mark.probe("P-32")
@pytest.mark.parametrize("mode", list(AutoresetMode), ids=str)
@pytest.mark.parametrize("kind", [SyncVectorEnv, AsyncVectorEnv])
def test_rows_of_a_vector_environment_end_alone(kind, mode):
    env = GymVectorEnv(kind(COUNTS, autoreset_mode=mode))
    try:
        got = env.rollout(15, break_when_any_done=False)
    finally:
        env.close()
    assert got.batch_size == (2, 15)
    assert flat(got) == [[0, 1, 2] * 5, [0, 1, 2, 3, 4] * 3]
    assert flat(got, ("next", "observation")) == [[1, 2, 3] * 5, [1, 2, 3, 4, 5] * 3]
    assert got["next", "done"].sum(1).flatten().tolist() == [5, 3]
    assert got["next", "reward"].dtype == torch.float32
    assert flat(got, ("next", "reward")) == [[1.0] * 15] * 2


@pytest.mark.parametrize("mode", list(AutoresetMode), ids=str)
def test_resets_reach_the_marked_rows_alone(mode):
    inner = SyncVectorEnv(COUNTS, autoreset_mode=mode)
    env = GymVectorEnv(inner)
    td = env.rand_step(env.reset())["next"].exclude("reward").clone()
    td["_reset"] = torch.tensor([[True], [False]])
    assert flat(env.reset(td)) == [0, 1]
    assert [each.n_reset for each in inner.envs] == [2, 1]
    assert flat(env.reset()) == [0, 0]
    assert [each.n_reset for each in inner.envs] == [3, 2]


@pytest.mark.parametrize("mode", list(AutoresetMode), ids=str)
def test_an_episode_that_began_by_itself_is_not_begun_twice(mode):
    inner = SyncVectorEnv([functools.partial(toys.Count, 2)] * 2, autoreset_mode=mode)
    GymVectorEnv(inner).rollout(6, break_when_any_done=False)
    assert [each.n_reset for each in inner.envs] == [4, 4]


def test_a_step_of_a_row_that_ended_is_refused():
    env = GymVectorEnv(SyncVectorEnv(COUNTS))
    env.rollout(3)
    with pytest.raises(RuntimeError, match=r"the rows 0 of .* have ended and were not reset"):
        env.step(env.rand_action(TensorDict({}, batch_size=(2,))))


def test_a_kind_that_cannot_reset_rows_says_so():
    torch.manual_seed(0)
    env = GymVectorEnv("CartPole-v1", num_envs=2, vectorization_mode="vector_entry_point")
    env.set_seed(0)
    assert env.rollout(200).shape[1] < 200
    with pytest.raises(RuntimeError, match="Make it with autoreset mode SameStep"):
        env.rollout(200, break_when_any_done=False)


@pytest.mark.probe("P-22")
@pytest.mark.parametrize("kind", [SyncVectorEnv, AsyncVectorEnv])
def test_every_row_has_a_seed_of_its_own(kind):
    env = GymVectorEnv(kind([toys.Rng] * 4))
    try:
        assert env.set_seed(0) == 3018685293
        first = flat(env.reset())
        env.set_seed(0)
        assert flat(env.reset()) == first
        assert len(set(first)) == 4
        single = GymEnv(toys.Rng())
        single.set_seed(0)
        assert single.reset()["observation"].item() == first[0]
        env.set_seed(7, static_seed=True)
        assert len(set(flat(env.reset()))) == 1
    finally:
        env.close()


@pytest.mark.parametrize("mode", list(AutoresetMode), ids=str)
def test_every_space_of_a_vector_environment(mode):
    env = GymVectorEnv(SyncVectorEnv([functools.partial(toys_gym.Spaces, 2)] * 2, autoreset_mode=mode))
    got = env.rollout(5, break_when_any_done=False)
    assert got["from_two"].min() >= 0
    assert got["from_two"].max() <= 2
    assert got["pair", "1", "deep"].shape == (2, 5, 1)
    assert [len(row) for row in got["text"]] == [5, 5]
    assert got["next", "graph"][1][4].nodes.ndim == 2
    for key in ("box", "bits", "from_two", "several", "flag"):
        assert env.observation_spec[key].is_in(got[key][:, 2]), key


@pytest.mark.parametrize("kind", list(toys.Actions.SPACES))
@pytest.mark.parametrize("is_categorical", [True, False])
def test_actions_of_a_vector_environment(kind, is_categorical):
    inner = SyncVectorEnv([functools.partial(toys.Actions, kind)] * 2)
    GymVectorEnv(inner, categorical_action_encoding=is_categorical).rollout(4)
    assert [len(each.given) for each in inner.envs] == [4, 4]


def test_texts_as_actions_of_rows():
    inner = SyncVectorEnv([toys_gym.Speaking] * 2)
    GymVectorEnv(inner).rollout(2)
    assert all(isinstance(each, str) for env in inner.envs for each in env.given)


@pytest.mark.filterwarnings("ignore:.*precision lowered")
def test_envpool():
    envpool = pytest.importorskip("envpool")
    torch.manual_seed(0)
    env = GymVectorEnv(envpool.make("CartPole-v1", env_type="gymnasium", num_envs=3, seed=1))
    got = env.rollout(80, break_when_any_done=False)
    ends = got["next", "done"].squeeze(-1)
    assert ends.any(1).all()
    assert got["next", "reward"].eq(1).all()  # a filler's reward is 0
    moved = (got["next", "observation"][:, :-1] - got["observation"][:, 1:]).abs().sum(-1)
    assert moved[~ends[:, :-1]].eq(0).all()
    assert moved[ends[:, :-1]].gt(0).all()
    with pytest.raises(TypeError, match="batch_size=4"):
        GymVectorEnv(envpool.make("CartPole-v1", env_type="gymnasium", num_envs=4, batch_size=2))


def test_vector_environments_within_a_batch():
    make = functools.partial(GymVectorEnv, "CartPole-v1", num_envs=3)
    for batch in (SerialEnv, functools.partial(ParallelEnv, num_processes=1, mp_start_method="fork")):
        env = batch(2, make)
        try:
            assert env.batch_size == (2, 3)
            assert env.rollout(30, break_when_any_done=False)["observation"].shape == (2, 3, 30, 4)
        finally:
            env.close()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        pytest.param(
            lambda: GymVectorEnv(SyncVectorEnv(COUNTS), num_envs=2), "num_envs cannot be given", id="made"
        ),
        pytest.param(lambda: GymVectorEnv(toys.Count()), "takes a gymnasium.vector.VectorEnv", id="single"),
    ],
)
def test_what_is_no_vector_environment_is_refused(make, message):
    with pytest.raises(TypeError, match=message):
        make()


# -- PettingZoo --------------------------------------------------------------------------------------------------------


def test_agents_are_grouped_by_type():
    env = PettingZooEnv(toys_agents.Walkers(), use_state=True)
    assert env.group_map == {"walker": ["walker_0", "walker_1"], "judge": ["judge"]}
    assert env.observation_spec["walker", "observation"].shape == (2, 2)
    assert env.full_action_spec["judge", "action"].shape == (1,)
    td = env.reset()
    assert td["walker"].batch_size == (2,)
    assert td["judge", "action_mask"].tolist() == [[1, 0]]
    assert env.reset_keys == ["_reset", ("walker", "_reset"), ("judge", "_reset")]
    assert env.observation_spec.is_in(td)
    assert td["state"].tolist() == [0.0]


def test_agents_leave_one_by_one():
    env = PettingZooEnv(toys_agents.Walkers((2, 4), limit=4))
    got = env.rollout(9)
    assert got.batch_size == (4,)
    assert got["next", "walker", "mask"].tolist() == [
        [True, True],
        [True, True],
        [False, True],
        [False, True],
    ]
    assert got["next", "walker", "reward"].squeeze(-1).tolist() == [[1, 1], [2, 2], [0, 3], [0, 4]]
    assert got["next", "walker", "observation"][..., 0].tolist() == [[1, 1], [2, 2], [0, 3], [0, 4]]
    done = got["next", "walker", "done"].squeeze(-1).tolist()
    assert done == [[False, False], [True, False], [True, False], [True, True]]
    assert flat(got, ("next", "done")) == [False, False, False, True]
    assert (got["next", "terminated"][-1].item(), got["next", "truncated"][-1].item()) == (False, True)
    assert [sorted(each) for each in env.env.given[1:3]] == [
        ["judge", "walker_0", "walker_1"],
        ["judge", "walker_1"],
    ]


def test_all_terminated_is_terminated():
    env = PettingZooEnv(
        toys_agents.Walkers((2, 2), limit=99), group_map={"all": ["walker_0", "walker_1"], "j": ["judge"]}
    )
    assert not env.rollout(3)["next", "terminated"].any()
    only = toys_agents.Walkers((2,), limit=99)
    only.possible_agents = ["walker_0"]
    got = PettingZooEnv(only).rollout(9)
    assert got["next", "terminated"].squeeze(-1).tolist() == [False, True]


def test_pettingzoo_in_a_batch_and_seeds():
    for batch in (SerialEnv, functools.partial(ParallelEnv, num_processes=1, mp_start_method="fork")):
        env = batch(2, functools.partial(make_env, toys_agents.Walkers))
        try:
            env.set_seed(0)
            got = env.rollout(6, break_when_any_done=False)
            assert flat(got, ("next", "done")) == [[False, False, False, True, False, False]] * 2
            assert got["walker", "observation"][0, :, 1, 0].tolist() == [0, 1, 2, 3, 0, 1]
            assert next(iter(env.env)).seeds[0] == 0
        finally:
            env.close()


@pytest.mark.parametrize(
    ("group_map", "message"),
    [
        pytest.param(
            {"all": ["walker_0", "walker_1", "judge"]}, "walker_0 and judge of the group 'all'", id="mixed"
        ),
        pytest.param({"all": ["walker_0"]}, "the agents are judge, walker_0, walker_1", id="incomplete"),
    ],
)
def test_groups_that_cannot_be_are_refused(group_map, message):
    with pytest.raises(ValueError, match=message):
        PettingZooEnv(toys_agents.Walkers(), group_map=group_map)


# -- TorchRL -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def torchrl():
    return pytest.importorskip("torchrl.envs")


def torchrl_pendulum(max_steps: int = 5) -> Any:
    from torchrl.envs import Compose, GymEnv, RewardSum, StepCounter, TransformedEnv

    return TransformedEnv(GymEnv("Pendulum-v1"), Compose(StepCounter(max_steps), RewardSum()))


def test_a_torchrl_environment(torchrl):
    env = TorchRLEnv(torchrl_pendulum())
    assert env.action_spec.low.item() == -2.0
    assert env.observation_spec["step_count"].dtype == torch.int64
    got = env.rollout(12, break_when_any_done=False)
    assert got["next", "step_count"].squeeze(-1).tolist() == [1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 1, 2]
    assert got["next", "truncated"].sum() == 2
    sums = got["next", "episode_reward"]
    torch.testing.assert_close(sums[4], got["next", "reward"][:5].sum(0))


def test_torchrl_seeds_and_batches(torchrl):
    seen = []
    for batch in (SerialEnv, functools.partial(ParallelEnv, num_processes=1, mp_start_method="spawn")):
        env = batch(2, functools.partial(make_env, torchrl_pendulum))
        try:
            env.set_seed(3)
            seen.append(
                env.rollout(7, lambda td: td.set("action", torch.zeros(2, 1)), break_when_any_done=False)
            )
        finally:
            env.close()
    assert seen[0].batch_size == (2, 7)
    assert (seen[0] == seen[1]).all()


def test_a_batch_of_torchrl(torchrl):
    inner = torchrl.SerialEnv(2, functools.partial(torchrl.GymEnv, "CartPole-v1"))
    torch.manual_seed(0)
    env = make_env(inner)
    env.set_seed(0)
    assert env.batch_size == (2,)
    got = env.rollout(60, break_when_any_done=False)
    assert got["action"].shape == (2, 60, 2)
    assert got["next", "done"].any()
    env.close()
    assert inner.is_closed


def test_what_is_no_torchrl_environment_is_refused():
    with pytest.raises(TypeError, match="this is int"):
        TorchRLEnv(lambda: 3)


# -- make_env ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "kind"),
    [
        pytest.param("CartPole-v1", GymEnv, id="name"),
        pytest.param("toys:Count", GymEnv, id="entrypoint"),
        pytest.param(toys.Count, GymEnv, id="class"),
        pytest.param(toys.Count(), GymEnv, id="environment"),
        pytest.param(lambda: SyncVectorEnv(COUNTS), GymVectorEnv, id="vector"),
        pytest.param(toys_agents.Walkers, PettingZooEnv, id="pettingzoo"),
        pytest.param(lambda: GymEnv(toys.Count()), GymEnv, id="ours"),
    ],
)
def test_make_env_finds_the_adapter(what, kind):
    env = make_env(what)
    assert type(env) is kind
    assert isinstance(env, EnvBase)
    assert env.rollout(2).shape[-1] == 2


@pytest.mark.parametrize(("num_processes", "kind"), [(0, SerialEnv), (1, ParallelEnv)])
@pytest.mark.parametrize("what", ["CartPole-v1", "toys:Count", toys.Count])
def test_make_env_makes_batches(what, num_processes, kind):
    env = make_env(what, num_envs=2, num_processes=num_processes)
    try:
        assert type(env) is kind
        assert env.rollout(2).batch_size == (2, 2)
    finally:
        env.close()


def test_make_env_hands_keywords_on():
    assert make_env("toys:Count", k=9, start=4).reset()["observation"].item() == 4
    env = make_env("toys:Count", num_envs=2, num_processes=0, start=4)
    assert flat(env.reset()) == [4, 4]
    env.close()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        pytest.param(lambda: make_env("CartPole-v1", num_processes=2), "give num_envs too", id="processes"),
        pytest.param(lambda: make_env(toys.Count(), num_envs=2), "needs a factory", id="made, batch"),
        pytest.param(lambda: make_env(toys.Count(), k=2), "k cannot be given", id="made, keywords"),
        pytest.param(lambda: make_env(3), "int is neither", id="number"),
        pytest.param(lambda: make_env(toys.not_an_env), "the factory made str", id="text"),
    ],
)
def test_make_env_says_what_is_wrong(call, message):
    with pytest.raises(TypeError, match=message):
        call()


def test_adapters_load_only_what_is_used():
    code = (
        "import sys\n"
        "from rollout_worker.envs import make_env, TorchRLEnv, PettingZooEnv\n"
        "make_env('CartPole-v1').reset()\n"
        "print(sorted({'torchrl', 'pettingzoo', 'envpool'} & set(sys.modules)))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=150
    )
    assert ran.stdout.strip() == "[]"


def test_infos_of_plain_numbers_are_encoded():
    env = GymEnv(toys_gym.Informed(), infos={"lives": Unbounded((1,), dtype=torch.float64)})
    assert np.allclose(env.reset()["lives"].numpy(), [3.0])


# -- adapted environments in batches -----------------------------------------------------------------------------------


def vector_of_counts() -> Any:
    return SyncVectorEnv(COUNTS)


def pool() -> Any:
    import envpool

    return envpool.make("Pendulum-v1", env_type="gymnasium", num_envs=2, seed=1)


ADAPTED = {
    "vector": vector_of_counts,
    "envpool": pool,
    "agents": functools.partial(toys_agents.Walkers),
    "torchrl": torchrl_pendulum,
}


@pytest.fixture(params=ADAPTED)
def adapted(request):
    """A factory of an environment that goes through an adapter."""
    if request.param in ("envpool", "torchrl"):
        pytest.importorskip(request.param)
    return ADAPTED[request.param]


def still(td):
    """Actions that do nothing, of whatever kind."""
    for key in td.keys(True, True):
        if (key if isinstance(key, str) else key[-1]) == "action":
            td.set(key, torch.zeros_like(td.get(key)))
    return td


@pytest.mark.filterwarnings("ignore:.*precision lowered")
@pytest.mark.parametrize("meta_data", [None, "workers"])
def test_adapted_environments_are_the_same_in_processes(adapted, meta_data):
    """Whole episodes, with their ends, by one seed: in this process, and in children that were looked at or not."""
    serial = SerialEnv(2, adapted)
    env = ParallelEnv(2, adapted, num_processes=2, mp_start_method="fork", meta_data=meta_data)
    seen = []
    for each in (serial, env):
        if adapted is not pool:  # an EnvPool has its seed from its constructor, and warns of any other
            each.set_seed(5)
        td, frames = each.reset(), []
        for _ in range(8):
            stepped, td = each.step_and_maybe_reset(still(each.rand_action(td)))
            frames.append(stepped.clone())
        seen.append(torch.stack(frames))
        each.close()
    assert env.observation_spec == serial.observation_spec
    assert (seen[0] == seen[1]).all()


@pytest.mark.filterwarnings("ignore:.*precision lowered")
@pytest.mark.probe("P-08")
def test_adapted_environments_whose_process_is_killed(adapted):
    with ParallelEnv(
        2, adapted, num_processes=2, mp_start_method="fork", on_env_error="restart", meta_data="workers"
    ) as env:
        td = env.rand_action(env.reset())
        os.kill(env.vector.pids[1], signal.SIGKILL)
        stepped, td = env.step_and_maybe_reset(td)
        valid = stepped["next", "valid"].reshape(2, -1).all(1).tolist()
        assert valid == [True, False]
        assert stepped["next", "truncated"][1].all()
        stepped, _ = env.step_and_maybe_reset(env.rand_action(td))
        assert stepped["next", "valid"].all()
        assert env.effort.restarts == (0, 1)
