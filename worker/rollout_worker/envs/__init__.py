"""Environments: made in child processes, stepped straight into the block of the batch.

Two doors, over one machinery:

* `ParallelEnv`, `SerialEnv`, `GymEnv`, `EnvBase` and the spec classes: environments with tensordicts in and
  out,
  under the names that TorchRL users know.
* `open_envs(...)`: what a collector uses. It gives a running `VectorEnv` over blocks `[num_envs, num_steps]`:

      with open_envs("my_envs:make", num_envs=32, num_steps=64, num_blocks=2) as envs:
          envs.reset(seeds)                         # the first observations wait in the carry
          block = envs.blocks[0]
          envs.begin(0)                             # carry -> root of frame 0
          for step in range(64):                    # closed loop: one wake-up per process and step
              observation = block.tensors["observation",][:, step]
              block.tensors["action",][:, step] = policy(observation)
              envs.step(0, step)                    # next of this frame, root of the following one
          ended = envs.episodes(0)                  # env_index, step, returns, lengths
          for key, dtype, shape, view in block.leaves():
              ...                                   # raw buffers, in the layout's order

  An open loop (random actions) writes all actions of a block first and then calls `envs.step_range(0, 0,
  64)`: one wake-up per process and batch. `begin_step` and `finish_step` are its two halves, so that another
  block can be sent meanwhile. `cut(block, step, seeds)` ends a seed epoch.

Importing this package loads neither torch nor gymnasium; the names below load what they need when first asked
for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rollout_worker.envs.adapters.pettingzoo import PettingZooEnv as PettingZooEnv
    from rollout_worker.envs.adapters.torchrl import TorchRLEnv as TorchRLEnv
    from rollout_worker.envs.adapters.vector import GymVectorEnv as GymVectorEnv
    from rollout_worker.envs.base import EnvBase as EnvBase
    from rollout_worker.envs.batched import Ready as Ready
    from rollout_worker.envs.check import EnvSpecFaults as EnvSpecFaults
    from rollout_worker.envs.check import check_env_specs as check_env_specs
    from rollout_worker.envs.env_creator import EnvCreator as EnvCreator
    from rollout_worker.envs.gym import GymEnv as GymEnv
    from rollout_worker.envs.layout import BlockLayout as BlockLayout
    from rollout_worker.envs.layout import Leaf as Leaf
    from rollout_worker.envs.make import make_env as make_env
    from rollout_worker.envs.metadata import EnvMetaData as EnvMetaData
    from rollout_worker.envs.opening import open_envs as open_envs
    from rollout_worker.envs.parallel import ParallelEnv as ParallelEnv
    from rollout_worker.envs.reports import MetaDataMismatch as MetaDataMismatch
    from rollout_worker.envs.serial import SerialEnv as SerialEnv
    from rollout_worker.envs.specs import Binary as Binary
    from rollout_worker.envs.specs import Bounded as Bounded
    from rollout_worker.envs.specs import Categorical as Categorical
    from rollout_worker.envs.specs import Composite as Composite
    from rollout_worker.envs.specs import MultiCategorical as MultiCategorical
    from rollout_worker.envs.specs import MultiOneHot as MultiOneHot
    from rollout_worker.envs.specs import NonTensor as NonTensor
    from rollout_worker.envs.specs import OneHot as OneHot
    from rollout_worker.envs.specs import Spec as Spec
    from rollout_worker.envs.specs import Stacked as Stacked
    from rollout_worker.envs.specs import StackedComposite as StackedComposite
    from rollout_worker.envs.specs import Unbounded as Unbounded
    from rollout_worker.envs.specs import stack_specs as stack_specs
    from rollout_worker.envs.transforms.base import Compose as Compose
    from rollout_worker.envs.transforms.base import Transform as Transform
    from rollout_worker.envs.transforms.env import TransformedEnv as TransformedEnv
    from rollout_worker.envs.transforms.steps import ActionMask as ActionMask
    from rollout_worker.envs.transforms.steps import InitTracker as InitTracker
    from rollout_worker.envs.transforms.steps import RewardSum as RewardSum
    from rollout_worker.envs.transforms.steps import StepCounter as StepCounter
    from rollout_worker.envs.vector import VectorEnv as VectorEnv
    from rollout_worker.envs.vector_parts import Effort as Effort
    from rollout_worker.envs.vector_parts import Episodes as Episodes

_HOMES = {
    "SerialEnv": "serial",
    "ParallelEnv": "parallel",
    "GymEnv": "gym",
    "EnvBase": "base",
    "BlockLayout": "layout",
    "Leaf": "layout",
    "Binary": "specs",
    "Bounded": "specs",
    "Categorical": "specs",
    "Composite": "specs",
    "MultiCategorical": "specs",
    "MultiOneHot": "specs",
    "NonTensor": "specs",
    "OneHot": "specs",
    "Spec": "specs",
    "Unbounded": "specs",
    "Effort": "vector_parts",
    "EnvMetaData": "metadata",
    "Episodes": "vector_parts",
    "MetaDataMismatch": "reports",
    "VectorEnv": "vector",
    "open_envs": "opening",
    "GymVectorEnv": "adapters.vector",
    "TorchRLEnv": "adapters.torchrl",
    "PettingZooEnv": "adapters.pettingzoo",
    "make_env": "make",
    "EnvCreator": "env_creator",
    "Ready": "batched",
    "Stacked": "specs",
    "StackedComposite": "specs",
    "stack_specs": "specs",
    "TransformedEnv": "transforms.env",
    "Transform": "transforms.base",
    "Compose": "transforms.base",
    "StepCounter": "transforms.steps",
    "RewardSum": "transforms.steps",
    "InitTracker": "transforms.steps",
    "ActionMask": "transforms.steps",
    "check_env_specs": "check",
    "EnvSpecFaults": "check",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{home}"), name)
