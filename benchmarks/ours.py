"""The product's rows of the environment and collector tables."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.harness import Work
from benchmarks.peers import STEPS_PER_PORTION, mlp


@contextmanager
def tensordict_envs(env_name: str, num_envs: int, kind: str) -> Iterator[Work]:
    """`step_and_maybe_reset(td)` of our SerialEnv or ParallelEnv: tensordicts in and out, random actions as the peer's."""
    from rollout_worker.envs import GymEnv, ParallelEnv, SerialEnv

    cls = {"serial": SerialEnv, "parallel": ParallelEnv}[kind]
    envs: Any = cls(num_envs, GymEnv, create_env_kwargs={"env_name": env_name})
    data = envs.rand_action(envs.reset())

    def work() -> int:
        nonlocal data
        for _ in range(STEPS_PER_PORTION):
            _, data = envs.step_and_maybe_reset(data)
            data = envs.rand_action(data)
        return num_envs * STEPS_PER_PORTION

    try:
        yield work
    finally:
        envs.close()


@contextmanager
def rollouts(env_name: str, num_envs: int, kind: str, num_steps: int) -> Iterator[Work]:
    """`rollout(num_steps)` of our SerialEnv or ParallelEnv with random actions, going on where episodes end."""
    from rollout_worker.envs import GymEnv, ParallelEnv, SerialEnv

    cls = {"serial": SerialEnv, "parallel": ParallelEnv}[kind]
    envs: Any = cls(num_envs, GymEnv, create_env_kwargs={"env_name": env_name})
    envs.reset()
    try:
        yield lambda: int(envs.rollout(num_steps, break_when_any_done=False).numel())
    finally:
        envs.close()


@contextmanager
def pictures(num_envs: int, kind: str) -> Iterator[Work]:
    """`step(td)` over environments that give 84 x 84 x 4 bytes and take 0.3 ms; kind `alone`: those environments and nothing
    else, one after the other on as many processors as there are."""
    from benchmarks.picture_env import Pictures, alone

    if kind == "alone":
        yield alone(num_envs)
        return
    from rollout_worker.envs import ParallelEnv

    envs: Any = ParallelEnv(num_envs, Pictures)
    data = envs.rand_action(envs.reset())

    def work() -> int:
        for _ in range(STEPS_PER_PORTION):
            envs.step(data)
        return num_envs * STEPS_PER_PORTION

    try:
        yield work
    finally:
        envs.close()


@contextmanager
def collector(
    env_name: str, num_envs: int, *, num_processes: int, frames_per_batch: int, with_policy: bool
) -> Iterator[Work]:
    """The synchronous collector, with an MLP or the random policy."""
    making = made_collector(env_name, num_envs, num_processes, frames_per_batch, with_policy=with_policy)
    with making as made:
        yield lambda: made.collect(frames_per_batch).frames


@contextmanager
def made_collector(
    env_name: str, num_envs: int, num_processes: int, frames_per_batch: int, *, with_policy: bool
) -> Iterator[Any]:
    """A collector over environments that are reset."""
    import torch

    from rollout_worker.collectors.sync import SyncCollector, leaves_of
    from rollout_worker.collectors.trajectories import TrajectoryIds
    from rollout_worker.envs import open_envs
    from rollout_worker.policy import open_policy

    with open_envs(
        "rollout_worker.envs:GymEnv",
        kwargs={"env_name": env_name},
        num_envs=num_envs,
        num_steps=1,
        num_processes=num_processes,
    ) as envs:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        policy = open_policy(
            _policy_for(envs) if with_policy else None,
            observation_spec=envs.specs.observation,
            action_spec=envs.specs.full_action,
            num_envs=num_envs,
        )
        envs.remap(num_steps=frames_per_batch // num_envs, extra_leaves=leaves_of(policy))
        made = SyncCollector(envs, policy, trajectories=TrajectoryIds(num_envs))
        made.reset(list(range(num_envs)))
        try:
            yield made
        finally:
            torch.set_num_threads(threads)


def _policy_for(envs: Any) -> Any:
    width = envs.observation_spec["observation"].shape[-1]
    network = mlp(width, envs.action_spec.shape[-1])

    def act(observation: Any) -> Any:
        return network(observation)

    return act
