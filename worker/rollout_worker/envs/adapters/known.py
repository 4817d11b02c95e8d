"""Finds the adapter of an environment that another library made. No library is loaded to find out."""

from __future__ import annotations

import sys
from typing import Any

from rollout_worker.envs.base import EnvBase


def adapted(env: Any) -> EnvBase | None:
    """An environment of any library that is known here, as one of ours; None for what is none."""
    if isinstance(env, EnvBase):
        return env
    if _is_one(env, "torchrl.envs", "EnvBase"):
        from rollout_worker.envs.adapters.torchrl import TorchRLEnv

        return TorchRLEnv(env)
    if _is_one(env, "gymnasium.vector", "VectorEnv"):  # an EnvPool is a gymnasium.Env too
        from rollout_worker.envs.adapters.vector import GymVectorEnv

        return GymVectorEnv(env)
    if _is_one(env, "gymnasium", "Env"):
        from rollout_worker.envs.gym import GymEnv

        return GymEnv(env)
    if _is_one(env, "pettingzoo", "ParallelEnv") or _is_one(env, "pettingzoo.utils.env", "ParallelEnv"):
        from rollout_worker.envs.adapters.pettingzoo import PettingZooEnv

        return PettingZooEnv(env)
    return None


def _is_one(value: Any, module_name: str, class_name: str) -> bool:
    """isinstance without importing: a value's class cannot come from a module that is not loaded."""
    kind = getattr(sys.modules.get(module_name), class_name, None)
    return isinstance(kind, type) and isinstance(value, kind)
