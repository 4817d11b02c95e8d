"""What a transform is: it adds entries to the roots and to what steps give, and their specs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tensordict import TensorDictBase

from rollout_worker.envs.describe import Key
from rollout_worker.envs.specs import Composite, flat_key

if TYPE_CHECKING:
    from rollout_worker.envs.base import EnvBase


class Transform:
    """Does nothing; subclasses say what is added.

    A transform keeps nothing from step to step: what it counts is in the root that the caller hands back, so rows can
    be reset and skipped one by one.
    """

    def attach(self, env: EnvBase) -> None:
        """Look at the environment under the transform, once. Raises what is wrong with them together."""

    def observed(self) -> Composite:
        """The specs of what is added to roots and to `next`."""
        return Composite()

    def on_reset(self, root: TensorDictBase) -> None:
        """Write into a fresh root, as if all rows were reset."""

    def on_step(self, root: TensorDictBase, following: TensorDictBase) -> None:
        """Write into what a step gave; `root` is where it was taken from."""

    def action_spec(self, root: TensorDictBase, spec: Composite) -> Composite:
        """The action specs that hold at a root."""
        return spec

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class Compose(Transform):
    """Several transforms, one after the other; `compose[i]` is one of them."""

    def __init__(self, *transforms: Transform) -> None:
        self.transforms = list(transforms)

    def attach(self, env: EnvBase) -> None:
        for transform in self.transforms:
            transform.attach(env)

    def observed(self) -> Composite:
        specs = Composite()
        for transform in self.transforms:
            specs.update(transform.observed())
        return specs

    def on_reset(self, root: TensorDictBase) -> None:
        for transform in self.transforms:
            transform.on_reset(root)

    def on_step(self, root: TensorDictBase, following: TensorDictBase) -> None:
        for transform in self.transforms:
            transform.on_step(root, following)

    def action_spec(self, root: TensorDictBase, spec: Composite) -> Composite:
        for transform in self.transforms:
            spec = transform.action_spec(root, spec)
        return spec

    def append(self, transform: Transform) -> Compose:
        """These transforms, and another one after them."""
        return Compose(*self.transforms, transform)

    def __getitem__(self, index: int) -> Transform:
        return self.transforms[index]

    def __len__(self) -> int:
        return len(self.transforms)

    def __repr__(self) -> str:
        return f"Compose({', '.join(map(repr, self.transforms))})"


def levels_of(env: EnvBase) -> dict[Key, Any]:
    """The levels of an environment that have flags, with the shape of a flag there; the root is `()`."""
    return {key[:-1]: spec.shape for key, spec in env.full_done_spec.leaves() if key[-1] == "done"}


def wanted_keys(names: Sequence[Any] | None) -> list[Key] | None:
    """Keys in any spelling as flat ones; None stays None."""
    return None if names is None else [flat_key(name) for name in names]
