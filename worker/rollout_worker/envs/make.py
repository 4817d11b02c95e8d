"""make_env: one door to all environments, which picks the fast way through."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from rollout_worker.entrypoints import resolve
from rollout_worker.envs.adapters.known import adapted
from rollout_worker.envs.base import EnvBase
from rollout_worker.envs.gym import GymEnv


def make_env(
    what: Any, *, num_envs: int | None = None, num_processes: int | None = None, **kwargs: Any
) -> EnvBase:
    """An environment, or with `num_envs` a batch of them `[num_envs]`, with tensordicts in and out.

    `what` is the name of a gymnasium environment (`"CartPole-v1"`), an entrypoint `pkg.mod:attr`, a factory, or,
    without `num_envs`, an environment of gymnasium, TorchRL or PettingZoo that is made already. `kwargs` go to
    whatever makes the environment. A batch is a `ParallelEnv` over `num_processes` children (None: one per
    processor), or with 0 a `SerialEnv`. Children step plain gymnasium environments straight into the batch's
    memory, without tensordicts and without loading torch.

    Raises TypeError for what makes no environment; what the environment's constructor raises.
    """
    if num_envs is None:
        if num_processes is not None:
            raise TypeError("num_processes is for a batch of environments: give num_envs too")
        return _single(what, kwargs)
    if not isinstance(what, str) and not callable(what):
        raise TypeError(
            f"a batch needs a factory or a name, not {type(what).__name__}: every row is an environment of its own"
        )
    from rollout_worker.envs.parallel import ParallelEnv
    from rollout_worker.envs.serial import SerialEnv

    factory = functools.partial(GymEnv, what) if isinstance(what, str) and ":" not in what else what
    if num_processes == 0:
        return SerialEnv(num_envs, factory, create_env_kwargs=kwargs)
    return ParallelEnv(num_envs, factory, create_env_kwargs=kwargs, num_processes=num_processes)


def _single(what: Any, kwargs: dict[str, Any]) -> EnvBase:
    if isinstance(what, str) and ":" not in what:
        return GymEnv(what, **kwargs)
    found = None if isinstance(what, (str, type)) else adapted(what)
    if found is not None:
        if kwargs:
            raise TypeError(f"{', '.join(kwargs)} cannot be given to an environment that is made already")
        return found
    factory: Callable[..., Any] = (
        resolve(what, field="the environment's entrypoint") if isinstance(what, str) else what
    )
    if not callable(factory):
        raise TypeError(f"{type(what).__name__} is neither an environment nor something that makes one")
    made = factory(**kwargs)
    found = adapted(made)
    if found is None:
        raise TypeError(f"the factory made {type(made).__name__}, which is no environment that is known here")
    return found
