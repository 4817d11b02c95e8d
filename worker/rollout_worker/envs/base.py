"""EnvBase: an environment with tensordicts in and out.

Users subclass it and write `_reset`, `_step` and `_set_seed`; callers use the public methods, which complete
what those leave out: flags, shapes, the `next` entry, partial resets and steps. `GymEnv`, `SerialEnv` and
`ParallelEnv` are subclasses too. To be stepped by a vector env, an environment is turned into a session over
numpy by `session.TensorDictSession`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

import torch
from tensordict import TensorDict, TensorDictBase
from torch import nn

from rollout_worker.envs.describe import FLAGS, Key
from rollout_worker.envs.seeding import successor
from rollout_worker.envs.spec_leaves import Device, Shape, as_device, as_shape
from rollout_worker.envs.specs import Binary, Composite, Spec, Unbounded, flat_key, single_or_composite
from rollout_worker.envs.transitions import (
    RESET,
    STEP,
    along_time,
    complete_flags,
    keep_unknown,
    mask_of,
    merged_where,
    next_root,
)

if TYPE_CHECKING:
    from rollout_worker.envs.native import Session

Policy = Callable[[TensorDictBase], TensorDictBase]


class _SpecTree:
    """An attribute that holds the composite of one group; whatever spec is set becomes one."""

    def __init__(self, group: str) -> None:
        self._group = group

    def __get__(self, env: EnvBase, owner: type[EnvBase]) -> Composite:
        return env._spec_trees()[self._group]

    def __set__(self, env: EnvBase, spec: Spec) -> None:
        env._spec_trees()[self._group] = env._whole(self._group, spec)


class _SpecLeaf(_SpecTree):
    """The same group, read as its leaf where there is only one."""

    def __get__(self, env: EnvBase, owner: type[EnvBase]) -> Spec:  # type: ignore[override]
        return single_or_composite(super().__get__(env, owner))


class EnvBase(nn.Module):
    """One environment, or a batch of them: every tensordict it gives has `batch_size` in front.

    A subclass sets `observation_spec` (a Composite) and `action_spec`; `reward_spec` defaults to one float32
    and `done_spec` to the three flags at the root. Then it writes:

    * `_reset(td, **kwargs)`: a tensordict of observations (and flags, if any is set); `td` is None or holds
      the mask `_reset`.
    * `_step(td)`: from the root and the action in `td`, a new tensordict with observations, reward and flags.
    * `_set_seed(seed)`: rewind the environment's generator.
    """

    def __init__(self, *, device: Device = None, batch_size: Shape = ()) -> None:
        super().__init__()
        self.__dict__["_device"] = as_device(device)
        self.__dict__["_batch_size"] = as_shape(batch_size)
        self.__dict__["_specs"] = {
            "observation": Composite(shape=self.batch_size),
            "action": Composite(shape=self.batch_size),
            "reward": Composite({"reward": Unbounded((*self.batch_size, 1))}, shape=self.batch_size),
            "done": _completed_done(Composite(shape=self.batch_size), self.batch_size),
        }

    # -- what a subclass writes ------------------------------------------------------------------------------------

    @abstractmethod
    def _reset(self, td: TensorDictBase | None, **kwargs: Any) -> TensorDictBase:
        raise NotImplementedError(f"{type(self).__name__} must define _reset")

    @abstractmethod
    def _step(self, td: TensorDictBase) -> TensorDictBase:
        raise NotImplementedError(f"{type(self).__name__} must define _step")

    def _set_seed(self, seed: int | None) -> None:
        """Rewind the environment's generator. Environments without one need not define this."""

    # -- specs -----------------------------------------------------------------------------------------------------

    @property
    def batch_size(self) -> torch.Size:
        """The leading dimensions of all tensordicts."""
        return self.__dict__["_batch_size"]  # type: ignore[no-any-return]

    @property
    def device(self) -> torch.device | None:
        """The device of all tensordicts (None: each leaf has its own)."""
        return self.__dict__["_device"]  # type: ignore[no-any-return]

    observation_spec = _SpecTree("observation")
    """What a reset and a step give to be acted on."""
    full_action_spec = _SpecTree("action")
    """What a step takes, as a composite from the root."""
    full_reward_spec = _SpecTree("reward")
    """What a step rewards with, as a composite from the root."""
    full_done_spec = _SpecTree("done")
    """The flags at every level that has them."""
    done_spec = _SpecTree("done")
    """The flags at every level that has them."""
    action_spec = _SpecLeaf("action")
    """What a step takes: the leaf where there is one, else a composite."""
    reward_spec = _SpecLeaf("reward")
    """What a step rewards with: the leaf where there is one, else a composite."""

    def _spec_trees(self) -> dict[str, Composite]:
        """The specs by group."""
        return self.__dict__["_specs"]  # type: ignore[no-any-return]

    def _whole(self, group: str, spec: Any) -> Composite:
        """A spec given for one group, as the composite from the root with the environment's batch size."""
        if not isinstance(spec, Spec):
            raise TypeError(f"{group}_spec must be a spec, not {type(spec).__name__}")
        if group == "observation" and not isinstance(spec, Composite):
            raise TypeError(
                f"observation_spec must be a Composite; use Composite(observation={type(spec).__name__}(…))"
            )
        tree = spec if isinstance(spec, Composite) else Composite({group: spec}, shape=self.batch_size)
        if group == "done":
            return _completed_done(tree, self.batch_size)
        for key, below in tree.items(True):
            if isinstance(below, Composite) and not len(below):
                raise RuntimeError(
                    f"{type(self).__name__}: the {group} spec of {key!r} is an empty composite"
                )
        return tree

    @property
    def action_keys(self) -> list[Any]:
        """The keys of the actions."""
        return [_short(key) for key, _ in self.full_action_spec.leaves()]

    @property
    def action_key(self) -> Any:
        """The key of the first action."""
        return self.action_keys[0]

    @property
    def reward_keys(self) -> list[Any]:
        """The keys of the rewards, without `next`."""
        return [_short(key) for key, _ in self.full_reward_spec.leaves()]

    @property
    def done_keys(self) -> list[Any]:
        """The keys of all flags, without `next`."""
        return [_short(key) for key, _ in self.full_done_spec.leaves()]

    @property
    def reset_keys(self) -> list[Any]:
        """The keys of the reset masks: one at each level that has flags."""
        groups = dict.fromkeys(flat_key(key)[:-1] for key in self.done_keys)
        return [_short((*group, RESET)) for group in groups]

    # -- the public contract ---------------------------------------------------------------------------------------

    def reset(self, td: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        """Reset, or reset the rows that `td["_reset"]` marks.

        Without `td` gives a new tensordict of observations and flags; with `td`, updates and gives that one
        (the mask removed).
        """
        mask = None if td is None else self._reset_mask(td)
        if td is not None and mask is not None and not bool(mask.any()):
            return td.exclude(*self.reset_keys, inplace=True)
        fresh = self._completed_reset(self._reset(td if mask is not None else None, **kwargs))
        if td is None:
            return fresh
        if mask is not None:
            fresh = merged_where(mask, fresh, td)
        td.exclude(*self.reset_keys, "next", inplace=True)
        return td.update(fresh)

    def step(self, td: TensorDictBase) -> TensorDictBase:
        """Act: takes the action in `td`, puts what comes of it under `td["next"]`, gives that same `td`.

        Values that stand under `next` already stay where the environment has none of its own. `td["_step"]`
        marks the rows to step; the others repeat their root, with reward 0.
        """
        passed = td.get("next", None)
        mask = self._step_mask(td)
        if mask is not None and not bool(mask.any()):
            following = self._standing(td)
        else:
            following = self._completed_step(self._step(td))
            if mask is not None and not bool(mask.all()):
                following = merged_where(mask, following, self._standing(td))
        if passed is not None:
            keep_unknown(following, passed)
        return td.set("next", following)

    def step_and_maybe_reset(self, td: TensorDictBase) -> tuple[TensorDictBase, TensorDictBase]:
        """Step, and give the stepped `td` with the next root, already reset where it was done."""
        td = self.step(td)
        skipped = None if (mask := self._step_mask(td)) is None else ~mask
        return td, self._reset_done(self._next_root(td), skipped)

    def maybe_reset(self, td: TensorDictBase) -> TensorDictBase:
        """Reset the rows of a root that have a done flag; the root itself where none has."""
        return self._reset_done(td, None)

    def rollout(
        self,
        max_steps: int,
        policy: Policy | None = None,
        *,
        auto_reset: bool = True,
        break_when_any_done: bool = True,
        break_when_all_done: bool = False,
        tensordict: TensorDictBase | None = None,
        set_truncated: bool = False,
        callback: Callable[[EnvBase, TensorDictBase], Any] | None = None,
    ) -> TensorDictBase:
        """Act for up to `max_steps` steps (random actions without a policy); time is the result's last batch
        dimension.

        Stops where any row is done, or, with `break_when_any_done=False`, resets rows separately and goes on.
        With `break_when_all_done`, finished rows repeat their last frame until all are done. `set_truncated`
        marks the last frame.
        """
        if max_steps < 1:
            raise ValueError(f"max_steps is {max_steps}; it must be at least 1")
        if not auto_reset and tensordict is None:
            raise ValueError("auto_reset=False needs the tensordict to go on from")
        root = self.reset(tensordict) if auto_reset else tensordict
        assert root is not None
        steps: list[TensorDictBase] = []
        finished: torch.Tensor | None = None
        for _ in range(max_steps):
            acting = policy(root) if policy is not None else self.rand_action(root)
            if break_when_any_done or break_when_all_done:
                stepped = self.step(acting)
                root = self._next_root(stepped)
            else:
                stepped, root = self.step_and_maybe_reset(acting)
            if finished is not None and steps:
                stepped = merged_where(~finished, stepped, steps[-1])
            steps.append(stepped.clone(False))
            if callback is not None:
                callback(self, stepped)
            if break_when_all_done:
                finished = self._any_done(stepped.get("next"))
                if bool(finished.all()):
                    break
                root.set(STEP, ~finished)
            elif break_when_any_done and bool(self._any_done(stepped.get("next")).any()):
                break
        result = along_time([step.exclude(STEP) for step in steps])
        if set_truncated:
            self._truncate_last(result)
        return result

    def rand_action(self, td: TensorDictBase | None = None) -> TensorDictBase:
        """Put a random action into `td` (or a new tensordict)."""
        td = TensorDict({}, batch_size=self.batch_size, device=self.device) if td is None else td
        for key, spec in self.full_action_spec.leaves():
            td.set(key, spec.rand())
        return td

    def rand_step(self, td: TensorDictBase | None = None) -> TensorDictBase:
        """Step with a random action."""
        return self.step(self.rand_action(td))

    def set_seed(self, seed: int | None = None, static_seed: bool = False) -> int | None:
        """Seed the environment; gives the seed to use for the next one: the same if static, else a fixed successor."""
        self._set_seed(seed)
        return None if seed is None else successor(seed, is_static=static_seed)

    def fake_tensordict(self) -> TensorDictBase:
        """A zero-filled tensordict of one step, with every key that a step has."""
        root = self.observation_spec.zero().update(self.full_done_spec.zero())
        following = root.clone().update(self.full_reward_spec.zero())
        return root.update(self.full_action_spec.zero()).set("next", following)

    def close(self, *, raise_if_closed: bool = True) -> None:
        """Give back what the environment holds."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close(raise_if_closed=False)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(batch_size={tuple(self.batch_size)})"

    def forward(self, td: TensorDictBase) -> TensorDictBase:
        """An environment is a module so that its buffers have names; calling it steps it."""
        return self.step(td)

    def native_session(self) -> Session:
        """This environment as a vector env's stepper takes it."""
        from rollout_worker.envs.session import TensorDictSession

        return TensorDictSession(self)

    # -- parts -----------------------------------------------------------------------------------------------------

    def _completed_reset(self, fresh: TensorDictBase) -> TensorDictBase:
        complete_flags(fresh, self._flag_shapes())
        return fresh

    def _completed_step(self, following: TensorDictBase) -> TensorDictBase:
        complete_flags(following, self._flag_shapes())
        for key, spec in self.full_reward_spec.leaves():
            value = following.get(key, None)
            if value is not None and value.shape != spec.shape:
                following.set(key, value.reshape(spec.shape))
        return following

    def _flag_shapes(self) -> dict[Key, torch.Size]:
        return {key: spec.shape for key, spec in self.full_done_spec.leaves()}

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
        fresh = self._completed_reset(self._reset(TensorDict({RESET: mask}, batch_size=self.batch_size)))
        return root.update(merged_where(done, fresh, root))

    def _any_done(self, td: TensorDictBase) -> torch.Tensor:
        """One boolean per element of the batch: done at the root, or, without root flags, at any level."""
        keys = [key for key, _ in self.full_done_spec.leaves() if key[-1] == "done"]
        keys = [("done",)] if ("done",) in keys else keys
        flags = [td.get(key).reshape(*self.batch_size, -1).any(-1) for key in keys]
        return torch.stack(flags).any(0)

    def _reset_mask(self, td: TensorDictBase) -> torch.Tensor | None:
        mask = td.get(RESET, None)
        if mask is None:
            nested = [key for key in self.reset_keys if key != RESET and td.get(key, None) is not None]
            if nested:
                raise ValueError(
                    f"the mask {nested[0]!r} is there but {RESET!r} is not: give the root's mask too"
                )
            return None
        return mask_of(mask, self.batch_size)

    def _step_mask(self, td: TensorDictBase) -> torch.Tensor | None:
        mask = td.get(STEP, None)
        return None if mask is None else mask_of(mask, self.batch_size)

    def _truncate_last(self, result: TensorDictBase) -> None:
        last = (..., -1) if not self.batch_size else (*(slice(None),) * len(self.batch_size), -1)
        for key, _ in self.full_done_spec.leaves():
            if key[-1] in ("done", "truncated"):
                result.get(("next", *key))[last] = True


def _completed_done(spec: Composite, batch_size: torch.Size) -> Composite:
    """A done spec with all three flags at each level that has one of them, the root's first."""
    levels: dict[Key, torch.Size] = {(): torch.Size((*batch_size, 1))}
    for key, leaf in spec.leaves():
        levels[key[:-1]] = leaf.shape
    complete = Composite(shape=batch_size)
    for level, shape in levels.items():
        for flag in FLAGS:
            complete[*level, flag] = Binary(None, shape, spec.device, torch.bool)
    return complete


def _short(key: Key) -> Any:
    return key[0] if len(key) == 1 else key
