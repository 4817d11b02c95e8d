"""What an environment declares: its batch size and device, its specs by group, and the keys and masks that follow from them.

The first layer of `EnvBase`: nothing here resets or steps.
"""

from __future__ import annotations

from typing import Any, Self

import torch
from tensordict import TensorDictBase
from torch import nn

from rollout_worker.envs.describe import FLAGS, Key
from rollout_worker.envs.spec_leaves import Device, Shape, as_device, as_shape
from rollout_worker.envs.specs import Binary, Composite, Spec, Unbounded, flat_key, single_or_composite
from rollout_worker.envs.transitions import RESET, STEP, mask_of


class _SpecTree:
    """An attribute that holds the composite of one group; whatever spec is set becomes one."""

    def __init__(self, group: str, doc: str) -> None:
        self._group = group
        self.__doc__ = doc

    def __get__(self, env: EnvDeclaration | None, owner: type[EnvDeclaration]) -> Composite:
        if env is None:
            return self  # type: ignore[return-value]  # asked of the class: for its documentation
        return env._spec_trees()[self._group]

    def __set__(self, env: EnvDeclaration, spec: Spec) -> None:
        trees = env._spec_trees()
        is_locked = trees[self._group].is_locked
        trees[self._group] = env._whole(self._group, spec).clone()._set_locked(is_locked)


class _SpecLeaf(_SpecTree):
    """The same group, read as its leaf where there is only one."""

    def __get__(self, env: EnvDeclaration | None, owner: type[EnvDeclaration]) -> Spec:  # type: ignore[override]
        tree = super().__get__(env, owner)
        return tree if env is None else single_or_composite(tree)


class EnvDeclaration(nn.Module):
    """Batch size, device, specs. See `EnvBase`."""

    def __init__(self, *, device: Device = None, batch_size: Shape = ()) -> None:
        super().__init__()
        self.__dict__["_device"] = as_device(device)
        self.__dict__["_batch_size"] = as_shape(batch_size)
        self.__dict__["_specs"] = {
            "observation": Composite(shape=self.batch_size),
            "action": Composite(shape=self.batch_size),
            "state": Composite(shape=self.batch_size),
            "reward": Composite({"reward": Unbounded((*self.batch_size, 1))}, shape=self.batch_size),
            "done": _completed_done(Composite(shape=self.batch_size), self.batch_size),
        }

    @property
    def batch_size(self) -> torch.Size:
        """The leading dimensions of all tensordicts."""
        return self.__dict__["_batch_size"]  # type: ignore[no-any-return]

    @property
    def device(self) -> torch.device | None:
        """The device of all tensordicts (None: each leaf has its own)."""
        return self.__dict__["_device"]  # type: ignore[no-any-return]

    observation_spec = _SpecTree("observation", "What a reset and a step give to be acted on.")
    full_observation_spec = _SpecTree("observation", "The same as `observation_spec`.")
    full_action_spec = _SpecTree("action", "What a step takes, as a composite from the root.")
    full_state_spec = _SpecTree(
        "state",
        "What a step reads from the root beside the action (a recurrent state), as a composite from the root.",
    )
    state_spec = _SpecTree("state", "The same as `full_state_spec`.")
    full_reward_spec = _SpecTree("reward", "What a step rewards with, as a composite from the root.")
    full_done_spec = _SpecTree("done", "The flags at every level that has them.")
    done_spec = _SpecTree("done", "The flags at every level that has them.")
    action_spec = _SpecLeaf("action", "What a step takes: the leaf where there is one, else a composite.")
    reward_spec = _SpecLeaf(
        "reward", "What a step rewards with: the leaf where there is one, else a composite."
    )

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
    def is_spec_locked(self) -> bool:
        """Whether the specs refuse changes. Those of environments that a batch holds do."""
        return all(tree.is_locked for tree in self._spec_trees().values())

    def set_spec_lock_(self, mode: bool = True) -> Self:
        """Lock the specs, or unlock them."""
        for tree in self._spec_trees().values():
            tree._set_locked(mode)
        return self

    @property
    def state_keys(self) -> list[Any]:
        """The keys of the states."""
        return [_short(key) for key, _ in self.full_state_spec.leaves()]

    @property
    def action_keys(self) -> list[Any]:
        """The keys of the actions."""
        return [_short(key) for key, _ in self.full_action_spec.leaves()]

    @property
    def action_key(self) -> Any:
        """The key of the first action."""
        return self.action_keys[0]

    @property
    def observation_keys(self) -> list[Any]:
        """The keys of the observations, without `next`."""
        return [_short(key) for key, _ in self.observation_spec.leaves()]

    @property
    def input_spec(self) -> Composite:
        """What a step takes: `full_action_spec` and `full_state_spec`, in one composite."""
        trees = {"full_action_spec": self.full_action_spec, "full_state_spec": self.full_state_spec}
        return Composite(trees, shape=self.batch_size).lock_()

    @property
    def output_spec(self) -> Composite:
        """What a step gives: `full_observation_spec`, `full_reward_spec` and `full_done_spec`, in one composite."""
        trees = {
            "full_observation_spec": self.observation_spec,
            "full_reward_spec": self.full_reward_spec,
            "full_done_spec": self.full_done_spec,
        }
        return Composite(trees, shape=self.batch_size).lock_()

    @property
    def reward_key(self) -> Any:
        """The key of the first reward."""
        return self.reward_keys[0]

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

    # -- flags and masks -------------------------------------------------------------------------------------------

    def _flag_shapes(self) -> dict[Key, torch.Size]:
        return {key: spec.shape for key, spec in self.full_done_spec.leaves()}

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
