"""Transforms over an episode: `StepCounter`, `RewardSum`, `InitTracker`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDictBase

from rollout_worker.envs.describe import Key
from rollout_worker.envs.specs import Binary, Bounded, Composite, LeafSpec, Unbounded
from rollout_worker.envs.transforms.base import Transform, levels_of, wanted_keys

if TYPE_CHECKING:
    from rollout_worker.envs.base import EnvBase

_INT64_MAX = torch.iinfo(torch.int64).max


class StepCounter(Transform):
    """Counts the steps of an episode: `step_count` (int64, of the flags' shape), 0 after a reset, at every level that
    has flags.

    With `max_steps` the episode is truncated at that count: `truncated` and `done` become True, `terminated` is never
    touched. `truncated_key` None only counts. `update_done=False` is refused: done is `terminated or truncated`.
    """

    def __init__(
        self,
        max_steps: int | None = None,
        truncated_key: str | None = "truncated",
        step_count_key: str = "step_count",
        update_done: bool = True,
    ) -> None:
        if max_steps is not None and max_steps < 1:
            raise ValueError(f"StepCounter: max_steps is {max_steps}; it must be at least 1")
        if not update_done:
            raise ValueError(
                "StepCounter: done is always 'terminated or truncated'; to count without an end, give truncated_key=None"
            )
        self.max_steps = max_steps
        self.truncated_key = truncated_key
        self.step_count_key = step_count_key
        self._levels: dict[Key, torch.Size] = {}

    def attach(self, env: EnvBase) -> None:
        self._levels = levels_of(env)

    def observed(self) -> Composite:
        most = _INT64_MAX if self.max_steps is None else self.max_steps
        return Composite(
            {
                (*level, self.step_count_key): Bounded(0, most, shape, dtype=torch.int64)
                if self.max_steps is not None
                else Unbounded(shape, dtype=torch.int64)
                for level, shape in self._levels.items()
            }
        )

    def on_reset(self, root: TensorDictBase) -> None:
        for level, shape in self._levels.items():
            root.set((*level, self.step_count_key), torch.zeros(shape, dtype=torch.int64, device=root.device))

    def on_step(self, root: TensorDictBase, following: TensorDictBase) -> None:
        for level, shape in self._levels.items():
            key = (*level, self.step_count_key)
            before = root.get(key, None)
            count = (
                torch.ones(shape, dtype=torch.int64, device=following.device)
                if before is None
                else before + 1
            )
            following.set(key, count)
            if self.max_steps is None or self.truncated_key is None:
                continue
            is_over = count >= self.max_steps
            for flag in (self.truncated_key, "done"):
                following.set((*level, flag), following.get((*level, flag)) | is_over)

    def __repr__(self) -> str:
        return f"StepCounter(max_steps={self.max_steps})"


class RewardSum(Transform):
    """Sums the rewards of an episode: `episode_reward` beside each `reward` (its shape and dtype), 0 after a reset.

    `in_keys` are the rewards to sum (all, if None), `out_keys` where the sums stand. `reset_keys` is taken for the
    sake of existing code: sums are reset with their rows.
    """

    def __init__(
        self,
        in_keys: Sequence[Any] | None = None,
        out_keys: Sequence[Any] | None = None,
        reset_keys: Sequence[Any] | None = None,
    ) -> None:
        del reset_keys
        self.in_keys, self.out_keys = wanted_keys(in_keys), wanted_keys(out_keys)
        if self.out_keys is not None and self.in_keys is not None and len(self.in_keys) != len(self.out_keys):
            raise ValueError(
                f"RewardSum: {len(self.in_keys)} in_keys and {len(self.out_keys)} out_keys; they go in pairs"
            )
        self._specs: dict[Key, tuple[Key, LeafSpec]] = {}

    def attach(self, env: EnvBase) -> None:
        rewards = dict(env.full_reward_spec.leaves())
        wanted = list(rewards) if self.in_keys is None else self.in_keys
        sums = self.out_keys or [(*key[:-1], f"episode_{key[-1]}") for key in wanted]
        if len(sums) != len(wanted):
            raise ValueError(f"RewardSum: {len(sums)} out_keys for the {len(wanted)} rewards of {env}")
        for key in wanted:
            if key not in rewards:
                raise KeyError(f"RewardSum: {env} has no reward {key}; it has {', '.join(map(str, rewards))}")
        self._specs = {out: (key, rewards[key]) for out, key in zip(sums, wanted, strict=True)}  # type: ignore[misc]

    def observed(self) -> Composite:
        return Composite(
            {out: Unbounded(spec.shape, spec.device, spec.dtype) for out, (_, spec) in self._specs.items()}
        )

    def on_reset(self, root: TensorDictBase) -> None:
        for out, (_, spec) in self._specs.items():
            root.set(out, spec.zero())

    def on_step(self, root: TensorDictBase, following: TensorDictBase) -> None:
        for out, (key, _) in self._specs.items():
            before, reward = root.get(out, None), following.get(key)
            following.set(out, reward.clone() if before is None else before + reward)


class InitTracker(Transform):
    """Marks the first frame of an episode: `is_init` (bool, of the flags' shape), True at the root after a reset, else
    False, at every level that has flags."""

    def __init__(self, init_key: str = "is_init") -> None:
        self.init_key = init_key
        self._levels: dict[Key, torch.Size] = {}

    def attach(self, env: EnvBase) -> None:
        self._levels = levels_of(env)

    def observed(self) -> Composite:
        return Composite(
            {
                (*level, self.init_key): Binary(None, shape, dtype=torch.bool)
                for level, shape in self._levels.items()
            }
        )

    def on_reset(self, root: TensorDictBase) -> None:
        self._write(root, True)

    def on_step(self, root: TensorDictBase, following: TensorDictBase) -> None:
        self._write(following, False)

    def _write(self, td: TensorDictBase, value: bool) -> None:
        for level, shape in self._levels.items():
            td.set((*level, self.init_key), torch.full(shape, value, dtype=torch.bool, device=td.device))


class ActionMask(Transform):
    """Lets `rand_action` and the action spec allow only what the environment's mask allows.

    `mask_key` is an observation (bool, or numbers where not 0 is allowed) of the action's shape with n categories
    last; `action_key` a Categorical or OneHot action. A row whose mask allows nothing is an error at the reset or step
    that gave it.
    """

    def __init__(self, action_key: Any = "action", mask_key: Any = "action_mask") -> None:
        (self.action_key,), (self.mask_key,) = wanted_keys([action_key]) or [], wanted_keys([mask_key]) or []

    def attach(self, env: EnvBase) -> None:
        for key, spec, what in (
            (self.action_key, env.full_action_spec, "action"),
            (self.mask_key, env.observation_spec, "observation"),
        ):
            if key not in spec:
                raise KeyError(
                    f"ActionMask: {env} has no {what} {key}; it has {', '.join(map(str, spec.keys(True, True)))}"
                )
        action = env.full_action_spec[self.action_key]
        if not hasattr(action, "masked"):
            raise TypeError(
                f"ActionMask: the action is {type(action).__name__}; only Categorical and OneHot have a mask"
            )

    def action_spec(self, root: TensorDictBase, spec: Composite) -> Composite:
        mask = root.get(self.mask_key, None)
        if mask is None:
            return spec
        changed = spec.clone()
        try:
            changed[self.action_key] = spec[self.action_key].masked(mask.to(torch.bool))
        except ValueError as error:
            raise ValueError(
                f"the mask {self.mask_key} does not fit the action {self.action_key}: {error}"
            ) from error
        return changed
