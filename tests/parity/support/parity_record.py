"""What a scenario gave, as plain JSON: tensors with dtype and shape, tensordicts leaf by leaf, errors by class.

Both sides are recorded by this one function and compared as JSON, so nothing is compared more loosely than it is
written down.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from tensordict import (
    LazyStackedTensorDict,
    NonTensorData,
    NonTensorStack,
    TensorDictBase,
    is_tensor_collection,
)


def plain(value: Any) -> Any:
    """A value as JSON can hold it. Raises TypeError for what has no plain form."""
    if isinstance(value, (NonTensorData, NonTensorStack)):
        return {"objects": value.tolist()}
    if isinstance(value, LazyStackedTensorDict):
        return {"lazy": value.stack_dim, "rows": [plain(row) for row in value.unbind(value.stack_dim)]}
    if is_tensor_collection(value):
        return {"batch_size": list(value.batch_size), "leaves": _leaves(value)}
    if isinstance(value, torch.Tensor):
        return _tensor(value)
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    if isinstance(value, (torch.device, torch.dtype)):
        return str(value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"a {type(value).__name__} cannot be recorded; record its parts")


def _tensor(value: torch.Tensor) -> dict[str, Any]:
    dtype = str(value.dtype).removeprefix("torch.")
    return {"dtype": dtype, "shape": list(value.shape), "values": value.detach().cpu().tolist()}


def _leaves(value: TensorDictBase) -> dict[str, Any]:
    entries = {name: value.get(name) for name in sorted(value.keys())}
    return {
        name: plain(entry)
        if isinstance(entry, torch.Tensor) or is_tensor_collection(entry)
        else {"objects": entry}
        for name, entry in entries.items()
    }


def error_of(call: Callable[[], Any]) -> dict[str, str]:
    """The class of the error that a call raises: the nearest one of Python's own. AssertionError where it raises none."""
    try:
        call()
    except Exception as error:
        builtin = next(kind for kind in type(error).__mro__ if kind.__module__ == "builtins")
        return {"error": builtin.__name__}
    raise AssertionError("the call was expected to raise")


def differences(expected: Any, found: Any, path: str = "") -> Iterator[str]:
    """One line per leaf in which two records differ."""
    if isinstance(expected, dict) and isinstance(found, dict) and "dtype" not in expected:
        for name in [*expected, *(name for name in found if name not in expected)]:
            if name not in found or name not in expected:
                side = "missing" if name not in found else "not expected"
                yield f"{path}/{name}: {side}"
            else:
                yield from differences(expected[name], found[name], f"{path}/{name}")
    elif isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        for index, (left, right) in enumerate(zip(expected, found, strict=True)):
            yield from differences(left, right, f"{path}/{index}")
    elif expected != found or type(expected) is not type(found):
        yield f"{path}: expected {json.dumps(expected)}, found {json.dumps(found)}"


def spelled(record: Mapping[str, Any]) -> str:
    """A record as text: one line per leaf, in a stable order."""
    return _text(record, 0) + "\n"


def _text(value: Any, depth: int) -> str:
    is_deep = (
        isinstance(value, dict)
        and "dtype" not in value
        and any(isinstance(v, (dict, list)) for v in value.values())
    )
    if not is_deep:
        return json.dumps(value)
    pad = " " * (depth + 1)
    lines = [f"{pad}{json.dumps(name)}: {_text(each, depth + 1)}" for name, each in value.items()]
    return "{\n" + ",\n".join(lines) + "\n" + " " * depth + "}"
