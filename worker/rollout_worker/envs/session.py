"""A `EnvBase` as the stepper takes it: numpy in and out, by gymnasium's calling convention.

The session keeps the environment's root from step to step, as a caller of its own would; flags and rewards
below the root are handed out with the observation.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase

from rollout_worker.envs.base import EnvBase
from rollout_worker.envs.describe import FLAG, EnvDescription, Key, Leaves, spelled
from rollout_worker.envs.native import Start
from rollout_worker.envs.row_codec import decoded
from rollout_worker.envs.specs import Composite, description_of, flat_key
from rollout_worker.envs.transitions import RESET


class TensorDictSession:
    """One environment, which can be stepped where it has neither batch dimensions nor states: the description tells."""

    def __init__(self, env: EnvBase) -> None:
        self.env = env
        self._actions = [key for key, _ in env.full_action_spec.leaves()]
        self.description = EnvDescription(
            name=str(env),
            observation=_leaves(env.observation_spec),
            action=_leaves(env.full_action_spec),
            reward=_leaves(env.full_reward_spec),
            done=tuple((key, leaf if len(key) > 1 else FLAG) for key, leaf in _leaves(env.full_done_spec)),
            paths=tuple(key for key, _ in env.observation_spec.leaves()),
            action_paths=((),) if len(self._actions) == 1 else tuple(self._actions),
            state=_leaves(env.full_state_spec),
            batch_size=tuple(env.batch_size),
            takes_rows=True,
        )
        self._has_root_reward = ("reward",) in dict(self.description.reward)
        self._root: TensorDictBase | None = None
        self._staged: Start | None = None
        self._has_ended = False
        self._has_looked = False
        self._observed = tuple(key for key, _ in self.description.observation)
        nested = (*self.description.reward, *self.description.done)
        self._handed_out = (*self._observed, *(key for key, _ in nested if len(key) > 1))

    def seed(self, seed: int) -> None:
        """Seed the environment now."""
        self.env.set_seed(seed)

    def reset(self, seed: int | None) -> Any:
        """Seed where asked for, reset, and give the observation. After an end, the environment is given a mask."""
        if seed is not None:
            self.env.set_seed(seed)
        start, self._staged = self._staged or Start({}), None
        given = decoded(start.row)
        if given is None and self._has_ended:
            given = TensorDict({RESET: torch.ones(1, dtype=torch.bool)}, batch_size=())
        self._has_ended = False
        self._root = self.env.reset(given, **start.kwargs)
        return self._leaves_of(self._root, self._observed)

    def stage(self, start: Start) -> None:
        """Keywords, and a row to start from."""
        self._staged = start

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, Any]:
        """Act, and give observation, reward, terminated, truncated and an empty info."""
        root = self.env.reset() if self._root is None else self._root
        for key in self._actions:
            value = action
            if len(self._actions) > 1:
                for name in key:
                    value = value[name]
            root.set(key, torch.as_tensor(np.asarray(value), device=self.env.device))
        stepped = self.env.step(root)
        following = stepped.get("next")
        self._root = self.env._next_root(stepped)
        reward = following.get("reward").item() if self._has_root_reward else 0.0
        terminated, truncated = (
            bool(following.get("terminated").item()),
            bool(following.get("truncated").item()),
        )
        if not terminated and not truncated and bool(following.get("done").item()):
            terminated = True  # done by a flag of its own: an end by the task
        self._has_ended = terminated or truncated
        return self._leaves_of(following, self._handed_out), reward, terminated, truncated, {}

    def _leaves_of(self, td: TensorDictBase, keys: tuple[Key, ...]) -> dict[str, Any]:
        """These entries as nested dicts of numpy arrays; what is no tensor as it is. KeyError for one that is missing."""
        found: dict[str, Any] = {}
        for key in keys:
            value = td.get(key if len(key) > 1 else key[0], None)
            if value is None:
                raise KeyError(f"the environment gave no {spelled(key)}, which its spec declares")
            place = found
            for name in key[:-1]:
                place = place.setdefault(name, {})
            place[key[-1]] = (
                _array(value) if isinstance(value, torch.Tensor) else getattr(value, "data", value)
            )
        if not self._has_looked:
            self._warn_of_undeclared(td)
        return found

    def _warn_of_undeclared(self, td: TensorDictBase) -> None:
        self._has_looked = True
        declared = {key for _, leaves in self.description.groups() for key, _ in leaves}
        extra = [key for key in map(flat_key, td.keys(True, True)) if key not in declared]
        if extra:
            names = ", ".join(map(spelled, extra))
            warnings.warn(f"{self.env}: no spec declares {names}; dropped", stacklevel=2)

    def close(self) -> None:
        """Close the environment."""
        self.env.close(raise_if_closed=False)


def _leaves(spec: Composite) -> Leaves:
    return tuple((key, description_of(leaf)) for key, leaf in spec.leaves())


def _array(value: torch.Tensor) -> Any:
    value = value.detach().cpu()
    return (value.view(torch.int16) if value.dtype == torch.bfloat16 else value).numpy()
