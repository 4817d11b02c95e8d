"""The peers of the environment and collector tables, each behind the harness' `Case`.

Imports stay inside the functions: a peer that is not installed becomes a row that says so.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from benchmarks.harness import Work

STEPS_PER_PORTION = 64


def _stepped(envs: Any, actions: Sequence[Any], num_envs: int) -> Iterator[Work]:
    """The work of a vector environment: a step with each of the actions. Closed at the end."""

    def work() -> int:
        for action in actions:
            envs.step(action)
        return num_envs * len(actions)

    try:
        yield work
    finally:
        envs.close()


@contextmanager
def gymnasium_vector(env_name: str, num_envs: int, mode: str) -> Iterator[Work]:
    """`gymnasium.make_vec` with `sync` or `async` vectorisation and random actions drawn beforehand."""
    import gymnasium

    envs = gymnasium.make_vec(env_name, num_envs=num_envs, vectorization_mode=mode)
    envs.reset(seed=0)
    envs.action_space.seed(0)
    actions = [envs.action_space.sample() for _ in range(STEPS_PER_PORTION)]

    yield from _stepped(envs, actions, num_envs)


@contextmanager
def stable_baselines(env_name: str, num_envs: int, kind: str) -> Iterator[Work]:
    """Stable-Baselines3's `DummyVecEnv` or `SubprocVecEnv`."""
    import numpy as np
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

    vec_class = {"dummy": DummyVecEnv, "subproc": SubprocVecEnv}[kind]
    envs = make_vec_env(env_name, n_envs=num_envs, seed=0, vec_env_cls=vec_class)
    envs.reset()
    actions = [
        np.array([envs.action_space.sample() for _ in range(num_envs)]) for _ in range(STEPS_PER_PORTION)
    ]

    yield from _stepped(envs, actions, num_envs)


@contextmanager
def envpool(env_name: str, num_envs: int) -> Iterator[Work]:
    """EnvPool: environments in C++ threads."""
    import envpool as pool
    import numpy as np

    envs = pool.make_gymnasium(env_name, num_envs=num_envs, seed=0)
    envs.reset()
    actions = [
        np.array([envs.action_space.sample() for _ in range(num_envs)]) for _ in range(STEPS_PER_PORTION)
    ]

    yield from _stepped(envs, actions, num_envs)


def _torchrl_env(env_name: str) -> Callable[[], Any]:
    from torchrl.envs import GymEnv

    return lambda: GymEnv(env_name, categorical_action_encoding=True)


def _torchrl_vector(env_name: str, num_envs: int, kind: str) -> Any:
    from torchrl.envs import ParallelEnv, SerialEnv

    cls = {"serial": SerialEnv, "parallel": ParallelEnv}[kind]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        keywords = {"mp_start_method": "fork"} if kind == "parallel" else {}
        return cls(num_envs, _torchrl_env(env_name), **keywords)


@contextmanager
def torchrl_envs(env_name: str, num_envs: int, kind: str) -> Iterator[Work]:
    """TorchRL's SerialEnv or ParallelEnv: `step(td)`, reset where done, tensordicts in and out."""
    envs = _torchrl_vector(env_name, num_envs, kind)
    data = envs.rand_action(envs.reset())

    def work() -> int:
        nonlocal data
        for _ in range(STEPS_PER_PORTION // 8):
            _, data = envs.step_and_maybe_reset(data)
            data = envs.rand_action(data)
        return num_envs * (STEPS_PER_PORTION // 8)

    try:
        yield work
    finally:
        envs.close()


@contextmanager
def torchrl_rollouts(env_name: str, num_envs: int, kind: str, num_steps: int) -> Iterator[Work]:
    """TorchRL's `rollout` with random actions, going on where episodes end."""
    envs = _torchrl_vector(env_name, num_envs, kind)
    envs.reset()
    try:
        yield lambda: int(envs.rollout(num_steps, break_when_any_done=False).numel())
    finally:
        envs.close()


def mlp(num_inputs: int, num_outputs: int) -> Any:
    """The policy network of the collector tables: two hidden layers of 64."""
    from torch import nn

    return nn.Sequential(
        nn.Linear(num_inputs, 64),
        nn.Tanh(),
        nn.Linear(64, 64),
        nn.Tanh(),
        nn.Linear(64, num_outputs),
        nn.Tanh(),
    )


@contextmanager
def torchrl_collector(
    env_name: str, num_envs: int, *, kind: str, frames_per_batch: int, with_policy: bool
) -> Iterator[Work]:
    """TorchRL's `Collector` over its SerialEnv or ParallelEnv, with an MLP or the random policy."""
    from tensordict.nn import TensorDictModule
    from torchrl.collectors import Collector

    envs = _torchrl_vector(env_name, num_envs, kind)
    policy = None
    if with_policy:
        network = mlp(envs.observation_spec["observation"].shape[-1], envs.action_spec.shape[-1])
        policy = TensorDictModule(network, in_keys=["observation"], out_keys=["action"])
    collector = Collector(envs, policy, frames_per_batch=frames_per_batch, total_frames=-1)
    batches = iter(collector)

    def work() -> int:
        return int(next(batches).numel())

    try:
        yield work
    finally:
        collector.shutdown()
