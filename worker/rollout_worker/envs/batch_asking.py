"""Seeds, attributes, methods and states of the environments of a batch.

The second layer of `BatchedEnv`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rollout_worker.envs.batch_setup import BatchSetup
from rollout_worker.envs.seeding import chain


class Values(list[Any]):
    """One value per environment, in order. Calling it gives the values too."""

    def __call__(self) -> list[Any]:
        """The values as a plain list."""
        return list(self)


class BatchAsking(BatchSetup):
    """What is asked of environments beside stepping. See `BatchedEnv`."""

    # -- seeds, attributes, state ----------------------------------------------------------------------------------

    def set_seed(self, seed: int | None = None, static_seed: bool = False) -> int | None:
        """Give environment i the i-th seed of the chain that starts at `seed`; gives the one after the last."""
        self._restart_after_failure()
        if seed is None:
            _ = self.vector
            return None
        seeds, following = chain(seed, self.num_workers, is_static=static_seed)
        self.vector.set_seed(seeds)
        self.__dict__["_seed"] = (seed, static_seed)
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
        if name.startswith("_") or name in _NEVER_ASKED or "_group" not in self.__dict__:
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
        if "worker0" in state_dict:
            states = {index: state_dict[f"worker{index}"] for index in range(self.num_workers)}
        else:
            states = dict.fromkeys(range(self.num_workers), state_dict)
        self.vector.call_each("load_state_dict", states)

    def add_truncated_keys(self) -> None:
        """Always a RuntimeError: flags are declared where they arise."""
        raise RuntimeError(
            "truncated flags must be declared by the environments themselves, not by their batch"
        )


_NEVER_ASKED = frozenset({"is_closed", "parent_channels", "batch_size"})
"""Names that are the batch's own; where they fail, no environment is asked for them."""


def _method(env: BatchAsking, name: str) -> Callable[..., list[Any]]:
    def call(*args: Any, **kwargs: Any) -> list[Any]:
        return env.call(name, *env._passed_on(args), **kwargs)

    return call
