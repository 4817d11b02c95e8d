"""What is wrong with the methods that a user's class brings, before the base class completes what they give; and the
words that all of the checker uses. Called by `check` alone.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from typing import Any

import torch
from tensordict import TensorDictBase

from rollout_worker.envs.base import EnvBase
from rollout_worker.envs.faults import is_ours

SHAPE = ": give that shape, or declare this one"


def tried(what: str, call: Callable[[], Any], faults: list[str]) -> Any:
    """What a call gives; None where it raised, which is noted."""
    try:
        return call()
    except Exception as error:
        faults.append(f"{what} raised {type(error).__name__}: {error}{place_of(error)}")
        return None


def place_of(error: BaseException) -> str:
    """Where in the environment's own code an error arose."""
    frames = [each for each in traceback.extract_tb(error.__traceback__) if not is_ours(each.filename)]
    return f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""


def faults_of_methods(env: EnvBase) -> list[str]:
    """What `_reset` and `_step` of a user's class give, before the base class completes it."""
    if type(env)._reset.__module__.startswith("rollout_worker."):
        return []
    faults: list[str] = []
    begun = tried("reset", lambda: [env._reset(None)], faults)
    if begun is None:
        return faults
    if not isinstance(begun[0], TensorDictBase):
        return [_no_tensordict("_reset", begun[0], env)]
    root = tried("reset", env.reset, faults)
    if root is None:
        return faults
    acting = env.rand_action(root.clone(False))
    stepped = tried("step 1", lambda: [env._step(acting.clone(False))], faults)
    if stepped is None:
        return [f"{fault}; the action was drawn from the action spec" for fault in faults]
    return list(_of_step_result(env, stepped[0]))


def _of_step_result(env: EnvBase, stepped: Any) -> Iterator[str]:
    if not isinstance(stepped, TensorDictBase):
        yield _no_tensordict("_step", stepped, env)
        return
    for key, _ in env.full_action_spec.leaves():
        if stepped.get(key, None) is not None and key not in dict(env.observation_spec.leaves()):
            yield (
                f"_step gave the action {named(key)} too: give a new tensordict with what comes after the action, not the "
                "one that it was given"
            )
            return
    if "next" in stepped:
        yield "_step gave an entry 'next': give its entries themselves; `step` puts them there"
        return
    for key, spec in env.full_reward_spec.leaves():
        value = stepped.get(key, None)
        if isinstance(value, torch.Tensor) and value.numel() != spec.shape.numel():
            yield f"step 1: {named(key)} has shape {list(value.shape)}; its spec says {list(spec.shape)}{SHAPE}"


def _no_tensordict(method: str, given: Any, env: EnvBase) -> str:
    wanted = f"`TensorDict({{...}}, batch_size={list(env.batch_size)})`"
    return f"{method} gave {type(given).__name__}: give a tensordict, {wanted}"


def named(key: tuple[str, ...]) -> str:
    """A key as a user writes it."""
    return repr(key[0] if len(key) == 1 else key)
