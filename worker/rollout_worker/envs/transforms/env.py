"""TransformedEnv: an environment under transforms, which is an environment itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase

from rollout_worker.envs.base import EnvBase
from rollout_worker.envs.specs import Composite
from rollout_worker.envs.transforms.base import Compose, Transform
from rollout_worker.envs.transitions import STEP, merged_where


class TransformedEnv(EnvBase):
    """`TransformedEnv(env, StepCounter(100))`; several transforms as a sequence or a `Compose`.

    Batch size, device and keys are the environment's, plus what the transforms add. `base_env` is the environment
    under all transforms, `transform` the transforms; attributes that this has not are the environment's. Works over
    single environments, over batches of them, and within them.
    """

    def __init__(self, env: EnvBase, transform: Transform | Sequence[Transform]) -> None:
        if not isinstance(env, EnvBase):
            raise TypeError(
                f"TransformedEnv takes an environment, not {type(env).__name__}; make_env adapts one"
            )
        super().__init__(device=env.device, batch_size=env.batch_size)
        self.__dict__["_base"] = env
        self.transform = _as_transform(transform)
        self.transform.attach(env)
        added = self.transform.observed()
        self.observation_spec = env.observation_spec.clone().update(_spread(added, env.observation_spec))
        self.full_action_spec = env.full_action_spec
        self.full_state_spec = env.full_state_spec
        self.full_reward_spec = env.full_reward_spec
        self.full_done_spec = env.full_done_spec
        self._added = [key for key, _ in added.leaves()]
        self._last: TensorDictBase | None = None

    @property
    def base_env(self) -> EnvBase:
        """The environment under all transforms."""
        base = self.__dict__["_base"]
        return base.base_env if isinstance(base, TransformedEnv) else base

    def append_transform(self, transform: Transform) -> TransformedEnv:
        """The environment with one more transform, above the others."""
        inner = self.transform if isinstance(self.transform, Compose) else Compose(self.transform)
        return TransformedEnv(self.__dict__["_base"], inner.append(transform))

    def _reset(self, td: TensorDictBase | None, **kwargs: Any) -> TensorDictBase:
        env: EnvBase = self.__dict__["_base"]
        mask = None if td is None else self._reset_mask(td)
        given = None if td is None or mask is None else td.select(*self.reset_keys, strict=False)
        fresh = env.reset(given, **kwargs)
        self.transform.on_reset(fresh)
        if mask is not None and self._last is not None:
            kept = merged_where(mask, fresh.select(*self._added), self._last)
            fresh.update(kept)
        self._remember(fresh)
        return fresh

    def _step(self, td: TensorDictBase) -> TensorDictBase:
        env: EnvBase = self.__dict__["_base"]
        following = env.step(td.clone(False)).get("next")
        self.transform.on_step(self._with_last(td), following)
        mask = self._step_mask(td) if td.get(STEP, None) is not None else None
        self._remember(following, mask)
        return following

    def _with_last(self, td: TensorDictBase) -> TensorDictBase:
        """The root, with what the transforms wrote last where the caller left that out."""
        if self._last is None:
            return td
        missing = [key for key in self._added if td.get(key, None) is None]
        return td.clone(False).update(self._last.select(*missing)) if missing else td

    def _remember(self, td: TensorDictBase, mask: torch.Tensor | None = None) -> None:
        written = td.select(*self._added)
        is_part = mask is not None and self._last is not None and not bool(mask.all())
        self._last = merged_where(mask, written, self._last) if is_part else written.clone()  # type: ignore[arg-type]
        before = self._spec_trees()["action"]
        now = self.transform.action_spec(td, self.__dict__["_base"].full_action_spec)
        if now is not before:
            self._spec_trees()["action"] = now._set_locked(before.is_locked)

    def rand_action(self, td: TensorDictBase | None = None) -> TensorDictBase:
        """Put a random action into `td` (or a new tensordict): one that the root's mask allows."""
        env: EnvBase = self.__dict__["_base"]
        if td is None:
            td = TensorDict({}, batch_size=self.batch_size, device=self.device)
        plain = env.full_action_spec
        allowed = self.transform.action_spec(td, plain)
        if allowed is plain and self.full_action_spec == plain:
            return env.rand_action(td)
        drawn = allowed if allowed is not plain else self.full_action_spec
        for key, spec in drawn.leaves():
            td.set(key, spec.rand())
        return td

    def set_seed(self, seed: int | None = None, static_seed: bool = False) -> int | None:
        """Seed the environment; gives the seed to go on with."""
        return self.__dict__["_base"].set_seed(seed, static_seed)  # type: ignore[no-any-return]

    def close(self, *, raise_if_closed: bool = True) -> None:
        """Close the environment."""
        self.__dict__["_base"].close(raise_if_closed=raise_if_closed)

    def to(self, device: Any, *args: Any, **kwargs: Any) -> TransformedEnv:  # type: ignore[override]
        """Move the environment and what is above it to a device; gives this environment."""
        self.__dict__["_base"].to(device, *args, **kwargs)
        self._last = None
        return super().to(device, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name.startswith("_") or "_base" not in self.__dict__:
                raise
            return getattr(self.__dict__["_base"], name)

    def __repr__(self) -> str:
        return f"TransformedEnv({self.__dict__['_base']}, {self.transform})"


def _as_transform(transform: Transform | Sequence[Transform]) -> Transform:
    if isinstance(transform, Transform):
        return transform
    if isinstance(transform, Sequence) and all(isinstance(each, Transform) for each in transform):
        return Compose(*transform)
    raise TypeError(f"TransformedEnv takes a transform or a sequence of them, not {type(transform).__name__}")


def _spread(added: Composite, observed: Composite) -> Composite:
    """Added specs as a tree whose levels have the shapes of the environment's own."""
    tree = Composite(shape=observed.shape, device=observed.device)
    for key, spec in added.leaves():
        for depth in range(1, len(key)):
            level = key[:depth]
            own = observed.get(level)
            if level not in tree and isinstance(own, Composite):
                tree[level] = Composite(shape=own.shape, device=own.device)
        tree[key] = spec
    return tree
