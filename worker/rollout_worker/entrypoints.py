"""Turns `module:attribute` into the object it names, with errors in the words of the user's code.

Called by the worker for the policy and by the environments' child processes for the environments.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from functools import reduce
from typing import Any

from rollout_contract.errors import EntrypointError

_IMPORTING = (
    "<frozen importlib._bootstrap>",
    "<frozen importlib._bootstrap_external>",
    importlib.__file__,
)


def add_code_dirs(code_dirs: Iterable[str]) -> None:
    """Put directories with the user's code at the head of the import path, once each, in the given order."""
    sys.path[:0] = [d for d in code_dirs if d not in sys.path]


def resolve(entrypoint: str, *, field: str) -> Callable[..., Any]:
    """The callable that an entrypoint names.

    `field` is where the entrypoint stands in the manifest (`spec.env.entrypoint`). EntrypointError says which part
    failed; if importing the module raised, the user's own traceback ends the message.
    """
    module_name, _, attribute = entrypoint.partition(":")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise EntrypointError(_import_failure(entrypoint, module_name, error, field=field)) from error
    try:
        target = reduce(getattr, attribute.split("."), module)
    except AttributeError:
        near = get_close_matches(attribute, [n for n in vars(module) if not n.startswith("_")], n=1)
        hint = f" Did you mean {module_name}:{near[0]}?" if near else ""
        where = getattr(module, "__file__", None) or module_name
        raise EntrypointError(f"{field} is {entrypoint!r}, but {where} has no {attribute!r}.{hint}") from None
    if not callable(target):
        kind = type(target).__name__
        raise EntrypointError(
            f"{field} is {entrypoint!r}, which is a {kind}: it must be a function or class to call"
        )
    return target


def _import_failure(entrypoint: str, module_name: str, error: Exception, *, field: str) -> str:
    if (
        isinstance(error, ModuleNotFoundError)
        and error.name
        and module_name.split(".")[0] == error.name.split(".")[0]
    ):
        return (
            f"{field} is {entrypoint!r}, but there is no module {error.name!r} on the worker's path ({_path_text()}). "
            "Put it into the image, into the ConfigMap of spec.code, or beside the manifest of a local run."
        )
    return f"{field} is {entrypoint!r}, but importing {module_name} failed:\n{user_traceback(error)}"


def _path_text() -> str:
    return ", ".join(p or "." for p in sys.path[:3]) + (", …" if len(sys.path) > 3 else "")


def user_traceback(error: BaseException) -> str:
    """An exception's traceback without the frames of the import system and of what called it here: the user's code last."""
    lines = traceback.TracebackException.from_exception(error)
    lines.stack = traceback.StackSummary.from_list([f for f in lines.stack if not _is_ours(f.filename)])
    return "".join(lines.format()).rstrip()


def _is_ours(filename: str) -> bool:
    return filename in _IMPORTING or os.path.dirname(filename) == os.path.dirname(__file__)
