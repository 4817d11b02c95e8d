"""What is known of an environment before it runs: from one that is made in passing, and closed again.

Called by the batched environments when they are constructed, so that what does not fit is refused there. Loads
torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from rollout_worker.envs import factory
from rollout_worker.envs.adapters.known import adapted
from rollout_worker.envs.base import EnvBase
from rollout_worker.envs.describe import EnvDescription, spelled
from rollout_worker.envs.faults import NotAnEnvironment
from rollout_worker.envs.gym import GymEnv
from rollout_worker.envs.native import ACCEPTED, is_gymnasium, session_of, type_name
from rollout_worker.envs.specs import Composite, EnvSpecs, LeafSpec, NonTensor, Spec

GROUPS = ("observation", "action", "state", "reward", "done")


@dataclass(frozen=True, slots=True)
class EnvMeta:
    """What one environment is. `specs` are its trees by group, with its own batch size in front.

    `description` is what a block of arrays takes of it; None says that it can only be stepped as rows.
    """

    name: str
    batch_size: torch.Size
    device: torch.device | None
    specs: Mapping[str, Composite]
    description: EnvDescription | None
    takes_rows: bool = True
    """Whether it takes tensordicts itself; a gymnasium environment does not."""

    @property
    def is_dynamic(self) -> bool:
        """Whether a leaf has a dimension of open size."""
        return any(-1 in spec.shape for _, spec in self.leaves())

    def leaves(self) -> Iterator[tuple[tuple[str, ...], Spec]]:
        """All leaves, named by group and key."""
        for group, tree in self.specs.items():
            for key, spec in tree.leaves():
                yield (group, *key), spec

    def shapes(self) -> dict[tuple[str, ...], tuple[Any, ...]]:
        """What must agree for rows to be stacked into one tensor each."""
        return {key: (tuple(spec.shape), getattr(spec, "dtype", None)) for key, spec in self.leaves()}


def meta_of(recipe: factory.Recipe, env_index: int) -> EnvMeta:
    """Make an environment, look at it, close it. Raises what its factory raises, NotAnEnvironment, or RuntimeError
    for an empty composite among its specs."""
    made = factory.make(recipe, env_index)
    try:
        return meta_of_made(made)
    finally:
        close = getattr(made, "close", None)
        if callable(close):
            close(**({"raise_if_closed": False} if isinstance(made, EnvBase) else {}))


def meta_of_made(made: Any) -> EnvMeta:
    """What an environment is, by looking at it."""
    if is_gymnasium(made):
        description = session_of(made).description
        return EnvMeta(
            description.name, torch.Size(), None, _trees_of(description), description, takes_rows=False
        )
    env = env_of(made)
    if isinstance(env, GymEnv):
        description = session_of(env).description
        return EnvMeta(
            str(env), env.batch_size, env.device, _trees_of(description), description, takes_rows=False
        )
    specs = specs_of(env)
    _refuse_empty(specs, env)
    trees = {group: tree.clone() for group, tree in specs.items()}
    takes_block = not env.batch_size and env.device is None and _fits_block(trees)
    block = session_of(env).description if takes_block else None
    return EnvMeta(str(env), env.batch_size, env.device, trees, block)


def specs_of(env: EnvBase) -> dict[str, Composite]:
    """An environment's trees of specs, by group."""
    return {
        "observation": env.observation_spec,
        "action": env.full_action_spec,
        "state": state_spec_of(env),
        "reward": env.full_reward_spec,
        "done": env.full_done_spec,
    }


def _trees_of(description: EnvDescription) -> dict[str, Composite]:
    specs = EnvSpecs.of(description)
    return {
        "observation": specs.observation,
        "action": specs.full_action,
        "state": Composite(),
        "reward": specs.full_reward,
        "done": specs.full_done,
    }


def _fits_block(specs: Mapping[str, Composite]) -> bool:
    """Whether an environment's step is what a block's stepper does: closed shapes, no state, one flag for all of it."""
    if len(specs["state"]) or any(len(key) > 1 for key, _ in specs["done"].leaves()):
        return False
    if any(isinstance(spec, NonTensor) for _, spec in specs["action"].leaves()):
        return False
    leaves = [spec for tree in specs.values() for _, spec in tree.leaves()]
    return all(-1 not in spec.shape and isinstance(spec, LeafSpec | NonTensor) for spec in leaves)


def _refuse_empty(specs: Mapping[str, Composite], env: EnvBase) -> None:
    for group, tree in specs.items():
        for key, spec in tree.items(True):
            if isinstance(spec, Composite) and not len(spec):
                name = spelled(key if isinstance(key, tuple) else (key,))
                raise RuntimeError(
                    f"{type(env).__name__}: its {group} spec has an empty composite at {name}; remove it, or declare what "
                    "stands there"
                )


def state_spec_of(env: EnvBase) -> Composite:
    """The inputs beside the action that an environment reads from the root."""
    found = getattr(env, "full_state_spec", None)
    return found if isinstance(found, Composite) else Composite(shape=env.batch_size)


def env_of(made: Any) -> EnvBase:
    """What a factory made, as an environment of ours. Raises NotAnEnvironment for what is none."""
    found = adapted(made)
    if found is not None:
        return found
    raise NotAnEnvironment(f"the factory made {type_name(made)}; accepted is {ACCEPTED}")


def asked_of(made: Any) -> Any:
    """Where attributes and methods are looked up: for gymnasium environments, in the gymnasium environment itself."""
    return made.env if isinstance(made, GymEnv) else made
