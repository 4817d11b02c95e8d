"""The tensordict side of vector envs: what `SerialEnv` and `ParallelEnv` have in common.

Rows are stepped by a `VectorEnv` over a block of one frame; results are copied out of it once, so that they
are the caller's own. Everything starts by itself when it is first needed.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from tensordict import NonTensorStack, TensorDictBase

from rollout_worker.envs.base import EnvBase
from rollout_worker.envs.commands import Step
from rollout_worker.envs.describe import EnvDescription, Key, spelled
from rollout_worker.envs.factory import EnvFactory, Recipe, recipes_of
from rollout_worker.envs.layout import flag_keys
from rollout_worker.envs.native import open_session
from rollout_worker.envs.seeding import chain
from rollout_worker.envs.spec_leaves import Device
from rollout_worker.envs.specs import Composite, EnvSpecs
from rollout_worker.envs.stepper import StepRules
from rollout_worker.envs.transitions import (
    RESET,
    STEP,
    keep_entries,
    keep_unknown,
    merged_where,
    tensordict_of,
    tree_of,
)
from rollout_worker.envs.vector import VectorEnv
from rollout_worker.envs.vector_parts import VectorSettings

WITHDRAWN = {
    "pin_memory": "page-locked buffers do not exist here",
    "allow_step_when_done": "an ended environment can always be stepped",
}
"""Keywords that are taken for the sake of existing code, and refused where they ask for something."""


_STEP_ONLY = Step(0, 0, 1, autoreset=False)
_STEP_AND_RESET = Step(0, 0, 1, autoreset=True)


class Values(list[Any]):
    """One value per environment, in order. Calling it gives the values too."""

    def __call__(self) -> list[Any]:
        """The values as a plain list."""
        return list(self)


class BatchedEnv(EnvBase):
    """`num_workers` environments as one, with a leading dimension of that size. See `SerialEnv` and `ParallelEnv`."""

    def __init__(
        self,
        num_workers: int,
        create_env_fn: EnvFactory | Sequence[EnvFactory],
        *,
        create_env_kwargs: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        device: Device = None,
        check_finite: bool = False,
        **withdrawn: Any,
    ) -> None:
        if isinstance(num_workers, bool) or not isinstance(num_workers, int):
            raise TypeError(f"num_workers must be an int, not {type(num_workers).__name__}")
        if num_workers < 1:
            raise ValueError(f"num_workers is {num_workers}; it must be at least 1")
        _refuse_withdrawn(withdrawn, type(self).__name__)
        super().__init__(device=device, batch_size=(num_workers,))
        self.num_workers = num_workers
        self.__dict__["_recipes"] = recipes_of(create_env_fn, num_workers, create_env_kwargs)
        self.__dict__["_rules"] = StepRules(check_finite=check_finite)
        self.__dict__["_vector"] = None
        self.__dict__["_description"] = None

    @abstractmethod
    def _make_vector(self, recipes: Sequence[Recipe], settings: VectorSettings) -> VectorEnv: ...

    # -- life ------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Make the environments. Raises RuntimeError if they run already; the first use starts them anyway."""
        if not self.is_closed:
            raise RuntimeError(f"{type(self).__name__} has been started already")
        vector = self._make_vector(self._recipes, VectorSettings(rules=self._rules))
        vector.start()
        self.__dict__["_vector"] = vector
        self._describe(vector.description)
        self._bind(vector)

    @property
    def is_closed(self) -> bool:
        """True before the first start, after `close`, and after a failure."""
        vector = self.__dict__["_vector"]
        return vector is None or vector.is_closed

    def close(self, *, raise_if_closed: bool = True) -> None:
        """Close the environments and give back processes and memory. The next use starts anew.

        Raises RuntimeError where nothing is open, unless `raise_if_closed` is False. A failed environment
        counts as open, once.
        """
        vector: VectorEnv | None = self.__dict__["_vector"]
        if vector is None and raise_if_closed:
            raise RuntimeError(
                f"{type(self).__name__} is closed already; pass raise_if_closed=False to allow that"
            )
        self.__dict__["_vector"] = None
        self.__dict__["_description"] = None
        if vector is not None:
            vector.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_vector": None, "_view": None}

    @property
    def vector(self) -> VectorEnv:
        """The running vector env; started if nothing runs. After a failure it is closed, and its calls say so."""
        if self.__dict__["_vector"] is None:
            self.start()
        return self.__dict__["_vector"]  # type: ignore[no-any-return]

    # -- specs -----------------------------------------------------------------------------------------------------

    def _describe(self, description: EnvDescription) -> None:
        self.__dict__["_description"] = description
        specs = EnvSpecs.of(description).expand(self.num_workers)
        trees = {
            "observation": specs.observation,
            "action": specs.full_action,
            "reward": specs.full_reward,
            "done": specs.full_done,
        }
        device = self.device
        self._specs = {
            name: (tree if device is None else tree.to(device)).lock_() for name, tree in trees.items()
        }

    def _spec_trees(self) -> dict[str, Composite]:
        if self.__dict__.get("_description", ...) is None:
            self._describe(self._description_of_one())
        return super()._spec_trees()

    def _description_of_one(self) -> EnvDescription:
        """The description, from one environment that is made here and closed again."""
        session = open_session(self._recipes[0], 0)
        try:
            return session.description
        finally:
            session.close()

    # -- resets and steps ------------------------------------------------------------------------------------------

    def reset(self, td: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        if kwargs:
            raise TypeError(f"reset takes no keywords here: {', '.join(kwargs)}")
        vector = self._vector_to_reset() if td is None else self._vector_for(td)
        mask = None if td is None else self._reset_mask(td)
        if mask is None or bool(mask.any()):
            vector.reset(mask=None if mask is None else mask.cpu().numpy())
        view: _View = self._view
        if td is None:
            return view.root()
        fresh = view.root() if mask is None else merged_where(mask, view.root(), td)
        td.exclude(*self.reset_keys, "next", inplace=True)
        return td.update(fresh)

    def step(self, td: TensorDictBase) -> TensorDictBase:
        self._advance(td, autoreset=False)
        return td

    def step_and_maybe_reset(self, td: TensorDictBase) -> tuple[TensorDictBase, TensorDictBase]:
        mask = self._advance(td, autoreset=True)
        if mask is None:
            return td, self._view.root(kept=td)
        root = merged_where(mask, self._view.root(), self._next_root(td))
        return td, td.exclude("next", RESET, STEP).update(root)

    def _advance(self, td: TensorDictBase, *, autoreset: bool) -> torch.Tensor | None:
        """Step, and put what came of it under `next`. Gives the mask of a partial step."""
        vector = self._vector_for(td)
        view: _View = self._view
        entries = set(td.keys())
        mask = self._step_mask(td) if STEP in entries else None
        if mask is not None and bool(mask.all()):
            mask = None
        view.put_actions(td)
        if mask is None:
            vector.advance(_STEP_AND_RESET if autoreset else _STEP_ONLY)
            following = view.following()
        else:
            if bool(mask.any()):
                vector.advance(Step(0, 0, 1, autoreset, masked=True), mask=mask.cpu().numpy())
            following = merged_where(mask, view.following(), self._standing_rows(td))
        if "next" in entries:
            keep_unknown(following, td.get("next"))
        td.set("next", following)
        return mask

    def _standing_rows(self, td: TensorDictBase) -> TensorDictBase:
        """What skipped rows give: their root (the current observation where `td` has none), and reward 0."""
        return self._view.root().update(self._standing(td))

    def _vector_for(self, td: TensorDictBase) -> VectorEnv:
        if td.batch_size != self.batch_size:
            raise RuntimeError(
                f"the tensordict has the batch size {list(td.batch_size)}; {type(self).__name__} expects "
                f"{list(self.batch_size)}"
            )
        vector: VectorEnv | None = self.__dict__["_vector"]
        if vector is None:
            vector = self.vector
            vector.reset()
        return vector

    def _vector_to_reset(self) -> VectorEnv:
        """The vector env, started anew where it was closed by a failure."""
        vector: VectorEnv | None = self.__dict__["_vector"]
        if vector is not None and vector.is_closed:
            self.close()
        return self.vector

    def _reset_done(self, root: TensorDictBase, skipped: torch.Tensor | None) -> TensorDictBase:
        done = self._any_done(root)
        if not bool(done.any()):
            return root
        return self.reset(root.clone(False).set(RESET, done.unsqueeze(-1)))

    def _bind(self, vector: VectorEnv) -> None:
        self.__dict__["_view"] = _View(vector, self.batch_size, self.device)

    def _reset(self, td: TensorDictBase | None, **kwargs: Any) -> TensorDictBase:
        raise NotImplementedError("a batched environment resets through its vector env")

    def _step(self, td: TensorDictBase) -> TensorDictBase:
        raise NotImplementedError("a batched environment steps through its vector env")

    # -- seeds, attributes, state ----------------------------------------------------------------------------------

    def set_seed(self, seed: int | None = None, static_seed: bool = False) -> int | None:
        """Give environment i the i-th seed of the chain that starts at `seed`; gives the one after the last."""
        if seed is None:
            _ = self.vector
            return None
        seeds, following = chain(seed, self.num_workers, is_static=static_seed)
        self.vector.set_seed(seeds)
        return following

    def call(self, name: str, *args: Any, indices: Sequence[int] | None = None, **kwargs: Any) -> list[Any]:
        """Call a method of each environment (or of those in `indices`); one result each, in order."""
        return self.vector.call(name, *args, indices=indices, **kwargs)

    def get_attr(self, name: str, *, indices: Sequence[int] | None = None) -> list[Any]:
        """Read an attribute of each environment."""
        return self.vector.get_attr(name, indices=indices)

    def set_attr(self, name: str, value: Any, *, indices: Sequence[int] | None = None) -> None:
        """Set an attribute of each environment."""
        self.vector.set_attr(name, value, indices=indices)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            return super().__getattr__(name)
        if self.vector.has_method(name):
            return _method(self, name)
        return Values(self.vector.get_attr(name))

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]
        """`worker0` … to the state dict of each environment."""
        states = self.call("state_dict")
        return {f"worker{index}": state for index, state in enumerate(states)}

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> None:
        """Load what `state_dict` gave; a mapping without `worker0` goes whole to every environment."""
        for index in range(self.num_workers):
            state = state_dict[f"worker{index}"] if "worker0" in state_dict else state_dict
            self.call("load_state_dict", state, indices=[index])

    def add_truncated_keys(self) -> None:
        """Always a RuntimeError: flags are declared where they arise."""
        raise RuntimeError(
            "truncated flags must be declared by the environments themselves, not by their batch"
        )

    def __repr__(self) -> str:
        description: EnvDescription | None = self.__dict__["_description"]
        name = "not made yet" if description is None else description.name
        return f"{type(self).__name__}(\n    env={name},\n    batch_size={list(self.batch_size)})"


class _View:
    """The one-frame block of a vector env, as tensordicts whose tensors are copies."""

    def __init__(self, vector: VectorEnv, batch_size: torch.Size, device: torch.device | None) -> None:
        block, carry = vector.blocks[0], vector.carry
        layout = block.layout
        self._batch_size, self._device = batch_size, device
        flags = flag_keys(layout.done_groups)
        keys = [key for key in (*layout.root_keys, *layout.reward_keys, *flags) if key not in layout.objects]
        self._next = [(key, _copier(block.tensors["next", *key][:, 0], device)) for key in keys]
        roots = [key for key in layout.root_keys if key not in layout.objects]
        self._carry = [(key, _copier(carry.tensors[key][:, 0], device)) for key in roots]
        self._flags = [
            (key, _blank((*batch_size, *block.arrays["next", *key].shape[2:]), device)) for key in flags
        ]
        self._objects = [
            (key, block.arrays["next", *key], carry.arrays[key])
            for key in layout.root_keys
            if key in layout.objects
        ]
        self._actions = {key: block.tensors[key][:, 0] for key in layout.action_keys}

    def put_actions(self, td: TensorDictBase) -> None:
        """Write a tensordict's actions into the block.

        Raises KeyError for one that is missing, RuntimeError for one of another shape.
        """
        for key, target in self._actions.items():
            action = td.get(key if len(key) > 1 else key[0], None)
            if action is None:
                raise KeyError(f"the tensordict has no {spelled(key)}; a step needs it")
            if action.shape != target.shape:
                raise RuntimeError(
                    f"{spelled(key)} has shape {list(action.shape)}; its spec says {list(target.shape)}"
                )
            target.copy_(action.detach())

    def root(self, kept: TensorDictBase | None = None) -> TensorDictBase:
        """The observation to act on, with flags that are all False.

        `kept` is the stepped tensordict before it: its other root entries (actions, a policy's outputs) go along.
        """
        leaves: dict[Key, Any] = {key: copy() for key, copy in self._carry}
        for key, _, array in self._objects:
            leaves[key] = NonTensorStack(*array[:, 0].tolist())
        for key, blank in self._flags:
            leaves[key] = blank()
        tree = tree_of(leaves, self._batch_size, self._device)
        if kept is not None:
            keep_entries(tree, kept)
        return tensordict_of(tree, self._batch_size, self._device)

    def following(self) -> TensorDictBase:
        """What the last step gave."""
        leaves: dict[Key, Any] = {key: copy() for key, copy in self._next}
        for key, array, _ in self._objects:
            leaves[key] = NonTensorStack(*array[:, 0].tolist())
        return tensordict_of(tree_of(leaves, self._batch_size, self._device), self._batch_size, self._device)


def _copier(view: torch.Tensor, device: torch.device | None) -> Callable[[], torch.Tensor]:
    """A function that gives the caller's own copy of what a view holds now."""
    if device is not None and device != view.device:
        return lambda: view.to(device)
    if view.dtype == torch.bfloat16:
        return view.clone
    array = view.numpy()
    return lambda: torch.from_numpy(array.copy())  # half the cost of a clone for small arrays


def _blank(shape: tuple[int, ...], device: torch.device | None) -> Callable[[], torch.Tensor]:
    """A function that gives new flags, all False."""
    if device is None or device.type == "cpu":
        return lambda: torch.from_numpy(np.zeros(shape, dtype=np.bool_))
    return lambda: torch.zeros(shape, dtype=torch.bool, device=device)


def _method(env: BatchedEnv, name: str) -> Callable[..., list[Any]]:
    def call(*args: Any, **kwargs: Any) -> list[Any]:
        return env.call(name, *(each for each in args if each is not env), **kwargs)

    return call


def _refuse_withdrawn(keywords: Mapping[str, Any], owner: str) -> None:
    for name, value in keywords.items():
        if name not in WITHDRAWN:
            raise TypeError(f"{owner} has no keyword {name!r}")
        if value:
            raise ValueError(f"{name}={value!r} is not offered: {WITHDRAWN[name]}")
