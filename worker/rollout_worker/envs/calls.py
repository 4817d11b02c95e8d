"""Attribute reads and method calls on environments, by name, wherever they live.

The vector envs' `get_attr`, `set_attr` and `call` come here, in the caller's process or in a child. An
unknown name is an AttributeError of that environment; it harms nobody.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from rollout_worker.envs.commands import Request
from rollout_worker.envs.faults import EnvFault, fault_of
from rollout_worker.envs.native import Start
from rollout_worker.envs.transfer import refusal_of, without_locks

GET_ATTRIBUTE, IS_CALLABLE, SET_ATTRIBUTE = ".", "?", "="
"""Prefixes of a request's name: read the attribute and never call it; say whether it can be called; set it to
the only argument. No Python name starts with one."""

STAGE = "!"
"""A request of this name stages the sessions' next reset, with a `Start` each."""

PREFIXES = STAGE + GET_ATTRIBUTE + IS_CALLABLE + SET_ATTRIBUTE


@dataclass(frozen=True, slots=True)
class Result:
    """What one environment answered: a value, or the exception that it raised, with its fault."""

    env_index: int
    value: Any = None
    error: BaseException | None = None
    fault: EnvFault | None = None


class Answering(Protocol):
    """What is asked: an environment, and the session around it."""

    env: Any

    def stage(self, start: Start) -> None:
        """Keep what the next reset takes."""


def answer(request: Request, sessions: Sequence[Answering], first_env: int) -> list[Result]:
    """The results of those environments that live here, in order."""
    results: list[Result] = []
    for index in request.indices:
        row = index - first_env
        if not 0 <= row < len(sessions):
            continue
        try:
            results.append(Result(index, value=_ask(sessions[row], request, index)))
        except Exception as error:
            fault = fault_of(error, env_index=index, pid=os.getpid(), call=request.name.lstrip(PREFIXES))
            results.append(Result(index, error=error, fault=fault))
    return results


def _ask(session: Answering, request: Request, index: int) -> Any:
    args = request.args_of(index)
    if request.name == STAGE:
        session.stage(*args)
        return None
    env = session.env
    name = request.name.lstrip(PREFIXES)
    if request.name.startswith(SET_ATTRIBUTE):
        setattr(env, name, args[0])
        return None
    found = _attribute(env, name)
    if request.name.startswith(IS_CALLABLE):
        return callable(found)
    if request.name.startswith(GET_ATTRIBUTE):
        return found
    if not callable(found):
        return found
    given = found(*args, **dict(request.kwargs))
    return None if name == "to" else given  # it gives the environment itself


def sendable(results: Sequence[Result], request: Request) -> list[Result]:
    """The same results, fit for a pipe: locks in a state are None, and what cannot be sent is an error of its own."""
    if request.name == "state_dict":
        results = [replace(each, value=without_locks(each.value)) for each in results]
    found: list[Result] = []
    for each in results:
        refusal = refusal_of(each)
        if refusal is not None:
            what = type(each.value if each.error is None else each.error).__name__
            error = TypeError(f"environment {each.env_index} gave a {what}, which cannot be sent: {refusal}")
            call = request.name.lstrip(PREFIXES)
            fault = fault_of(error, env_index=each.env_index, pid=os.getpid(), call=call)
            each = Result(each.env_index, error=error, fault=fault)
        found.append(each)
    return found


def _attribute(env: Any, name: str) -> Any:
    """The attribute of the environment, or of what it wraps where a wrapper hides it."""
    try:
        return getattr(env, name)
    except AttributeError:
        inner = getattr(env, "unwrapped", None)
        if inner is None or inner is env:
            raise
        return getattr(inner, name)
