"""SerialEnv: several environments as one, stepped one after the other in the caller's process."""

from __future__ import annotations

from collections.abc import Sequence

from rollout_worker.envs.batched import BatchedEnv
from rollout_worker.envs.factory import Recipe
from rollout_worker.envs.vector import VectorEnv
from rollout_worker.envs.vector_parts import VectorSettings
from rollout_worker.envs.vector_serial import SerialVector


class SerialEnv(BatchedEnv):
    """The plain twin of `ParallelEnv`: the same results without processes.

    `SerialEnv(4, lambda: GymEnv("CartPole-v1"))`. `create_env_fn` is one factory or one per environment,
    `create_env_kwargs` likewise; each environment gets its own copy of what they hold.
    """

    def _make_vector(self, recipes: Sequence[Recipe], settings: VectorSettings) -> VectorEnv:
        return SerialVector(recipes, settings)
