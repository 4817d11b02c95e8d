"""What is wrong with a gymnasium environment, before anything of ours touches it: in the words of gymnasium's interface.

Called by `check` alone. What an environment raises is left to `check`, which tells of it in any environment.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

RESET = "write `def reset(self, *, seed=None, options=None)` and call `super().reset(seed=seed)` in it"

FIVE = "observation, reward, terminated, truncated, info"


def faults_of_gymnasium(env: Any, seed: int | None, num_steps: int) -> list[str]:
    """One sentence for each thing that is wrong: what came, at which key, and what to do. Steps `env`."""
    faults = list(_of_spaces(env)) or list(_of_signature(env))
    if faults:
        return faults
    try:
        faults += _of_reset(env, env.reset(seed=seed))
        for number in range(1, num_steps + 1):
            if faults:
                break
            result = env.step(env.action_space.sample())
            faults += _of_step(env, f"step {number}", result)
            if faults or result[2] or result[3]:
                break
    except Exception:  # told by whoever steps it next
        return faults
    return faults


def _of_spaces(env: Any) -> Iterator[str]:
    for name in ("observation_space", "action_space"):
        space = getattr(env, name, None)
        if space is None:
            yield f"{name!r} is missing: set it to a gymnasium space in the constructor"
        elif not isinstance(space, spaces.Space):
            yield f"{name!r} is {type(space).__name__}, not a gymnasium space: set it to one in the constructor"


def _of_signature(env: Any) -> Iterator[str]:
    try:
        inspect.signature(env.reset).bind(seed=0, options=None)
    except TypeError as error:
        yield f"reset cannot be called with `seed` and `options` ({error}): {RESET}"
    except ValueError:
        return  # written in another language; the call itself will tell


def _of_reset(env: Any, result: Any) -> Iterator[str]:
    if not isinstance(result, tuple) or len(result) != 2:
        yield f"reset gave {_kinds(result)}: give two values, observation and info"
        return
    yield from _of_observation("reset", env, result[0])
    yield from _of_info("reset", result[1])


def _of_step(env: Any, where: str, result: Any) -> Iterator[str]:
    if not isinstance(result, tuple) or len(result) != 5:
        hint = " (what was `done` is `terminated` or `truncated` now)" if _length(result) == 4 else ""
        yield f"{where} gave {_kinds(result)}: give five values, {FIVE}{hint}"
        return
    observation, reward, *flags, info = result
    yield from _of_observation(where, env, observation)
    number = np.asarray(reward)
    if number.size != 1 or number.dtype.kind not in "biuf":
        yield f"{where}: 'reward' is {_shown(reward)}: give one number"
    elif not np.isfinite(number).all():
        yield f"{where}: 'reward' is {number.item()}: give a finite number"
    for name, flag in zip(("terminated", "truncated"), flags, strict=True):
        value = np.asarray(flag)
        if value.size != 1 or value.dtype.kind not in "biu":
            yield f"{where}: {name!r} is {_shown(flag)}: give True or False"
    yield from _of_info(where, info)


def _of_info(where: str, info: Any) -> Iterator[str]:
    if not isinstance(info, Mapping):
        yield f"{where}: 'info' is {_shown(info)}: give a dict, an empty one if there is nothing to say"


def _of_observation(where: str, env: Any, observation: Any) -> Iterator[str]:
    yield from _of_tree(where, env.observation_space, observation, ())


def _of_tree(where: str, space: Any, value: Any, key: tuple[Any, ...]) -> Iterator[str]:
    """Whether a value has the keys of a Dict and the length of a Tuple; leaves are held against their specs later."""
    name = f"{where}: {_named(key)}"
    if isinstance(space, spaces.Dict):
        if not isinstance(value, Mapping):
            yield f"{name} is {_shown(value)}; its space is a Dict: give a dict with the keys {list(space)}"
            return
        for each in space:
            if each in value:
                yield from _of_tree(where, space[each], value[each], (*key, each))
            else:
                yield f"{where}: {_named((*key, each))} is missing: give it, or take it out of the observation space"
        for each in value:
            if each not in space.spaces:
                yield (
                    f"{where}: {_named((*key, each))} is not in the observation space: declare it there, or leave it out"
                )
    elif isinstance(space, spaces.Tuple):
        if not isinstance(value, (tuple, list)) or len(value) != len(space):
            yield f"{name} is {_shown(value)}; its space is a Tuple: give a tuple of {len(space)} values"
            return
        for number, (inner, each) in enumerate(zip(space, value, strict=True)):
            yield from _of_tree(where, inner, each, (*key, number))
    elif isinstance(space, spaces.Box) and (value is None or isinstance(value, (Mapping, str))):
        yield f"{name} is {_shown(value)}: give an array of {space.dtype} of shape {list(space.shape)}"


def _named(key: tuple[Any, ...]) -> str:
    return "'observation'" if not key else repr(key[0] if len(key) == 1 else key)


def _shown(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype} of shape {list(value.shape)}"
    text = repr(value)
    return f"{type(value).__name__} {text}" if len(text) <= 40 and value is not None else type(value).__name__


def _length(result: Any) -> int:
    return len(result) if isinstance(result, tuple) else -1


def _kinds(result: Any) -> str:
    if not isinstance(result, tuple):
        return _shown(result)
    return f"{len(result)} values ({', '.join(type(each).__name__ for each in result)})"
