"""Puts what an environment hands out into its rows of the block, by value, after checking that it fits the
spec.

The check is a comparison of type, shape and dtype; only what differs is looked at closely. A value of another
dtype is cast where nothing but precision can be lost; anything else is an error that names the key. Called by
the stepper alone.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from rollout_worker.envs.describe import OBJECT, Key, LeafSpec, Leaves, Path, spelled

Rows = Sequence[np.ndarray[Any, Any]]
"""One array `[n, *shape]` per leaf: a single frame of n environments."""


class Writer(Protocol):
    """Writes the observation of row `index`."""

    def __call__(self, rows: Rows, index: int, observation: Any) -> None: ...


def writer_of(leaves: Leaves, paths: Sequence[Path]) -> Writer:
    """The writer for such an observation: one leaf as it comes, or a tree of dicts and tuples."""
    if len(leaves) == 1 and paths[0] == ():
        ((key, spec),) = leaves
        return _LeafWriter(key, spec)
    return _TreeWriter(leaves, paths)


class _LeafWriter:
    def __init__(self, key: Key, spec: LeafSpec) -> None:
        self._key, self._spec = key, spec
        self._shape, self._dtype = spec.shape, _as_it_comes(spec)

    def __call__(self, rows: Rows, index: int, observation: Any) -> None:
        if (
            type(observation) is np.ndarray
            and observation.shape == self._shape
            and observation.dtype == self._dtype
        ):
            rows[0][index] = observation
        else:
            rows[0][index] = fitted(observation, self._key, self._spec)


class _TreeWriter:
    def __init__(self, leaves: Leaves, paths: Sequence[Path]) -> None:
        self._leaves = [
            (position, key, spec, spec.shape, _as_it_comes(spec), path)
            for position, ((key, spec), path) in enumerate(zip(leaves, paths, strict=True))
        ]
        self._heads = {path[0] for path in paths if path}
        self._has_warned = False

    def __call__(self, rows: Rows, index: int, observation: Any) -> None:
        for position, key, spec, shape, dtype, path in self._leaves:
            value = observation
            try:
                for name in path:
                    value = value[name]
            except (KeyError, IndexError, TypeError) as error:
                raise KeyError(f"the observation lacks {spelled(key)}: {_outline(observation)}") from error
            if type(value) is np.ndarray and value.shape == shape and value.dtype == dtype:
                rows[position][index] = value
            else:
                rows[position][index] = fitted(value, key, spec)
        if len(observation) != len(self._heads) and not self._has_warned:
            self._warn_of_extra(observation)

    def _warn_of_extra(self, observation: Any) -> None:
        self._has_warned = True
        extra = (
            [str(name) for name in observation if name not in self._heads]
            if isinstance(observation, dict)
            else []
        )
        if extra:
            names = ", ".join(sorted(extra))
            warnings.warn(
                f"the observation has keys that its spec does not declare: {names}; they are dropped",
                stacklevel=2,
            )


def storage_of(spec: LeafSpec) -> np.dtype[Any]:
    """The numpy dtype of a leaf's memory (bfloat16 lies there as uint16)."""
    return np.dtype("uint16" if spec.dtype == "bfloat16" else spec.dtype)


def _as_it_comes(spec: LeafSpec) -> np.dtype[Any] | None:
    """The dtype in which a value needs no change at all; None where every value does."""
    return None if any(spec.start) else storage_of(spec)


def _copied(value: Any, key: Key) -> Any:
    try:
        return copy.deepcopy(value)
    except Exception as error:
        raise TypeError(
            f"{spelled(key)} is a {type(value).__name__}, which cannot be copied and therefore not be kept: {error}"
        ) from error


def fitted(value: Any, key: Key, spec: LeafSpec) -> Any:
    """A value in the spec's dtype and shape; categories are counted from 0. What is no tensor is copied, as it may change.

    Raises ValueError or TypeError that names the key and says what came.
    """
    if spec.dtype == OBJECT:
        return value if isinstance(value, str) else _copied(value, key)
    dtype = storage_of(spec)
    try:
        array = np.asarray(value)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"{spelled(key)} is {type(value).__name__}, no array of {spec.dtype}{list(spec.shape)}"
        ) from error
    if array.shape != spec.shape:
        raise ValueError(
            f"{spelled(key)} has shape {list(array.shape)}; its spec says {list(spec.shape)}: give that shape, or declare "
            "this one"
        )
    if any(spec.start):
        array = array - np.array(spec.start).reshape(spec.shape)
    if array.dtype == dtype or np.can_cast(array.dtype, dtype, "same_kind"):
        return array
    return _cast_exactly(array, dtype, key)


def _cast_exactly(array: np.ndarray[Any, Any], dtype: np.dtype[Any], key: Key) -> np.ndarray[Any, Any]:
    if array.dtype.kind in "biuf":
        with np.errstate(invalid="ignore"):
            cast = array.astype(dtype)
        if np.array_equal(cast, array):
            return cast
    raise TypeError(
        f"{spelled(key)} has dtype {array.dtype}; its spec says {dtype}, which cannot hold {array.ravel()[:1]}: "
        "convert it, or declare what it has"
    )


def _outline(value: Any) -> str:
    if isinstance(value, dict):
        return f"it has {', '.join(map(repr, value)) or 'no keys'}"
    return f"it is {type(value).__name__}"
