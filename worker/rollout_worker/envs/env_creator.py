"""`EnvCreator`: a factory that has looked at its environment once, and hands its state on to all that it makes."""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rollout_worker.envs.metadata import EnvMetaData, env_of, meta_of_made

WARNINGS = "RL_WARNINGS"
"""Environment variable: 0 silences what is said about lambdas."""


class EnvCreator:
    """Makes one environment at once, resets it, makes a random step, and closes it; what it learns is `meta_data`.

    Calling it gives an environment that has loaded the first one's state dict. Its own keywords count more than the
    caller's. The state goes by value to each environment, wherever it is made.

    Given `meta_data`, it makes none, and has no state to hand on: for environments that are slow to make, or that can be
    had in their own processes alone.
    """

    def __init__(
        self,
        create_env_fn: Callable[..., Any],
        create_env_kwargs: Mapping[str, Any] | None = None,
        share_memory: bool = True,
        *,
        meta_data: EnvMetaData | None = None,
        **kwargs: Any,
    ) -> None:
        if not callable(create_env_fn):
            raise TypeError(f"create_env_fn must be a factory, not {type(create_env_fn).__name__}")
        self.create_env_fn = create_env_fn
        self.create_env_kwargs = {**(create_env_kwargs or {}), **kwargs}
        self.is_told = meta_data is not None
        """Whether `meta_data` was given."""
        self.meta_data, self._state = self._look() if meta_data is None else (_checked(meta_data), {})
        if share_memory:
            for value in self._state.values():
                if hasattr(value, "share_memory_"):
                    value.share_memory_()

    def _look(self) -> tuple[EnvMetaData, dict[str, Any]]:
        """What one environment is, and its state after a step."""
        made = self.create_env_fn(**self.create_env_kwargs)
        env = env_of(made)
        try:
            env.rand_step(env.reset())
            return meta_of_made(made), dict(env.state_dict())
        finally:
            env.close(raise_if_closed=False)

    def make_variant(self, **kwargs: Any) -> EnvCreator:
        """One that makes environments with other keywords beside these, of the same metadata and with the same state.
        Makes no environment."""
        found = copy.copy(self)
        found.is_told = True
        found.create_env_kwargs = {**self.create_env_kwargs, **kwargs}
        return found

    def __call__(self, **kwargs: Any) -> Any:
        """An environment with the state of the first one."""
        made = self.create_env_fn(**{**kwargs, **self.create_env_kwargs})
        if self._state:
            env_of(made).load_state_dict(self._state)
        return made

    def state_dict(self) -> dict[str, Any]:
        """The state that every environment is given."""
        return dict(self._state)

    def __repr__(self) -> str:
        return f"EnvCreator({self.meta_data.name}, {self.create_env_kwargs})"


def _checked(meta_data: Any) -> EnvMetaData:
    if not isinstance(meta_data, EnvMetaData):
        raise TypeError(f"meta_data must be an EnvMetaData, not {type(meta_data).__name__}")
    return meta_data


def is_lambda(factory: Any) -> bool:
    """Whether a factory is a lambda."""
    return getattr(factory, "__name__", "") == "<lambda>"


def warn_of_lambdas(factories: Any) -> None:
    """Say once that lambdas go to their processes by value."""
    each = factories if isinstance(factories, Sequence) and not isinstance(factories, str) else [factories]
    if any(map(is_lambda, each)) and os.environ.get(WARNINGS, "1") != "0":
        warnings.warn(
            "a lambda as factory is wrapped: it goes to every process by value. A class, a function or a functools.partial "
            "goes by name. auto_wrap_envs=False or RL_WARNINGS=0 silences this",
            stacklevel=3,
        )
