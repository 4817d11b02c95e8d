"""How an environment passes from root to root: what a subclass writes, and what completes that.

The second layer of `EnvBase`: flags, shapes, partial resets and steps; the public methods are the third.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase

from rollout_worker.envs.declaration import EnvDeclaration
from rollout_worker.envs.own_resets import OwnResets
from rollout_worker.envs.spec_leaves import Device, Shape
from rollout_worker.envs.specs import flat_key
from rollout_worker.envs.transitions import RESET, complete_flags, merged_where, next_root


class _MadeEnv(type):
    """Takes the keywords that every environment has, whatever its own constructor takes."""

    def __call__(
        cls,
        *args: Any,
        spec_locked: bool = True,
        auto_reset: bool = False,
        auto_reset_replace: bool = True,
        **kwargs: Any,
    ) -> Any:
        env = super().__call__(*args, **kwargs)
        if isinstance(env, EnvTransitions):
            if auto_reset:
                env.__dict__["_own_resets"] = OwnResets(is_replacing=auto_reset_replace)
            if spec_locked:
                env.set_spec_lock_()
        return env


class EnvTransitions(EnvDeclaration, metaclass=_MadeEnv):
    """What a subclass writes, and its completion. See `EnvBase`."""

    def __init__(self, *, device: Device = None, batch_size: Shape = ()) -> None:
        super().__init__(device=device, batch_size=batch_size)
        self.__dict__["_own_resets"] = None

    # -- what a subclass writes ------------------------------------------------------------------------------------

    @abstractmethod
    def _reset(self, td: TensorDictBase | None, **kwargs: Any) -> TensorDictBase:
        raise NotImplementedError(f"{type(self).__name__} must define _reset")

    @abstractmethod
    def _step(self, td: TensorDictBase) -> TensorDictBase:
        raise NotImplementedError(f"{type(self).__name__} must define _step")

    def _set_seed(self, seed: int | None) -> None:
        """Rewind the environment's generator. Environments without one need not define this."""

    # -- what completes it -----------------------------------------------------------------------------------------

    def _fresh(self, td: TensorDictBase | None, mask: torch.Tensor | None, **kwargs: Any) -> TensorDictBase:
        """The root after a reset of the rows that the mask marks (None: of all)."""
        own: OwnResets | None = self.__dict__["_own_resets"]
        if own is None or mask is None:
            fresh = self._reset(td, **kwargs)
        else:
            fresh = own.reset(mask, lambda rest: self._reset(rest, **kwargs), batch_size=self.batch_size)
        return self._completed_reset(fresh)

    def _here(self, td: TensorDictBase) -> TensorDictBase:
        """A result on the environment's device, where it has one."""
        return td if self.device is None or td.device == self.device else td.to(self.device)

    def _completed_reset(self, fresh: TensorDictBase) -> TensorDictBase:
        fresh = self._here(fresh)
        complete_flags(fresh, self._flag_shapes())
        return fresh

    def _completed_step(self, following: TensorDictBase) -> TensorDictBase:
        following = self._here(following)
        complete_flags(following, self._flag_shapes())
        for key, spec in self.full_reward_spec.leaves():
            value = following.get(key, None)
            if value is not None and value.shape != spec.shape:
                following.set(key, value.reshape(spec.shape))
        own: OwnResets | None = self.__dict__["_own_resets"]
        if own is not None:
            own.take(following, self._any_done(following), [key for key, _ in self.observation_spec.leaves()])
        return following

    def _next_root(self, td: TensorDictBase) -> TensorDictBase:
        return next_root(td, self.reward_keys)

    def _standing(self, td: TensorDictBase) -> TensorDictBase:
        """What a skipped row's `next` is: its root, with reward 0."""
        keys = [key for key, _ in self.observation_spec.leaves()] + [flat_key(key) for key in self.done_keys]
        standing: TensorDictBase = TensorDict({}, batch_size=self.batch_size, device=self.device)
        for key in keys:
            value = td.get(key, None)
            if value is not None:
                standing.set(key, value.clone())
        complete_flags(standing, self._flag_shapes())
        return standing.update(self.full_reward_spec.zero())

    def _reset_done(self, root: TensorDictBase, skipped: torch.Tensor | None) -> TensorDictBase:
        done = self._any_done(root)
        if skipped is not None:
            done = done & ~skipped
        if not bool(done.any()):
            return root
        mask = done.unsqueeze(-1)
        given: TensorDictBase = TensorDict({RESET: mask}, batch_size=self.batch_size, device=self.device)
        fresh = self._fresh(given, done)
        return root.update(merged_where(done, fresh, root))
