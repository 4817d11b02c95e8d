"""SerialEnv: several environments as one, stepped one after the other in the caller's process."""

from __future__ import annotations

from typing import Any

from rollout_worker.envs.batched import BatchedEnv
from rollout_worker.envs.host_serial import SerialHost


class SerialEnv(BatchedEnv):
    """The plain twin of `ParallelEnv`: the same results without processes.

    `SerialEnv(4, partial(GymEnv, "CartPole-v1"))`. `create_env_fn` is one factory or one per environment,
    `create_env_kwargs` likewise; each environment gets its own copy of what they hold. Gradients flow through
    environments of ours. See `BatchedEnv` for the other keywords; those that concern processes have no effect.
    """

    _in_process = True
    _no_settings = frozenset({"mp_start_method", "auto_wrap_envs"})

    def _make_host(self) -> SerialHost:
        return SerialHost()

    def _passed_on(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return args
