"""check_env_specs: tells a user everything that is wrong with an environment, before a long run does.

It steps the environment with random actions and holds what comes against the specs, then looks for what specs cannot
say: results that change afterwards, masks that are not kept to, seeds that fix nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase

from rollout_worker.envs.adapters.known import adapted
from rollout_worker.envs.base import EnvBase
from rollout_worker.envs.check_gymnasium import faults_of_gymnasium
from rollout_worker.envs.check_methods import SHAPE, faults_of_methods, named, tried
from rollout_worker.envs.describe import FLAGS
from rollout_worker.envs.gym import GymEnv
from rollout_worker.envs.native import is_gymnasium
from rollout_worker.envs.spec_base import LeafSpec, Spec, fits
from rollout_worker.envs.specs import Composite, flat_key
from rollout_worker.envs.transitions import RESET

NUM_STEPS = 5

_MISSING = ": give it, or take it out of the spec"


class EnvSpecFaults(ValueError):
    """An environment is not as it says. `faults` holds one sentence for each thing that is wrong."""

    def __init__(self, env: Any, faults: list[str]) -> None:
        lines = "\n".join(f"  - {fault}" for fault in faults)
        super().__init__(
            f"{env}: {len(faults)} {'thing is' if len(faults) == 1 else 'things are'} wrong:\n{lines}"
        )
        self.faults = tuple(faults)


def check_env_specs(env: Any, *, seed: int | None = 0, num_steps: int = NUM_STEPS) -> None:
    """Raise EnvSpecFaults, listing everything, where an environment is not as its specs say.

    `env` is an environment of ours, or of a library that is known here; it is reset and stepped, and stays open.
    `seed` None leaves out the check that equal seeds give equal episodes, for environments that cannot be seeded.
    """
    plain = env.env if isinstance(env, GymEnv) else env
    if is_gymnasium(plain):
        faults = faults_of_gymnasium(plain, seed, num_steps)
        if faults:
            raise EnvSpecFaults(type(plain).__name__, faults)
    adapter = adapted(env)
    if adapter is None:
        raise TypeError(f"{type(env).__name__} is no environment; pass one that is made, not a factory")
    faults = _faults(adapter, seed, num_steps)
    if faults:
        raise EnvSpecFaults(adapter, faults)


def _faults(env: EnvBase, seed: int | None, num_steps: int) -> list[str]:
    faults = list(_of_specs(env))
    if seed is not None:
        tried("set_seed", lambda: env.set_seed(seed), faults)
    faults += faults_of_methods(env)
    if faults:
        return faults
    root = tried("reset", env.reset, faults)
    if root is None:
        return faults
    faults += _of_root(env, root)
    if faults:
        return faults  # a step from a wrong root says nothing new
    faults += _of_steps(env, root, num_steps)
    if not faults and env.batch_size:
        faults += _of_masks(env)
    if not faults and seed is not None:
        faults += _of_seeds(env, seed, num_steps)
    return faults


def _of_specs(env: EnvBase) -> Iterator[str]:
    if env.observation_spec.is_empty():
        yield "observation_spec is empty: set it in the constructor"
    if env.full_action_spec.is_empty():
        yield "action_spec is empty: set it in the constructor"
    trees = {
        "observation": env.observation_spec,
        "action": env.full_action_spec,
        "state": env.full_state_spec,
        "reward": env.full_reward_spec,
        "done": env.full_done_spec,
    }
    for group, tree in trees.items():
        for key, spec in tree.leaves():
            if spec.shape[: len(env.batch_size)] != env.batch_size:
                yield (
                    f"the {group} spec of {named(key)} has shape {list(spec.shape)}; it must start with the batch size "
                    f"{list(env.batch_size)}"
                )
            if env.device is not None and spec.device not in (None, env.device):
                yield f"the {group} spec of {named(key)} is on {spec.device}; the environment is on {env.device}"


def _of_root(env: EnvBase, root: TensorDictBase) -> list[str]:
    faults = list(_of_values("reset", root, [env.observation_spec, env.full_done_spec], env))
    faults += [
        f"reset: {named(key)} is True already; an episode must begin with it False"
        for key, _ in env.full_done_spec.leaves()
        if isinstance(root.get(key, None), torch.Tensor) and bool(root.get(key).any())
    ]
    return faults


def _of_steps(env: EnvBase, root: TensorDictBase, num_steps: int) -> list[str]:
    faults: list[str] = []
    given, copies = [root], [root.clone()]
    for number in range(1, num_steps + 1):
        acting = env.rand_action(root.clone(False))
        before = acting.clone()
        stepped = tried(f"step {number}", partial(env.step, acting), faults)
        if stepped is None:
            return faults
        following = stepped.get("next")
        trees = [env.observation_spec, env.full_reward_spec, env.full_done_spec]
        faults += _of_values(f"step {number}", following, trees, env)
        faults += _of_flags(f"step {number}", env, following)
        faults += [
            _reused(key, number - 1)
            if _share_memory(stepped.get(key), following.get(key, None))
            else f"step {number} changed {named(key)} of the root that it was given; it must leave that alone"
            for key in _changed(before, stepped.exclude("next"))
        ]
        given.append(following)
        copies.append(following.clone())
        if faults:
            return faults
        root = tried("reset", partial(env.maybe_reset, env.step_mdp(stepped)), faults)
        if root is None:
            return faults
    for number, (kept, copy) in enumerate(zip(given, copies, strict=True)):
        faults += [_reused(key, number) for key in _changed(copy, kept)]
    return faults


def _reused(key: tuple[str, ...], number: int) -> str:
    where = "the reset" if number == 0 else f"step {number}"
    return f"{named(key)} of {where} has changed since: hand out a copy, not the buffer that is written next"


def _share_memory(first: Any, second: Any) -> bool:
    both = isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor)
    return both and first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()


def _of_values(where: str, td: Any, trees: list[Composite], env: EnvBase) -> Iterator[str]:
    if not isinstance(td, TensorDictBase):
        yield f"{where} gave {type(td).__name__}; expected is a tensordict"
        return
    if td.batch_size != env.batch_size:
        yield f"{where}: the batch size is {list(td.batch_size)}; the environment's is {list(env.batch_size)}"
        return
    if env.device is not None and td.device != env.device:
        yield f"{where}: the tensordict is on {td.device}; the environment is on {env.device}"
    declared = {key: spec for tree in trees for key, spec in tree.leaves()}
    for key, spec in declared.items():
        value = td.get(key, None)
        problem = f"is missing{_MISSING}" if value is None else _wrong(value, spec)
        if problem:
            yield f"{where}: {named(key)} {problem}"
    for name in td.keys(True, True):
        if flat_key(name) not in declared:
            yield f"{where}: {named(flat_key(name))} is in no spec; declare it, or leave it out"


def _wrong(value: Any, spec: Spec) -> str | None:
    """What is wrong with a value, most basic thing first; None where it is allowed."""
    if not isinstance(value, torch.Tensor):
        return None if spec.is_in(value) else f"is {type(value).__name__}; its spec says {spec}"
    if isinstance(spec, LeafSpec):
        if value.dtype != spec.dtype:
            return f"has dtype {value.dtype}; its spec says {spec.dtype}: convert it, or declare what it has"
        if not fits(value.shape, spec.shape) or value.ndim != spec.ndim:
            return f"has shape {list(value.shape)}; its spec says {list(spec.shape)}{SHAPE}"
        if value.dtype.is_floating_point and bool(value.isnan().any()):
            return "holds NaN: give numbers only"
    if spec.is_in(value):
        return None
    values = value.double() if not value.dtype.is_complex else value
    found = f" ({values.min():g} to {values.max():g})" if values.numel() and not values.is_complex() else ""
    return f"holds values that are not in {spec}{found}: keep to it, or declare a wider one"


def _of_flags(where: str, env: EnvBase, following: TensorDictBase) -> Iterator[str]:
    for key, _ in env.full_done_spec.leaves():
        if key[-1] != "done":
            continue
        done, terminated, truncated = (following.get((*key[:-1], flag), None) for flag in FLAGS)
        if done is None or terminated is None or truncated is None:
            continue
        if bool((done != (terminated | truncated)).any()):
            yield f"{where}: {named(key)} is not 'terminated or truncated'"


def _changed(before: TensorDictBase, after: TensorDictBase) -> list[tuple[str, ...]]:
    changed = []
    for name, value in before.items(True, True):
        now = after.get(name, None)
        if isinstance(value, torch.Tensor) and isinstance(now, torch.Tensor):
            same = value.shape == now.shape and torch.equal(value.nan_to_num(), now.nan_to_num())
            if not same:
                changed.append(flat_key(name))
    return changed


def _of_masks(env: EnvBase) -> list[str]:
    """Whether a reset of some rows leaves the others alone."""
    faults: list[str] = []
    root = env.reset()
    stepped = env.step_mdp(env.step(env.rand_action(root)))
    mask = torch.zeros(env.batch_size, dtype=torch.bool)
    mask.view(-1)[0] = True
    if bool(mask.all()):
        return faults
    marks = TensorDict({RESET: mask.unsqueeze(-1)}, batch_size=env.batch_size, device=env.device)
    fresh = tried("a reset of one row", lambda: env.reset(marks), faults)
    if fresh is None:
        return faults
    for key, _ in env.observation_spec.leaves():
        kept, now = stepped.get(key, None), fresh.get(key, None)
        if (
            isinstance(kept, torch.Tensor)
            and isinstance(now, torch.Tensor)
            and not torch.equal(kept[~mask], now[~mask])
        ):
            faults.append(
                f"a reset of one row changed {named(key)} of others: reset only the rows that `_reset` marks, and give the "
                "current observation of the rest"
            )
    return faults


def _of_seeds(env: EnvBase, seed: int, num_steps: int) -> list[str]:
    actions: list[TensorDictBase] = []
    runs: list[list[TensorDictBase]] = []
    for run in range(2):
        env.set_seed(seed)
        root = env.reset()
        seen = [root.clone()]
        for number in range(num_steps):
            if run == 0:
                actions.append(env.rand_action(TensorDict({}, batch_size=env.batch_size, device=env.device)))
            stepped = env.step(root.update(actions[number].clone()))
            seen.append(stepped.get("next").clone())
            root = env.maybe_reset(env.step_mdp(stepped))
        runs.append(seen)
    for number, (first, second) in enumerate(zip(*runs, strict=True)):
        changed = _changed(first, second)
        if changed:
            where = "the reset" if number == 0 else f"step {number}"
            return [
                f"after set_seed({seed}) twice, {named(changed[0])} of {where} differs: draw from a generator that "
                "`_set_seed` rewinds (or pass seed=None to leave this check out)"
            ]
    return []
