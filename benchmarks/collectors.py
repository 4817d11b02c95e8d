"""`python -m benchmarks.collectors`: collectors beside TorchRL's, and the random policy beside the floor."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from benchmarks import ours, peers
from benchmarks.floor import floor
from benchmarks.harness import Case, Table, run

CARTPOLE, PENDULUM = "CartPole-v1", "Pendulum-v1"


def tables() -> Iterator[Table]:
    """The random policy over 32 environments, and an MLP policy over 8."""
    random = partial(ours.collector, CARTPOLE, 32, frames_per_batch=4096, with_policy=False)
    yield Table(
        f"{CARTPOLE}, 32 environments, random policy",
        "frames",
        "collector, 2 processes",
        [
            Case("collector, 2 processes", partial(random, num_processes=2)),
            Case("collector, serial", partial(random, num_processes=0)),
            Case("floor", partial(floor, CARTPOLE, 32)),
            Case("gymnasium async", partial(peers.gymnasium_vector, CARTPOLE, 32, "async")),
            Case("EnvPool", partial(peers.envpool, CARTPOLE, 32)),
        ],
    )
    acting = partial(ours.collector, PENDULUM, 8, frames_per_batch=1024, with_policy=True)
    torchrl = partial(peers.torchrl_collector, PENDULUM, 8, frames_per_batch=1024, with_policy=True)
    yield Table(
        f"{PENDULUM}, 8 environments, MLP policy",
        "frames",
        "collector, 2 processes",
        [
            Case("collector, 2 processes", partial(acting, num_processes=2)),
            Case("collector, serial", partial(acting, num_processes=0)),
            Case("TorchRL over ParallelEnv", partial(torchrl, kind="parallel")),
            Case("TorchRL over SerialEnv", partial(torchrl, kind="serial")),
        ],
    )


if __name__ == "__main__":
    run("Collectors beside their peers.", tables)
