"""What an environment takes and gives, in plain data: the form in which specs travel between processes.

A child that steps only gymnasium environments must not load torch, so it cannot speak in spec classes. It
describes its environment with the records below; the parent turns them into specs (`specs.spec_of`) and into
the layout of the block (`layout.block_layout`). Knows gymnasium's spaces and numpy's dtypes; nothing of
torch, processes or memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:
    import gymnasium

Key: TypeAlias = tuple[str, ...]
"""The place of a leaf in a tensordict, flattened: `("pos", "x")`."""

Path: TypeAlias = tuple[str | int, ...]
"""How to walk from the value an environment hands out to the leaf: dict keys, and positions in tuples."""

OBJECT = "object"
"""The dtype of a leaf that is no tensor. Such leaves travel beside the block."""

RESERVED = frozenset(
    {"action", "reward", "done", "terminated", "truncated", "next", "collector", "_reset", "_step"}
)
"""Names of the tensordict's own entries; an observation cannot use them at the root."""


class Kind(StrEnum):
    """The spec class of a leaf."""

    UNBOUNDED = "Unbounded"
    BOUNDED = "Bounded"
    CATEGORICAL = "Categorical"
    ONE_HOT = "OneHot"
    MULTI_CATEGORICAL = "MultiCategorical"
    MULTI_ONE_HOT = "MultiOneHot"
    BINARY = "Binary"
    NON_TENSOR = "NonTensor"


@dataclass(frozen=True, slots=True)
class LeafSpec:
    """One leaf: `shape` without any batch dimension, `dtype` as numpy spells it (and `bfloat16`, `object`).

    `low` and `high` are raw bytes of that dtype, of one element where all are equal; `nvec` holds the number
    of categories per element (`Categorical` and `OneHot`: one number); `start` is what the environment calls
    category 0.
    """

    kind: Kind
    shape: tuple[int, ...]
    dtype: str
    low: bytes = b""
    high: bytes = b""
    nvec: tuple[int, ...] = ()
    start: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"{self.kind}(shape={self.shape}, dtype={self.dtype})"

    def limits(self) -> str:
        """The bounds, or the numbers of categories, in words."""
        if self.nvec:
            return f"n={self.nvec[0] if len(self.nvec) == 1 else self.nvec}"
        if self.dtype == "bfloat16" or not self.low:
            return f"bounds {self.low.hex()} to {self.high.hex()}"
        low, high = (np.frombuffer(bound, dtype=self.dtype) for bound in (self.low, self.high))
        return f"bounds {_short(low)} to {_short(high)}"


def _short(values: np.ndarray[Any, Any]) -> str:
    """A bound in words: one number where all elements have it."""
    return str(values[0]) if values.size == 1 else np.array2string(values, threshold=8)


Leaves: TypeAlias = tuple[tuple[Key, LeafSpec], ...]


@dataclass(frozen=True, slots=True)
class EnvDescription:
    """Everything a vector env needs to know of one environment before it steps it.

    `paths` and `action_paths` say where the observation's and the action's leaves are in the environment's
    own values, in the order of `observation` and `action`. Done leaves come in groups of three at each level
    that has them.
    """

    name: str
    observation: Leaves
    action: Leaves
    reward: Leaves
    done: Leaves
    paths: tuple[Path, ...] = field(default=())
    action_paths: tuple[Path, ...] = field(default=())
    state: Leaves = ()
    """What it reads from the root beside the action. Nothing of it can lie in a block."""
    batch_size: tuple[int, ...] = ()
    takes_rows: bool = False
    """Whether it takes tensordicts itself; a gymnasium environment does not."""

    def groups(self) -> Iterator[tuple[str, Leaves]]:
        """The groups by name, in the order in which differences are reported."""
        yield "observation", self.observation
        yield "action", self.action
        yield "state", self.state
        yield "reward", self.reward
        yield "done", self.done

    @property
    def done_groups(self) -> tuple[Key, ...]:
        """The levels that have done flags, the root (`()`) first."""
        return tuple(key[:-1] for key, _ in self.done if key[-1] == "done")


FLAGS = ("done", "terminated", "truncated")
FLAG = LeafSpec(Kind.BINARY, (1,), "bool")
REWARD = LeafSpec(Kind.UNBOUNDED, (1,), "float32")
"""Rewards are cast to float32 once, where they are written into the block."""


def differences(expected: EnvDescription, found: EnvDescription) -> list[str]:
    """What `found` does not share with `expected`, one sentence per leaf; empty where they fit one block."""
    problems: list[str] = []
    for (group, wanted), (_, given) in zip(expected.groups(), found.groups(), strict=True):
        left, right = dict(wanted), dict(given)
        for key in [*left, *(key for key in right if key not in left)]:
            if left.get(key) != right.get(key):
                problems.append(
                    f"{group} {spelled(key)}: {left.get(key, 'absent')} against {right.get(key, 'absent')}"
                )
    return problems


def spelled(key: Key) -> str:
    """A key as a user writes it: `'a'` for a leaf at the root, `('a', 'b')` below."""
    return repr(key[0] if len(key) == 1 else key)


def describe_gymnasium(env: gymnasium.Env[Any, Any]) -> EnvDescription:
    """The description of a gymnasium environment: a Dict observation's keys stand at the root, any other is
    `observation`.

    Raises TypeError for a space that has no spec, ValueError for an observation key that the tensordict needs
    itself.
    """
    return describe_spaces(env.observation_space, env.action_space, name=_name_of(env))


def describe_spaces(
    observation_space: gymnasium.Space[Any], action_space: gymnasium.Space[Any], *, name: str
) -> EnvDescription:
    """The description of an environment with these spaces. Raises as `describe_gymnasium` does."""
    observation = list(_leaves_of(observation_space, ("observation",), (), is_root=True))
    action = list(_leaves_of(action_space, ("action",), ()))
    clash = [key for key, _, _ in observation if key[0] in RESERVED]
    if clash:
        raise ValueError(
            f"the observation space has the key {clash[0][0]!r}, which the tensordict needs for itself. "
            f"Rename it; reserved are {', '.join(sorted(RESERVED))}."
        )
    return EnvDescription(
        name=name,
        observation=tuple((key, leaf) for key, leaf, _ in observation),
        action=tuple((key, leaf) for key, leaf, _ in action),
        reward=((("reward",), REWARD),),
        done=tuple(((flag,), FLAG) for flag in FLAGS),
        paths=tuple(path for _, _, path in observation),
        action_paths=tuple(path for _, _, path in action),
    )


def _name_of(env: gymnasium.Env[Any, Any]) -> str:
    spec = getattr(env, "spec", None)
    return str(spec.id) if spec is not None else type(env.unwrapped).__name__


def _leaves_of(
    space: gymnasium.Space[Any], key: Key, path: Path, *, is_root: bool = False
) -> Iterator[tuple[Key, LeafSpec, Path]]:
    from gymnasium import spaces

    children: list[tuple[str | int, gymnasium.Space[Any]]]
    if isinstance(space, spaces.Dict):
        children = list(space.spaces.items())
    elif isinstance(space, spaces.Tuple):
        children = list(enumerate(space.spaces))
    else:
        yield key, leaf_of(space, key), path
        return
    if not children:
        raise TypeError(
            f"the space of {spelled(key)} is an empty {type(space).__name__}: there is nothing to store."
        )
    prefix = () if is_root and isinstance(space, spaces.Dict) else key
    for name, child in children:
        yield from _leaves_of(child, (*prefix, str(name)), (*path, name))


def leaf_of(space: gymnasium.Space[Any], key: Key = ()) -> LeafSpec:
    """The leaf of a space that is not Dict or Tuple. `key` is for the message of the TypeError alone."""
    from gymnasium import spaces

    match space:
        case spaces.Box():
            return _box(space)
        case spaces.Discrete():
            return LeafSpec(Kind.CATEGORICAL, (), "int64", nvec=(int(space.n),), start=(int(space.start),))
        case spaces.MultiDiscrete():
            nvec = tuple(int(n) for n in space.nvec.ravel())
            start = tuple(int(s) for s in np.broadcast_to(space.start, space.nvec.shape).ravel())
            return LeafSpec(Kind.MULTI_CATEGORICAL, tuple(space.nvec.shape), "int64", nvec=nvec, start=start)
        case spaces.MultiBinary():
            return LeafSpec(Kind.BINARY, tuple(space.shape), "int8")
        case spaces.Text() | spaces.Sequence() | spaces.Graph() | spaces.OneOf():
            return LeafSpec(Kind.NON_TENSOR, (), OBJECT)  # of no fixed shape: stored as the value that it is
    raise TypeError(
        f"the space of {spelled(key) if key else 'this leaf'} is {type(space).__name__}, which has no spec. Gymnasium's own "
        "spaces have one; wrap the environment so that it uses these."
    )


def _box(space: gymnasium.spaces.Box) -> LeafSpec:
    dtype = np.dtype(space.dtype)
    shape = tuple(space.shape)
    if dtype == np.bool_:
        return LeafSpec(Kind.BINARY, shape, "bool")
    if not (np.isfinite(space.low).any() or np.isfinite(space.high).any()):
        return LeafSpec(Kind.UNBOUNDED, shape, dtype.name)
    return LeafSpec(
        Kind.BOUNDED, shape, dtype.name, low=packed(space.low, dtype), high=packed(space.high, dtype)
    )


def packed(values: Any, dtype: np.dtype[Any]) -> bytes:
    """Bounds as bytes: one element where all are equal, else all of them in C order."""
    array = np.ascontiguousarray(values, dtype=dtype)
    if array.size and (array == array.ravel()[0]).all():
        return array.ravel()[:1].tobytes()
    return array.tobytes()
