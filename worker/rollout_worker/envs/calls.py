"""Attribute reads and method calls on environments, by name, wherever they live.

The vector envs' `get_attr`, `set_attr` and `call` come here, in the caller's process or in a child. An
unknown name is an AttributeError of that environment; it harms nobody.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rollout_worker.envs.commands import Request
from rollout_worker.envs.faults import EnvFault, fault_of
from rollout_worker.envs.native import Session

GET_ATTRIBUTE, IS_CALLABLE, SET_ATTRIBUTE = ".", "?", "="
"""Prefixes of a request's name: read the attribute and never call it; say whether it can be called; set it to
the only argument. No Python name starts with one."""

_PREFIXES = GET_ATTRIBUTE + IS_CALLABLE + SET_ATTRIBUTE


@dataclass(frozen=True, slots=True)
class Result:
    """What one environment answered: a value, or the exception that it raised, with its fault."""

    env_index: int
    value: Any = None
    error: BaseException | None = None
    fault: EnvFault | None = None


def answer(request: Request, sessions: Sequence[Session], first_env: int) -> list[Result]:
    """The results of those environments that live here, in order."""
    results: list[Result] = []
    for index in request.indices:
        row = index - first_env
        if not 0 <= row < len(sessions):
            continue
        try:
            results.append(Result(index, value=_ask(sessions[row].env, request)))
        except Exception as error:
            fault = fault_of(error, env_index=index, pid=os.getpid(), call=request.name.lstrip(_PREFIXES))
            results.append(Result(index, error=error, fault=fault))
    return results


def _ask(env: Any, request: Request) -> Any:
    name = request.name.lstrip(_PREFIXES)
    if request.name.startswith(SET_ATTRIBUTE):
        setattr(env, name, request.args[0])
        return None
    found = _attribute(env, name)
    if request.name.startswith(IS_CALLABLE):
        return callable(found)
    if request.name.startswith(GET_ATTRIBUTE):
        return found
    return found(*request.args, **dict(request.kwargs)) if callable(found) else found


def _attribute(env: Any, name: str) -> Any:
    """The attribute of the environment, or of what it wraps where a wrapper hides it."""
    try:
        return getattr(env, name)
    except AttributeError:
        inner = getattr(env, "unwrapped", None)
        if inner is None or inner is env:
            raise
        return getattr(inner, name)
