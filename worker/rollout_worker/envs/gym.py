"""GymEnv: a gymnasium environment with tensordicts in and out.

Inside a vector env it costs nothing where it adds nothing: its session is the gymnasium environment itself, and a
factory that is `GymEnv` or a partial of it is recognised before torch would be loaded (`factory`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase

from rollout_worker.envs.adapters.values import ActionCoder, info_leaves, leaves_of, one_number, sampled
from rollout_worker.envs.autoreset import ordinary
from rollout_worker.envs.base import EnvBase
from rollout_worker.envs.describe import describe_gymnasium
from rollout_worker.envs.native import GymnasiumSession, Session, gymnasium_env
from rollout_worker.envs.spec_leaves import Device
from rollout_worker.envs.specs import Bounded, Composite, EnvSpecs, Spec, flat_key

PIXELS = "pixels"


class GymEnv(EnvBase):
    """`GymEnv("CartPole-v1", **kwargs)` makes the environment with `gymnasium.make`; `GymEnv(env)` takes one
    that is made.

    A Dict observation's entries stand at the root, any other observation is `observation`; dtypes and shapes are
    the space's. Text, Sequence, Graph and OneOf are non-tensor entries. The reward is cast to float32, shape `[1]`;
    flags are bool, shape `[1]`. An environment that resets itself is kept from it: every frame is a real transition.

    * `categorical_action_encoding`: Discrete actions are category numbers (int64, the default), or, with False,
      one-hot vectors (bool, `[n]`); MultiDiscrete ones likewise.
    * `infos`: specs of the infos to keep, by key (a tuple walks nested infos); they become observations. What an
      info lacks is the spec's zero. `infos={"action_mask": Binary(4, dtype=torch.bool)}` keeps a mask.
    * `from_pixels`: render after every step into `pixels` (uint8 `[height, width, 3]`), alone or, with
      `pixels_only=False`, beside the observation.

    Raises TypeError for a space without a spec and for keywords given to an environment that is made already,
    ValueError for keys that the tensordict needs itself.
    """

    def __init__(
        self,
        env_name: Any,
        *,
        device: Device = None,
        categorical_action_encoding: bool = True,
        infos: Mapping[Any, Spec] | None = None,
        from_pixels: bool = False,
        pixels_only: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(device=device)
        self.env = ordinary(_made(env_name, from_pixels, kwargs))
        self._description = describe_gymnasium(self.env)
        self._is_plain = categorical_action_encoding and not infos and not from_pixels
        self._actions = ActionCoder(self._description, is_one_hot=not categorical_action_encoding)
        self._infos = {flat_key(key): spec for key, spec in (infos or {}).items()}
        self._next_seed: int | None = None
        self._pixels = (from_pixels, pixels_only)
        specs = EnvSpecs.of(self._description)
        self.full_action_spec = self._actions.specs()
        self.observation_spec = self._with_pixels(self._with_infos(specs.observation))

    def _with_infos(self, observation: Composite) -> Composite:
        for key, spec in self._infos.items():
            if key in observation:
                raise ValueError(
                    f"the info {key!r} has the name of an observation; the environment gives both"
                )
            observation[key] = spec
        return observation

    def _with_pixels(self, observation: Composite) -> Composite:
        wanted, alone = self._pixels
        if not wanted:
            return observation
        self.env.reset()
        frame = Bounded(0, 255, self._rendered().shape, dtype=torch.uint8)
        kept: Mapping[Any, Spec] = {} if alone else dict(observation.items())
        infos = {key: observation[key] for key in self._infos} if alone else {}
        return Composite({**kept, **infos, PIXELS: frame})

    def _reset(self, td: TensorDictBase | None, **kwargs: Any) -> TensorDictBase:
        seed, self._next_seed = self._next_seed, None
        observation, info = self.env.reset(**{"seed": seed, **kwargs})
        return self._tensordict(observation, info)

    def _step(self, td: TensorDictBase) -> TensorDictBase:
        observation, reward, terminated, truncated, info = self.env.step(self._actions.decoded(td))
        following = self._tensordict(observation, info)
        following.set("reward", torch.tensor([one_number(reward)], device=self.device))
        following.set("terminated", torch.tensor([bool(terminated)], device=self.device))
        following.set("truncated", torch.tensor([bool(truncated)], device=self.device))
        return following

    def _set_seed(self, seed: int | None) -> None:
        """Gymnasium seeds an environment by resetting it, so the seed waits for the next reset."""
        self._next_seed = seed

    def _tensordict(self, observation: Any, info: Mapping[str, Any]) -> TensorDictBase:
        made: TensorDictBase = TensorDict({}, batch_size=(), device=self.device)
        wanted, alone = self._pixels
        if not (wanted and alone):
            for key, value in leaves_of(observation, self._description.observation, self._description.paths):
                made.set(key, value)
        for key, value in info_leaves(info, self._infos):
            made.set(key, value)
        return made.set(PIXELS, self._rendered()) if wanted else made

    def _rendered(self) -> torch.Tensor:
        frame = self.env.render()
        if not isinstance(frame, np.ndarray):
            raise TypeError(
                f"render gave {type(frame).__name__}; from_pixels needs an environment whose render_mode is 'rgb_array'"
            )
        return torch.from_numpy(np.array(frame, dtype=np.uint8))

    def rand_action(self, td: TensorDictBase | None = None) -> TensorDictBase:
        """Put a random action into `td` (or a new tensordict). Actions that are no tensors come from their space."""
        return sampled(super().rand_action(td), self._description, self.env.action_space)

    def render(self) -> Any:
        """What the environment's own `render` gives."""
        return self.env.render()

    def native_session(self) -> Session:
        """The gymnasium environment, called directly; with encodings, infos or pixels, this adapter."""
        return GymnasiumSession(self.env) if self._is_plain else super().native_session()

    def close(self, *, raise_if_closed: bool = True) -> None:
        """Close the gymnasium environment."""
        self.env.close()

    def __repr__(self) -> str:
        return f"GymEnv({self._description.name})"


def _made(env_name: Any, from_pixels: bool, kwargs: dict[str, Any]) -> Any:
    if not isinstance(env_name, str):
        if kwargs:
            raise TypeError(
                f"GymEnv: {', '.join(kwargs)} cannot be given to an environment that is made already"
            )
        return env_name
    if from_pixels:
        kwargs.setdefault("render_mode", "rgb_array")
    return gymnasium_env(env_name, **kwargs)
