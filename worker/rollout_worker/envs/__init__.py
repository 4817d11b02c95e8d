"""Environments: made in child processes, stepped straight into the block of the batch.

Two doors, over one machinery:

* `ParallelEnv`, `SerialEnv`, `GymEnv`, `EnvBase` and the spec classes: environments with tensordicts in and
  out, under the names
  that TorchRL users know.
* `open_envs(...)`: what a collector uses. It gives a `VectorEnv` over a layout of `[num_envs, num_steps]`
  blocks:

      with open_envs("rollout_worker.envs:GymEnv", kwargs={"env_name": "CartPole-v1"}, num_envs=32,
      num_steps=64) as envs:
          envs.reset(seeds)                      # roots wait in the carry
          block = envs.blocks[0]
          envs.begin(block.index)                # carry -> root of frame 0
          for step in range(64):                 # closed loop: one wake-up per process and step
              block.arrays["action",][:, step] = policy(block.arrays["observation",][:, step])
              envs.step(block.index, step)       # fills next of this frame and the root of the following one
          # open loop: write all actions, then envs.step_range(block.index, 0, 64): one wake-up per process
          and batch ended = envs.episodes(block.index)     # finished episodes: env, step, return, length for
          key, dtype, shape, view in block.leaves(): ...     # raw buffers, in the layout's order

Importing this package loads neither torch nor gymnasium; the names below load what they need when first asked
for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rollout_worker.envs.layout import BlockLayout as BlockLayout
    from rollout_worker.envs.layout import Leaf as Leaf
    from rollout_worker.envs.vector import Episodes as Episodes
    from rollout_worker.envs.vector import VectorEnv as VectorEnv
    from rollout_worker.envs.vector import open_envs as open_envs

_HOMES = {
    "BlockLayout": "layout",
    "Leaf": "layout",
    "Episodes": "vector",
    "VectorEnv": "vector",
    "open_envs": "vector",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{home}"), name)
