"""Environments as the stepper sees them: gymnasium's calling convention over numpy, and how to get there from
a factory.

`Session` is that convention plus a description. A gymnasium environment is one as it stands
(`GymnasiumSession` binds its methods); an environment of ours brings its own through `native_session`.
Importing this loads neither torch nor gymnasium.
"""

from __future__ import annotations

import copy
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np

from rollout_worker.envs import factory
from rollout_worker.envs.autoreset import ordinary
from rollout_worker.envs.describe import EnvDescription, Key, LeafSpec, Path, describe_gymnasium
from rollout_worker.envs.faults import NotAnEnvironment

ACCEPTED = (
    "an EnvBase of rollout_worker.envs, or an environment of gymnasium (vector environments too), TorchRL or PettingZoo "
    "(parallel)"
)

FOREIGN = (("gymnasium.vector", "VectorEnv"), ("torchrl.envs", "EnvBase"), ("pettingzoo", "ParallelEnv"))
"""Environments of other libraries for which there is an adapter, by module and class."""


class Start(NamedTuple):
    """What a reset takes beside a seed: keywords, and (for environments of ours) a tensordict, as `row_codec` encodes it."""

    kwargs: Mapping[str, Any]
    row: Any = None


class Session(Protocol):
    """One environment, ready to be stepped into a block."""

    description: EnvDescription
    env: Any
    """What the factory made: attribute and method calls go there."""

    @property
    def step(self) -> Callable[[Any], tuple[Any, Any, Any, Any, Any]]:
        """`step(action)` gives observation, reward, terminated, truncated and info."""

    def seed(self, seed: int) -> None:
        """Rewind the environment's own generator: at once, or at the next reset if that is how it is seeded."""

    def reset(self, seed: int | None) -> Any:
        """Reset and give the observation. A seed rewinds the generator first; None goes on with it."""

    def stage(self, start: Start) -> None:
        """Keep what the next reset takes beside its seed."""

    def close(self) -> None:
        """Give back what the environment holds."""


class GymnasiumSession:
    """A gymnasium environment, called directly."""

    def __init__(self, env: Any) -> None:
        self.env = env
        self.description = describe_gymnasium(env)
        self.step: Callable[[Any], tuple[Any, Any, Any, Any, Any]] = env.step
        self._next_seed: int | None = None
        self._staged: Mapping[str, Any] = {}

    def seed(self, seed: int) -> None:
        """Gymnasium seeds an environment by resetting it, so the seed waits for the next reset."""
        self._next_seed = seed

    def reset(self, seed: int | None) -> Any:
        """A seed is handed on once; later episodes go on with the same stream."""
        if seed is None:
            seed, self._next_seed = self._next_seed, None
        staged, self._staged = self._staged, {}
        observation, _ = self.env.reset(seed=seed, **staged)
        return observation

    def stage(self, start: Start) -> None:
        """Keywords go to the environment's own `reset`; gymnasium knows no tensordict to start from."""
        self._staged = start.kwargs

    def close(self) -> None:
        """Close the environment."""
        self.env.close()


def gymnasium_env(env_name: str, **kwargs: Any) -> Any:
    """`gymnasium.make` without its passive checker, which costs more per step than a small environment itself."""
    import gymnasium

    kwargs.setdefault("disable_env_checker", True)
    return gymnasium.make(env_name, **kwargs)


class Makers:
    """Makes the environments of one process, each an object of its own: what a factory gives twice is copied."""

    def __init__(self) -> None:
        self._made: dict[int, Any] = {}

    def make(self, recipe: factory.Recipe, env_index: int) -> Any:
        """Make an environment. Where a factory gives one again that cannot be copied, it is shared, with a warning."""
        env = factory.make(recipe, env_index)
        if id(env) in self._made:
            env = self._copied(env, env_index)
        self._made[id(env)] = env
        return env

    @staticmethod
    def _copied(env: Any, env_index: int) -> Any:
        try:
            return copy.deepcopy(env)
        except Exception as error:
            warnings.warn(
                f"the factory of environment {env_index} gave an environment that another one holds already, and it cannot "
                f"be copied ({type(error).__name__}: {error}): both are the same object now",
                stacklevel=2,
            )
            return env


def session_of(env: Any) -> Session:
    """The session of what a factory made."""
    if is_gymnasium(env):
        return GymnasiumSession(ordinary(env))
    ours = env if _is_instance(env, "rollout_worker.envs.base", "EnvBase") else _adapted(env)
    if ours is None:
        raise NotAnEnvironment(f"the factory made {type_name(env)}; accepted is {ACCEPTED}")
    session: Session = ours.native_session()
    return session


def _adapted(env: Any) -> Any:
    """An environment of another library as one of ours; None for what is none. Nothing is loaded for what cannot be one."""
    if not any(_is_instance(env, *place) for place in FOREIGN):
        return None
    from rollout_worker.envs.adapters.known import adapted  # loads torch

    return adapted(env)


def close_made(env: Any) -> None:
    """Close what a factory made."""
    close = getattr(env, "close", None)
    if callable(close):
        close(
            **({"raise_if_closed": False} if _is_instance(env, "rollout_worker.envs.base", "EnvBase") else {})
        )


def is_gymnasium(value: Any) -> bool:
    """Whether something is a single gymnasium environment (an EnvPool calls itself one, and is a batch)."""
    return _is_instance(value, "gymnasium", "Env") and not _is_instance(
        value, "gymnasium.vector", "VectorEnv"
    )


def _is_instance(value: Any, module_name: str, class_name: str) -> bool:
    """isinstance without importing: a value's class cannot come from a module that is not loaded."""
    module = sys.modules.get(module_name)
    kind = getattr(module, class_name, None)
    return isinstance(kind, type) and isinstance(value, kind)


def type_name(value: Any) -> str:
    kind = type(value)
    return f"{kind.__module__}.{kind.__qualname__}" if kind.__module__ != "builtins" else kind.__qualname__


ActionReader = Callable[[dict[Key, Any], int], list[Any]]


def action_reader(description: EnvDescription) -> ActionReader:
    """A function that takes the actions of one frame out of a block's arrays, as the environments expect
    them.

    It gets the action arrays of a slice `[n, num_steps, *shape]` and the frame's index, and gives n actions
    that share no memory with the block: what an environment does to its action stays with it.
    """
    leaves = list(zip(description.action, description.action_paths or ((),), strict=True))
    if len(leaves) == 1 and leaves[0][1] == ():
        ((key, spec), _) = leaves[0]
        column = _column(spec)
        return lambda arrays, step: column(arrays[key][:, step])
    columns = [(key, _column(spec), path) for (key, spec), path in leaves]

    def read(arrays: dict[Key, Any], step: int) -> list[Any]:
        rows = zip(*(column(arrays[key][:, step]) for key, column, _ in columns), strict=True)
        return [
            _tree({path: value for (_, _, path), value in zip(columns, row, strict=True)}) for row in rows
        ]

    return read


def _column(spec: LeafSpec) -> Callable[[Any], list[Any]]:
    """A function from one frame's values `[n, *shape]` to n values of the environment's own.

    Category numbers stay numpy scalars, as a space's `sample` gives them: gymnasium checks those faster than ints.
    """
    if any(spec.start):
        start = np.array(spec.start, dtype="int64").reshape(spec.shape)
        return lambda values: list(values + start)
    if spec.shape == ():
        return list
    return lambda values: list(values.copy())


def _tree(leaves: dict[Path, Any]) -> Any:
    """The value of a Dict or Tuple space whose leaves lie at these paths."""
    if () in leaves:
        return leaves[()]
    heads: dict[str | int, dict[Path, Any]] = {}
    for path, value in leaves.items():
        heads.setdefault(path[0], {})[path[1:]] = value
    if all(isinstance(head, int) for head in heads):
        return tuple(_tree(heads[head]) for head in sorted(heads))
    return {head: _tree(below) for head, below in heads.items()}
