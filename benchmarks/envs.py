"""`python -m benchmarks.envs`: batched environments beside TorchRL, gymnasium, Stable-Baselines3, EnvPool and the floor."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from benchmarks import ours, peers
from benchmarks.floor import floor
from benchmarks.harness import Case, Table, run

CARTPOLE = "CartPole-v1"

ROLLOUT = 100


def tables() -> Iterator[Table]:
    """Steps with tensordicts in and out, and whole batches with random actions."""
    yield Table(
        f"{CARTPOLE}, 8 environments, step by step",
        "steps",
        "ParallelEnv",
        [
            Case("ParallelEnv", partial(ours.tensordict_envs, CARTPOLE, 8, "parallel")),
            Case("SerialEnv", partial(ours.tensordict_envs, CARTPOLE, 8, "serial")),
            Case("TorchRL ParallelEnv", partial(peers.torchrl_envs, CARTPOLE, 8, "parallel")),
            Case("TorchRL SerialEnv", partial(peers.torchrl_envs, CARTPOLE, 8, "serial")),
            Case("gymnasium async", partial(peers.gymnasium_vector, CARTPOLE, 8, "async")),
            Case("gymnasium sync", partial(peers.gymnasium_vector, CARTPOLE, 8, "sync")),
            Case("Stable-Baselines3 subproc", partial(peers.stable_baselines, CARTPOLE, 8, "subproc")),
            Case("Stable-Baselines3 dummy", partial(peers.stable_baselines, CARTPOLE, 8, "dummy")),
            Case("EnvPool", partial(peers.envpool, CARTPOLE, 8)),
            Case("floor", partial(floor, CARTPOLE, 8)),
        ],
    )
    yield Table(
        f"{CARTPOLE}, 8 environments, rollouts of {ROLLOUT} steps with random actions",
        "frames",
        "ParallelEnv",
        [
            Case("ParallelEnv", partial(ours.rollouts, CARTPOLE, 8, "parallel", ROLLOUT)),
            Case("SerialEnv", partial(ours.rollouts, CARTPOLE, 8, "serial", ROLLOUT)),
            Case("TorchRL ParallelEnv", partial(peers.torchrl_rollouts, CARTPOLE, 8, "parallel", ROLLOUT)),
            Case("TorchRL SerialEnv", partial(peers.torchrl_rollouts, CARTPOLE, 8, "serial", ROLLOUT)),
            Case("floor", partial(floor, CARTPOLE, 8)),
        ],
    )
    yield Table(
        "84 x 84 x 4 bytes, 8 environments of 0.3 ms a step",
        "steps",
        "ParallelEnv",
        [
            Case("ParallelEnv", partial(ours.pictures, 8, "parallel")),
            Case("the environments alone", partial(ours.pictures, 8, "alone")),
        ],
    )


if __name__ == "__main__":
    run("Batched environments beside their peers.", tables)
