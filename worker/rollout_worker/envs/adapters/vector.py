"""GymVectorEnv: a gymnasium vector environment (EnvPool's too) with tensordicts in and out.

Vector environments differ in how rows begin a new episode; `Restarts` knows how for each kind, so that no frame is
the filler of an automatic reset: where a row cannot begin one by itself, that is an error, never a wrong frame.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase

from rollout_worker.envs.adapters.restarts import Restarts, final_rows
from rollout_worker.envs.adapters.values import ActionCoder, row_actions, rows_of, sampled, with_rows
from rollout_worker.envs.autoreset import SAME_STEP
from rollout_worker.envs.base import EnvBase
from rollout_worker.envs.describe import describe_spaces
from rollout_worker.envs.seeding import chain
from rollout_worker.envs.spec_leaves import Device
from rollout_worker.envs.specs import EnvSpecs
from rollout_worker.envs.transitions import RESET, mask_of


class GymVectorEnv(EnvBase):
    """`GymVectorEnv("CartPole-v1", num_envs=8)` makes the environment with `gymnasium.make_vec`;
    `GymVectorEnv(envs)` takes one that is made: a `gymnasium.vector.VectorEnv`, or an EnvPool.

    Its batch size is `[num_envs]`; leaves are as `GymEnv` has them, behind that dimension. `set_seed` gives every
    row a seed of its own. A row that ended must be reset before it is stepped again, which `rollout` and the
    collectors do; rows are reset one by one with autoreset mode `Disabled` or `SameStep`, with gymnasium's
    SyncVectorEnv and AsyncVectorEnv in any mode, and with EnvPool.

    Raises TypeError for what is no vector environment and for keywords given to one that is made already.
    """

    def __init__(
        self,
        env: Any,
        *,
        num_envs: int | None = None,
        device: Device = None,
        categorical_action_encoding: bool = True,
        **kwargs: Any,
    ) -> None:
        made = _made(env, num_envs, kwargs)
        super().__init__(device=device, batch_size=(int(made.num_envs),))
        self.env = made
        self._restarts = Restarts(made)
        self._description = describe_spaces(
            made.single_observation_space, made.single_action_space, name=_name_of(made)
        )
        self._actions = ActionCoder(self._description, is_one_hot=not categorical_action_encoding)
        specs = EnvSpecs.of(self._description)
        self.full_action_spec = self._actions.specs().expand(*self.batch_size)
        self.observation_spec = specs.observation.expand(*self.batch_size)
        self._seeds: list[int] | None = None
        self._current: TensorDictBase | None = None
        self._begun: TensorDictBase | None = None
        self._has_ended = np.zeros(self.num_envs, dtype=np.bool_)

    @property
    def num_envs(self) -> int:
        """The number of rows."""
        return int(self.batch_size[0])

    # -- resets ----------------------------------------------------------------------------------------------------

    def _reset(self, td: TensorDictBase | None, **kwargs: Any) -> TensorDictBase:
        wanted = self._wanted(td)
        begun = self._has_ended & wanted if self._begun is not None else np.zeros_like(wanted)
        if wanted.all() and (td is None or not begun.any() or self._seeds is not None):
            return self._reset_all(**kwargs)
        assert self._current is not None
        current = self._current
        if begun.any():
            assert self._begun is not None
            current = with_rows(current, begun, self._begun[torch.from_numpy(begun)])
        rest = wanted & ~begun
        if rest.any():
            fresh = self._restarts.reset_rows(rest, self._description.observation, self._description.paths)
            current = with_rows(current, rest, self._tensordict(fresh, int(rest.sum())))
        self._has_ended = self._has_ended & ~wanted
        self._current = current
        return current.clone()

    def _wanted(self, td: TensorDictBase | None) -> np.ndarray[Any, Any]:
        mask = None if td is None else td.get(RESET, None)
        if mask is None or self._current is None:
            return np.ones(self.num_envs, dtype=np.bool_)
        return mask_of(mask, self.batch_size).cpu().numpy()

    def _reset_all(self, **kwargs: Any) -> TensorDictBase:
        seeds, self._seeds = self._seeds, None
        observation, _ = self.env.reset(
            **{**({"seed": self._restarts.seed_argument(seeds)} if seeds else {}), **kwargs}
        )
        self._has_ended = np.zeros(self.num_envs, dtype=np.bool_)
        self._begun = None
        self._current = self._tensordict(self._leaves(observation), self.num_envs)
        return self._current.clone()

    # -- steps -----------------------------------------------------------------------------------------------------

    def _step(self, td: TensorDictBase) -> TensorDictBase:
        if self._has_ended.any() and self._restarts.mode != SAME_STEP:
            rows = ", ".join(map(str, np.flatnonzero(self._has_ended)))
            raise RuntimeError(
                f"the rows {rows} of {self} have ended and were not reset: their next step would be no transition. "
                "Reset them first (step_and_maybe_reset does)"
            )
        observation, reward, terminated, truncated, info = self.env.step(
            row_actions(self._actions, td, self.env)
        )
        ended = np.asarray(terminated, dtype=np.bool_) | np.asarray(truncated, dtype=np.bool_)
        following = self._tensordict(self._leaves(observation), self.num_envs)
        self._current, self._begun = following, None
        if self._restarts.mode == SAME_STEP and ended.any():
            self._begun = following
            leaves = final_rows(info, ended, self._description.observation, self._description.paths)
            following = with_rows(following, ended, self._tensordict(leaves, int(ended.sum())))
            self._current = following
        self._has_ended = ended
        following = following.clone()
        shape = (self.num_envs, 1)
        for name, value, dtype in (
            ("reward", reward, np.float32),
            ("terminated", terminated, np.bool_),
            ("truncated", truncated, np.bool_),
        ):
            made = torch.from_numpy(np.array(value, dtype=dtype).reshape(shape))
            following.set(name, made if self.device is None else made.to(self.device))
        return following

    def _leaves(self, observation: Any) -> list[tuple[Any, Any]]:
        return rows_of(observation, self._description.observation, self._description.paths, self.num_envs)

    def _tensordict(self, leaves: list[tuple[Any, Any]], num_rows: int) -> TensorDictBase:
        made: TensorDictBase = TensorDict({}, batch_size=(num_rows,), device=self.device)
        for key, value in leaves:
            made.set(key, value)
        return made

    # -- the rest --------------------------------------------------------------------------------------------------

    def set_seed(self, seed: int | None = None, static_seed: bool = False) -> int | None:
        """Give row i the i-th seed of the chain from `seed` at the next reset of all; gives the one after the last."""
        if seed is None:
            return None
        self._seeds, following = chain(seed, self.num_envs, is_static=static_seed)
        return following

    def rand_action(self, td: TensorDictBase | None = None) -> TensorDictBase:
        """Put random actions into `td` (or a new tensordict). Actions that are no tensors come from their space."""
        return sampled(super().rand_action(td), self._description, self.env.single_action_space)

    def render(self) -> Any:
        """What the vector environment's own `render` gives."""
        return self.env.render()

    def close(self, *, raise_if_closed: bool = True) -> None:
        """Close the vector environment."""
        self.env.close()

    def __repr__(self) -> str:
        return f"GymVectorEnv({self._description.name}, num_envs={self.num_envs})"


def _made(env: Any, num_envs: int | None, kwargs: dict[str, Any]) -> Any:
    if isinstance(env, str):
        import gymnasium  # only who names an environment needs it

        kwargs.setdefault(
            "vectorization_mode", "sync"
        )  # an environment's own kind may be unable to reset single rows
        return gymnasium.make_vec(env, num_envs=1 if num_envs is None else num_envs, **kwargs)
    if kwargs or num_envs is not None:
        names = ", ".join([*kwargs, *(["num_envs"] if num_envs is not None else [])])
        raise TypeError(f"GymVectorEnv: {names} cannot be given to an environment that is made already")
    if not hasattr(env, "single_action_space") or not hasattr(env, "num_envs"):
        raise TypeError(
            f"GymVectorEnv takes a gymnasium.vector.VectorEnv or a name, not {type(env).__name__}"
        )
    inner = getattr(getattr(env, "config", None), "get", lambda _: None)("batch_size")
    if inner and inner != env.num_envs:
        raise TypeError(
            f"the EnvPool gives {inner} of its {env.num_envs} environments at a time; make it with batch_size={env.num_envs}"
        )
    return env


def _name_of(env: Any) -> str:
    spec = getattr(env, "spec", None)
    name = getattr(spec, "id", None)
    return (
        str(name)
        if isinstance(name, str)
        else type(env.unwrapped if hasattr(env, "unwrapped") else env).__name__
    )
