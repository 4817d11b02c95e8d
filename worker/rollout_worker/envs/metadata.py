"""What is known of an environment before it runs: given, or from one that is made in passing and closed again.

Called by the batched environments when they are constructed, so that what does not fit is refused there. Loads
torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDictBase

from rollout_worker.envs import factory
from rollout_worker.envs.adapters.known import adapted
from rollout_worker.envs.base import EnvBase
from rollout_worker.envs.describe import OBJECT, EnvDescription, describe_spaces, spelled
from rollout_worker.envs.describe import LeafSpec as DescribedLeaf
from rollout_worker.envs.faults import NotAnEnvironment
from rollout_worker.envs.gym import GymEnv
from rollout_worker.envs.native import ACCEPTED, close_made, is_gymnasium, session_of, type_name
from rollout_worker.envs.reports import Report, report_of
from rollout_worker.envs.spec_leaves import Device, Shape
from rollout_worker.envs.specs import Composite, EnvSpecs, LeafSpec, NonTensor, Spec, description_of

if TYPE_CHECKING:
    import gymnasium

    from rollout_worker.envs.looking import Looked

GROUPS = ("observation", "action", "state", "reward", "done")


@dataclass(frozen=True, slots=True)
class EnvMetaData:
    """What one environment is. `specs` are its trees by group, with its own batch size in front.

    A batch makes one environment beforehand to look at, and closes it. Where that is too slow, or the environment can be
    had in its own process alone (a licence, a port, a GPU), give the batch this instead, as `meta_data`. It can be pickled.
    """

    name: str
    batch_size: torch.Size
    device: torch.device | None
    specs: Mapping[str, Composite]
    description: EnvDescription | None
    """What a block of arrays takes of it; None says that it can only be stepped as rows."""
    takes_rows: bool = True
    """Whether it takes tensordicts itself; a gymnasium environment does not."""

    @staticmethod
    def metadata_from_env(env: Any) -> EnvMetaData:
        """What an environment is, by looking at it: one of ours, or of a library that is known here.

        Raises NotAnEnvironment for what is none, RuntimeError for an empty composite among its specs.
        """
        return meta_of_made(env)

    @staticmethod
    def of_specs(
        observation_spec: Composite,
        action_spec: Spec,
        *,
        reward_spec: Spec | None = None,
        done_spec: Spec | None = None,
        state_spec: Spec | None = None,
        batch_size: Shape = (),
        device: Device = None,
        name: str = "given",
    ) -> EnvMetaData:
        """What an environment with these specs is. Each is given, and completed, as an `EnvBase` is: `reward_spec` is one
        float32 at the root where it is None, `done_spec` the three flags there. Raises as setting them there does.
        """
        env = _Declared(device=device, batch_size=batch_size)
        env.observation_spec, env.action_spec = observation_spec, action_spec
        for group, spec in (("reward", reward_spec), ("done", done_spec), ("state", state_spec)):
            if spec is not None:
                setattr(env, f"full_{group}_spec", spec)
        return replace(meta_of_made(env), name=name)

    @staticmethod
    def of_spaces(
        observation_space: gymnasium.Space[Any], action_space: gymnasium.Space[Any], *, name: str = "given"
    ) -> EnvMetaData:
        """What a gymnasium environment with these spaces is. Raises TypeError for a space that has no spec, ValueError for
        an observation key that the tensordict needs itself."""
        return of_description(describe_spaces(observation_space, action_space, name=name))

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

    def report(self, *, in_block: bool) -> Report:
        """What such an environment reports when it is made, to be stepped in a block or as a row."""
        if in_block and self.description is not None:
            return report_of(self.description)
        return report_of_specs(self.specs, self.batch_size, name=self.name, takes_rows=self.takes_rows)


def meta_of(recipe: factory.Recipe, env_index: int) -> EnvMetaData:
    """Make an environment, look at it, close it. Raises what its factory raises, NotAnEnvironment, or RuntimeError
    for an empty composite among its specs."""
    made = factory.make(recipe, env_index)
    try:
        return meta_of_made(made)
    finally:
        close_made(made)


def meta_of_made(made: Any) -> EnvMetaData:
    """What an environment is, by looking at it."""
    if is_gymnasium(made):
        return of_description(session_of(made).description)
    env = env_of(made)
    if isinstance(env, GymEnv):
        return replace(of_description(session_of(env).description), name=str(env), device=env.device)
    specs = specs_of(env)
    _refuse_empty(specs, env)
    trees = {group: tree.clone() for group, tree in specs.items()}
    takes_block = not env.batch_size and env.device is None and _fits_block(trees)
    block = session_of(env).description if takes_block else None
    return EnvMetaData(str(env), env.batch_size, env.device, trees, block)


def metas_of_looked(looked: Sequence[Looked]) -> list[EnvMetaData]:
    """What environments are that were looked at where they live. Equal ones share one record."""
    seen: dict[Any, EnvMetaData] = {}
    found: list[EnvMetaData] = []
    for each in looked:
        meta = of_description(each) if isinstance(each, EnvDescription) else each
        found.append(seen.setdefault((meta.report(in_block=True), meta.device), meta))
    return found


def metas_given(given: Any, num_envs: int) -> list[EnvMetaData] | None:
    """The metadata of each environment, from one record for all or one for each; None where none was given.

    Raises TypeError for what is no metadata, RuntimeError for another number of records than of environments.
    """
    if given is None:
        return None
    if isinstance(given, EnvMetaData):
        return [given] * num_envs
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise TypeError(_NO_METADATA.format(name="meta_data", found=_named(given)))
    if len(given) != num_envs:
        raise RuntimeError(f"meta_data holds {len(given)} records for {num_envs} environments")
    for index, each in enumerate(given):
        if not isinstance(each, EnvMetaData):
            raise TypeError(_NO_METADATA.format(name=f"meta_data[{index}]", found=_named(each)))
    return list(given)


_NO_METADATA = (
    "{name} must be an EnvMetaData, a sequence with one for each environment, or 'workers'; {found} is none of them. "
    "EnvMetaData.of_specs, of_spaces and metadata_from_env make one."
)


def _named(given: Any) -> str:
    return repr(given) if isinstance(given, str) else type(given).__name__


def of_description(description: EnvDescription) -> EnvMetaData:
    """What a gymnasium environment is, by its description."""
    trees = _trees_of(description)
    acts_by_arrays = all(leaf.dtype != OBJECT for _, leaf in description.action)
    block = description if acts_by_arrays else None
    return EnvMetaData(description.name, torch.Size(), None, trees, block, takes_rows=False)


def report_of_specs(
    specs: Mapping[str, Composite], batch_size: torch.Size, *, name: str, takes_rows: bool
) -> Report:
    """What an environment that is stepped as a row reports; see `reports`."""
    leaves = (
        ((group, *key), _described(leaf)) for group, tree in specs.items() for key, leaf in tree.leaves()
    )
    return Report(name, tuple(batch_size), tuple(leaves), takes_rows)


def _described(spec: Spec) -> DescribedLeaf | str:
    try:
        return description_of(spec)
    except TypeError:
        return f"{type(spec).__name__}(shape={tuple(spec.shape)}, dtype={getattr(spec, 'dtype', None)})"


class _Declared(EnvBase):
    """Specs without an environment."""

    def _reset(self, td: TensorDictBase | None, **kwargs: Any) -> TensorDictBase:
        raise NotImplementedError

    def _step(self, td: TensorDictBase) -> TensorDictBase:
        raise NotImplementedError


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
