"""TorchRLEnv: an environment written for TorchRL, as an `EnvBase`.

TorchRL is not imported here: the environment that is given has loaded it, and its specs are read by their classes'
names and attributes.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from tensordict import TensorDictBase

from rollout_worker.envs.base import EnvBase
from rollout_worker.envs.spec_leaves import Device
from rollout_worker.envs.specs import (
    Binary,
    Bounded,
    Categorical,
    Composite,
    MultiCategorical,
    MultiOneHot,
    NonTensor,
    OneHot,
    Spec,
    Unbounded,
    stack_specs,
)


class TorchRLEnv(EnvBase):
    """`TorchRLEnv(env)` takes an environment of TorchRL (with its transforms), `TorchRLEnv(factory, **kwargs)` makes
    one by calling the factory; `create_env_fn=functools.partial(TorchRLEnv, make)` for a batched one.

    Keys, shapes, dtypes and batch size are the environment's own. Raises TypeError for what is no environment, and
    for a spec class that has no counterpart here.
    """

    def __init__(self, env: Any, *, device: Device = None, **kwargs: Any) -> None:
        made: Any = env if _is_env(env) else env(**kwargs) if callable(env) else env
        if kwargs and made is env:
            raise TypeError(
                f"TorchRLEnv: {', '.join(kwargs)} cannot be given to an environment that is made already"
            )
        if not _is_env(made):
            raise TypeError(
                f"TorchRLEnv takes an environment of TorchRL or its factory; this is {type(made).__name__}"
            )
        super().__init__(device=made.device if device is None else device, batch_size=made.batch_size)
        self.__dict__["_inner"] = made if device is None else made.to(device)
        self.observation_spec = _tree(made.observation_spec)
        self.full_action_spec = _tree(made.full_action_spec)
        self.full_state_spec = _tree(made.full_state_spec)
        self.full_reward_spec = _tree(made.full_reward_spec)
        self.full_done_spec = _tree(made.full_done_spec)

    @property
    def inner(self) -> Any:
        """The environment of TorchRL."""
        return self.__dict__["_inner"]

    def _reset(self, td: TensorDictBase | None, **kwargs: Any) -> TensorDictBase:
        given = None if td is None else td.clone(False)
        fresh: TensorDictBase = self.inner.reset(given, **kwargs)
        return fresh.exclude(*self.reset_keys).clone()

    def _step(self, td: TensorDictBase) -> TensorDictBase:
        following: TensorDictBase = self.inner.step(td.exclude("_step")).get("next")
        return following.clone()

    def _set_seed(self, seed: int | None) -> None:
        if seed is not None:
            self.inner.set_seed(seed)

    def close(self, *, raise_if_closed: bool = True) -> None:
        """Close the environment of TorchRL."""
        if not getattr(self.inner, "is_closed", False):
            self.inner.close()

    def __repr__(self) -> str:
        return f"TorchRLEnv({type(self.inner).__name__}, batch_size={tuple(self.batch_size)})"


def _is_env(value: Any) -> bool:
    return not isinstance(value, type) and any(
        kind.__name__ == "EnvBase" and kind.__module__.startswith("torchrl.") for kind in type(value).__mro__
    )


def _tree(spec: Any) -> Composite:
    found = converted(spec)
    if not isinstance(found, Composite):
        raise TypeError(f"{type(spec).__name__} is no composite")
    return found


def converted(spec: Any) -> Spec:
    """A spec of TorchRL as one of ours. Raises TypeError for a class that has no counterpart."""
    names = {kind.__name__ for kind in type(spec).__mro__}
    shape, device, dtype = spec.shape, spec.device, getattr(spec, "dtype", None)
    if names & {"StackedComposite", "Stacked"}:
        return stack_specs([converted(row) for row in spec._specs], spec.dim)
    if "Composite" in names:
        entries = {name: converted(entry) for name, entry in spec.items() if entry is not None}
        return Composite(entries, shape=shape, device=device)
    for name, make in _LEAVES.items():
        if name in names:
            return cast("Spec", make(spec, shape, device, dtype))
    raise TypeError(f"TorchRL's {type(spec).__name__} has no counterpart; accepted are {', '.join(_LEAVES)}")


def _categorical(spec: Any, shape: Any, device: Any, dtype: Any) -> Spec:
    if dtype == torch.bool:  # flags: TorchRL calls them Categorical(2)
        return Binary(None, shape, device, torch.bool)
    return Categorical(spec.n, shape, device, dtype, getattr(spec, "mask", None))


_LEAVES: dict[str, Any] = {
    "NonTensor": lambda spec, shape, device, _: NonTensor(shape, device, None, spec.example_data),
    "Bounded": lambda spec, shape, device, dtype: Bounded(spec.low, spec.high, shape, device, dtype),
    "Unbounded": lambda _, shape, device, dtype: Unbounded(shape, device, dtype),
    "Binary": lambda _, shape, device, dtype: Binary(None, shape, device, dtype),
    "MultiCategorical": lambda spec, shape, device, dtype: MultiCategorical(spec.nvec, shape, device, dtype),
    "MultiOneHot": lambda spec, shape, device, dtype: MultiOneHot(list(spec.nvec), shape, device, dtype),
    "OneHot": lambda spec, shape, device, dtype: OneHot(
        spec.space.n, shape, device, dtype, getattr(spec, "mask", None)
    ),
    "Categorical": _categorical,
}
"""The leaf specs of TorchRL by class name, the more special before what they are built on."""
