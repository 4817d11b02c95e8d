"""GymEnv: a gymnasium environment with tensordicts in and out.

Inside a vector env it costs nothing: its session is the gymnasium environment itself, and a factory that is
`GymEnv` or a partial of it is recognised before torch would be loaded (`factory`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from tensordict import NonTensorData, TensorDict, TensorDictBase

from rollout_worker.envs.base import EnvBase
from rollout_worker.envs.describe import OBJECT, Leaves, Path
from rollout_worker.envs.native import GymnasiumSession, action_reader, gymnasium_env
from rollout_worker.envs.spec_leaves import Device
from rollout_worker.envs.specs import EnvSpecs
from rollout_worker.envs.writing import fitted


class GymEnv(EnvBase):
    """`GymEnv("CartPole-v1", **kwargs)` makes the environment with `gymnasium.make`; `GymEnv(env)` takes one
    that is made.

    A Dict observation's entries stand at the root, any other observation is `observation`; dtypes are the
    space's. Discrete actions are category numbers (int64). The reward is cast to float32, shape `[1]`; flags
    are bool, shape `[1]`. Infos are dropped.
    """

    def __init__(self, env_name: Any, *, device: Device = None, **kwargs: Any) -> None:
        super().__init__(device=device)
        env = gymnasium_env(env_name, **kwargs) if isinstance(env_name, str) else env_name
        if kwargs and env is env_name:
            raise TypeError(
                f"GymEnv: {', '.join(kwargs)} cannot be given to an environment that is made already"
            )
        self.env = env
        self._session = GymnasiumSession(env)
        self._read_action = action_reader(self._session.description)
        specs = EnvSpecs.of(self._session.description)
        self.observation_spec = specs.observation
        self.full_action_spec = specs.full_action

    def _reset(self, td: TensorDictBase | None, **kwargs: Any) -> TensorDictBase:
        return self._tensordict(self._session.reset(None))

    def _step(self, td: TensorDictBase) -> TensorDictBase:
        arrays = {}
        for key, _ in self._session.description.action:
            arrays[key] = td.get(key).detach().cpu().numpy()[None, None]
        observation, reward, terminated, truncated, _ = self._session.step(self._read_action(arrays, 0)[0])
        following = self._tensordict(observation)
        following.set("reward", torch.tensor([float(reward)], device=self.device))
        following.set("terminated", torch.tensor([bool(terminated)], device=self.device))
        following.set("truncated", torch.tensor([bool(truncated)], device=self.device))
        return following

    def _set_seed(self, seed: int | None) -> None:
        if seed is not None:
            self._session.seed(seed)

    def _tensordict(self, observation: Any) -> TensorDictBase:
        description = self._session.description
        made = TensorDict({}, batch_size=(), device=self.device)
        for key, value in _values(observation, description.observation, description.paths):
            made.set(key, value)
        return made

    def native_session(self) -> GymnasiumSession:
        """The gymnasium environment, called directly."""
        return self._session

    def close(self, *, raise_if_closed: bool = True) -> None:
        """Close the gymnasium environment."""
        self._session.close()

    def __repr__(self) -> str:
        return f"GymEnv({self._session.description.name})"


def _values(observation: Any, leaves: Leaves, paths: tuple[Path, ...]) -> list[tuple[Any, Any]]:
    """The leaves of an observation, each a tensor of its own memory, or non-tensor data."""
    found: list[tuple[Any, Any]] = []
    for (key, spec), path in zip(leaves, paths, strict=True):
        value = observation
        for name in path:
            value = value[name]
        if spec.dtype == OBJECT:
            found.append((key, NonTensorData(value)))
        else:
            found.append(
                (key, torch.from_numpy(np.array(fitted(value, key, spec), dtype=spec.dtype, copy=True)))
            )
    return found
