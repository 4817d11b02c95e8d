"""Values of gymnasium spaces as leaves of a tensordict, and back. Used by all adapters of gymnasium's kind.

Everything that goes into a tensordict is a copy: environments may reuse their buffers.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from tensordict import NonTensorData, NonTensorStack, TensorDictBase

from rollout_worker.envs.describe import OBJECT, EnvDescription, Key, LeafSpec, Leaves, Path
from rollout_worker.envs.native import action_reader
from rollout_worker.envs.specs import (
    Categorical,
    Composite,
    MultiCategorical,
    MultiOneHot,
    NonTensor,
    OneHot,
    Spec,
    leaf_spec_of,
)
from rollout_worker.envs.writing import fitted


def at(value: Any, path: Path) -> Any:
    """The part of a nested value that a path leads to."""
    for name in path:
        value = value[name]
    return value


def leaves_of(observation: Any, leaves: Leaves, paths: tuple[Path, ...]) -> list[tuple[Key, Any]]:
    """The leaves of one observation: tensors of their own memory, or non-tensor data.

    Raises what `writing.fitted` raises for a value that is not as its spec says.
    """
    found: list[tuple[Key, Any]] = []
    for (key, spec), path in zip(leaves, paths, strict=True):
        value = fitted(at(observation, path), key, spec)
        found.append((key, NonTensorData(value) if spec.dtype == OBJECT else _tensor(value, spec)))
    return found


def rows_of(
    observation: Any, leaves: Leaves, paths: tuple[Path, ...], num_envs: int
) -> list[tuple[Key, Any]]:
    """The leaves of a batch of observations `[num_envs, *shape]`, as gymnasium's vector envs lay them out."""
    found: list[tuple[Key, Any]] = []
    for (key, spec), path in zip(leaves, paths, strict=True):
        value = at(observation, path)
        if spec.dtype == OBJECT:
            found.append((key, NonTensorStack(*(NonTensorData(copy.deepcopy(each)) for each in value))))
        else:
            rows = np.asarray(value).reshape(num_envs, *spec.shape)
            start = np.array(spec.start or 0, dtype=spec.dtype).reshape(spec.shape if spec.start else ())
            found.append(
                (key, torch.from_numpy(np.array(rows - start if spec.start else rows, dtype=spec.dtype)))
            )
    return found


def with_rows(td: TensorDictBase, mask: np.ndarray[Any, Any], rows: TensorDictBase) -> TensorDictBase:
    """A copy of a batch in which the rows that the mask marks are those of `rows`, `[mask.sum()]`, in order."""
    made, at_rows = td.clone(), torch.from_numpy(mask)
    for key, value in rows.items(True, True):
        if isinstance(value, torch.Tensor):
            made.get(key)[at_rows] = value
            continue
        new = iter(value.tolist())
        old = made.get(key).tolist()
        each = [next(new) if is_new else before for is_new, before in zip(mask, old, strict=True)]
        made.set(key, NonTensorStack(*map(NonTensorData, each)))
    return made


def stacked_leaves(values: list[Any], key: Key, spec: LeafSpec) -> Any:
    """Values of one leaf, of several environments, as rows. Raises what `writing.fitted` raises."""
    if spec.dtype == OBJECT:
        each = [
            value if isinstance(value, NonTensorData) else NonTensorData(copy.deepcopy(value))
            for value in values
        ]
        return NonTensorStack(*each)
    return torch.stack(
        [
            value if isinstance(value, torch.Tensor) else _tensor(fitted(value, key, spec), spec)
            for value in values
        ]
    )


def _tensor(value: Any, spec: LeafSpec) -> torch.Tensor:
    return torch.from_numpy(np.array(value, dtype=spec.dtype, copy=True))


def info_leaves(info: Mapping[str, Any], specs: Mapping[Key, Spec]) -> Iterator[tuple[Key, Any]]:
    """The declared infos; the spec's zero where an info lacks one."""
    for key, spec in specs.items():
        try:
            value = at(info, key)
        except (KeyError, TypeError):
            yield key, spec.zero()
            continue
        yield (
            key,
            NonTensorData(copy.deepcopy(value))
            if isinstance(spec, NonTensor)
            else spec.encode(value).clone(),
        )


def one_number(reward: Any) -> float:
    """A reward as a number. Raises TypeError for one that holds several."""
    if isinstance(reward, (float, int)):
        return float(reward)
    array = np.asarray(reward)
    if array.size != 1:
        raise TypeError(f"the reward has shape {list(array.shape)}; expected is one number")
    return float(array.reshape(()))


class ActionCoder:
    """Actions between a tensordict and the environment: numbers or one-hot vectors, offsets, trees of spaces."""

    def __init__(self, description: EnvDescription, *, is_one_hot: bool) -> None:
        self._leaves = description.action
        self._read = action_reader(description)
        self._specs = {key: self._encoding(leaf_spec_of(leaf), is_one_hot) for key, leaf in self._leaves}

    @staticmethod
    def _encoding(spec: Spec, is_one_hot: bool) -> Spec:
        if is_one_hot and isinstance(spec, Categorical):
            return OneHot(spec.n)
        if is_one_hot and isinstance(spec, MultiCategorical) and len(spec.shape) == 1:
            return MultiOneHot(spec.nvec.tolist())
        return spec

    def specs(self) -> Composite:
        """The action specs of one environment, from the root."""
        return Composite(self._specs)

    def decoded(self, td: TensorDictBase) -> Any:
        """One action as the environment takes it. Raises KeyError for one that is missing."""
        return self.batch(td.unsqueeze(0) if not td.ndim else td)[0]

    def batch(self, td: TensorDictBase) -> list[Any]:
        """The actions of `[n]` rows, each as its environment takes it."""
        return self._read({key: self._column(td, key, spec) for key, spec in self._specs.items()}, 0)

    def _column(self, td: TensorDictBase, key: Key, spec: Spec) -> Any:
        value = td.get(key if len(key) > 1 else key[0], None)
        if value is None:
            raise KeyError(f"the tensordict has no {key if len(key) > 1 else key[0]!r}; a step needs it")
        if isinstance(spec, NonTensor):
            given = value.tolist() if isinstance(value, (NonTensorData, NonTensorStack)) else value
            column = np.empty((len(given), 1), dtype=object)
            column[:, 0] = given
            return column
        if isinstance(spec, (OneHot, MultiOneHot)):
            value = spec.to_categorical(value)
        return value.detach().cpu().numpy()[:, None]


def row_actions(actions: ActionCoder, td: TensorDictBase, env: Any) -> Any:
    """The actions of all rows as a vector environment takes them: batched by its own action space."""
    from gymnasium.vector.utils import (
        concatenate,
        create_empty_array,
    )  # whoever has such an environment has it loaded

    space, rows = env.single_action_space, actions.batch(td)
    empty: Any = create_empty_array(space, len(rows))
    return concatenate(space, rows, empty)


def sampled(td: TensorDictBase, description: EnvDescription, space: Any) -> TensorDictBase:
    """Replace random actions that are no tensors by samples of their spaces."""
    for (key, leaf), path in zip(description.action, description.action_paths, strict=True):
        if leaf.dtype == OBJECT:
            each = space
            for name in path:
                each = each[name]
            values = [NonTensorData(each.sample()) for _ in range(td.batch_size.numel())]
            td.set(key, NonTensorStack(*values) if td.ndim else values[0])
    return td
