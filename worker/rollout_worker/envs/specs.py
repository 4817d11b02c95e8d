"""The spec classes, and their way to and from the plain descriptions in which specs travel between processes.

Everything that users need of specs is here: `Composite`, `Unbounded`, `Bounded`, `Categorical`, `OneHot`,
`MultiCategorical`, `MultiOneHot`, `Binary`, `NonTensor`, and `spec_of` for a gymnasium space.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from rollout_worker.envs import describe
from rollout_worker.envs.describe import Kind, Leaves
from rollout_worker.envs.spec_leaves import (
    Binary,
    Bounded,
    Categorical,
    LeafSpec,
    MultiCategorical,
    MultiOneHot,
    NonTensor,
    OneHot,
    Spec,
    Unbounded,
)
from rollout_worker.envs.spec_stack import Stacked, StackedComposite, stack_specs
from rollout_worker.envs.spec_tree import Composite, flat_key

if TYPE_CHECKING:
    import gymnasium

__all__ = [
    "Binary",
    "Bounded",
    "Categorical",
    "Composite",
    "EnvSpecs",
    "LeafSpec",
    "MultiCategorical",
    "MultiOneHot",
    "NonTensor",
    "OneHot",
    "Spec",
    "Stacked",
    "StackedComposite",
    "Unbounded",
    "composite_of",
    "description_of",
    "flat_key",
    "leaf_spec_of",
    "single_or_composite",
    "spec_of",
    "stack_specs",
]


def torch_dtype(name: str) -> torch.dtype:
    """The torch dtype that numpy (or we) call by this name. Raises TypeError where torch has none."""
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise TypeError(f"torch has no dtype {name!r}")
    return found


def dtype_name(dtype: torch.dtype) -> str:
    """The name of a torch dtype as numpy spells it."""
    return str(dtype).removeprefix("torch.")


def spec_of(space: gymnasium.Space[Any]) -> Spec:
    """The spec of a gymnasium space; a Dict or Tuple becomes a Composite. Raises TypeError for a space that has none."""
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        return Composite({str(name): spec_of(child) for name, child in space.spaces.items()})
    if isinstance(space, spaces.Tuple):
        return Composite({str(position): spec_of(child) for position, child in enumerate(space.spaces)})
    return leaf_spec_of(describe.leaf_of(space))


def leaf_spec_of(leaf: describe.LeafSpec) -> Spec:
    """The spec that a plain description stands for."""
    match leaf.kind:
        case Kind.NON_TENSOR:
            return NonTensor(leaf.shape)
        case Kind.UNBOUNDED:
            return Unbounded(leaf.shape, None, torch_dtype(leaf.dtype))
        case Kind.BOUNDED:
            low, high = (_unpacked(bound, leaf) for bound in (leaf.low, leaf.high))
            return Bounded(low, high, leaf.shape, None, torch_dtype(leaf.dtype))
        case Kind.CATEGORICAL:
            return Categorical(leaf.nvec[0], leaf.shape, None, torch_dtype(leaf.dtype))
        case Kind.ONE_HOT:
            return OneHot(leaf.nvec[0], leaf.shape, None, torch_dtype(leaf.dtype))
        case Kind.MULTI_CATEGORICAL:
            nvec = torch.tensor(leaf.nvec).reshape(leaf.shape)
            return MultiCategorical(nvec, leaf.shape, None, torch_dtype(leaf.dtype))
        case Kind.MULTI_ONE_HOT:
            return MultiOneHot(leaf.nvec, leaf.shape, None, torch_dtype(leaf.dtype))
        case Kind.BINARY:
            return Binary(None, leaf.shape, None, torch_dtype(leaf.dtype))


def _unpacked(bound: bytes, leaf: describe.LeafSpec) -> torch.Tensor:
    dtype = torch_dtype(leaf.dtype)
    values = torch.frombuffer(bytearray(bound), dtype=dtype)
    return values.reshape(()) if values.numel() == 1 else values.reshape(leaf.shape)


def description_of(spec: Spec) -> describe.LeafSpec:
    """The plain description of a leaf spec. Raises TypeError for a spec class that has none."""
    if isinstance(spec, NonTensor):
        return describe.LeafSpec(Kind.NON_TENSOR, tuple(spec.shape), describe.OBJECT)
    if not isinstance(spec, LeafSpec):
        raise TypeError(f"{type(spec).__name__} is no leaf spec")
    shape, dtype = tuple(spec.shape), dtype_name(spec.dtype)
    match spec:
        case Bounded():
            low, high = _packed(spec.low), _packed(spec.high)
            return describe.LeafSpec(Kind.BOUNDED, shape, dtype, low=low, high=high)
        case Categorical() | OneHot():
            return describe.LeafSpec(Kind(type(spec).__name__), shape, dtype, nvec=(spec.n,))
        case MultiCategorical():
            return describe.LeafSpec(
                Kind.MULTI_CATEGORICAL, shape, dtype, nvec=tuple(spec.nvec.ravel().tolist())
            )
        case MultiOneHot():
            return describe.LeafSpec(Kind.MULTI_ONE_HOT, shape, dtype, nvec=spec.nvec)
        case Binary():
            return describe.LeafSpec(Kind.BINARY, shape, dtype)
        case Unbounded():
            return describe.LeafSpec(Kind.UNBOUNDED, shape, dtype)
    raise TypeError(f"{type(spec).__name__} has no description")


def _packed(bound: torch.Tensor) -> bytes:
    values = bound.detach().cpu().contiguous()
    if values.dtype == torch.bfloat16:
        return describe.packed(values.view(torch.int16).numpy(), np.dtype("int16"))
    return describe.packed(values.numpy(), np.dtype(dtype_name(values.dtype)))


def composite_of(leaves: Leaves) -> Composite:
    """The composite of described leaves."""
    return Composite({key: leaf_spec_of(leaf) for key, leaf in leaves})


def single_or_composite(tree: Composite) -> Spec:
    """What an environment's `action_spec` and `reward_spec` are: the leaf where there is only one, else the tree."""
    leaves = list(tree.leaves())
    return leaves[0][1] if len(leaves) == 1 else tree


@dataclass(frozen=True, slots=True)
class EnvSpecs:
    """The four specs of an environment as trees from the root of its tensordict."""

    observation: Composite
    full_action: Composite
    full_reward: Composite
    full_done: Composite

    @staticmethod
    def of(description: describe.EnvDescription) -> EnvSpecs:
        """The specs that a description stands for."""
        groups = (description.observation, description.action, description.reward, description.done)
        return EnvSpecs(*(composite_of(leaves) for leaves in groups))

    @property
    def action(self) -> Spec:
        """The action's leaf where there is only one, else the tree."""
        return single_or_composite(self.full_action)

    @property
    def reward(self) -> Spec:
        """The reward's leaf where there is only one, else the tree."""
        return single_or_composite(self.full_reward)

    def expand(self, *shape: int) -> EnvSpecs:
        """The specs of a batch of such environments."""
        trees = (self.observation, self.full_action, self.full_reward, self.full_done)
        return EnvSpecs(*(tree.expand(*shape, *tree.shape) for tree in trees))
