"""Judges what environments gave, and says in words what is wrong with it. Called by the stepper alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from rollout_worker.envs.describe import Key, spelled

Array = np.ndarray[Any, Any]

NOTHING = object()
"""Stands for the result of a step that has not returned."""

_SMALL_BYTES = 4096


def explained(error: BaseException, result: Any) -> BaseException:
    """An error of user code as it is; one that arose here, from what `step` gave, in words that say what was expected."""
    if result is NOTHING or error.__traceback__ is None or error.__traceback__.tb_next is not None:
        return error
    kinds = (
        ", ".join(type(each).__name__ for each in result)
        if isinstance(result, tuple)
        else type(result).__name__
    )
    return TypeError(
        f"step gave ({kinds}); expected are observation, reward (one number), terminated, truncated (one boolean each), "
        f"info: {error}"
    )


def first_non_finite(
    following: Iterable[tuple[Key, Array]], active: Sequence[int] | None
) -> tuple[int, ValueError] | None:
    """The first row, of those that are active (None: of all), whose values `[num_envs, …]` under `next` hold NaN or
    infinity, and the error of it; None where all are finite."""
    for key, values in following:
        if not _all_finite(values if active is None else values[active]):
            bad = ~np.isfinite(values)
            row = next(row for row in (active or range(len(values))) if bad[row].any())
            return row, _non_finite(("next", *key), values[row][bad[row]].ravel()[0])
    return None


def refuse_non_finite_root(leaves: Iterable[tuple[Key, Array]], row: int) -> None:
    """Raise ValueError where this row of the leaves `[num_envs, …]` holds NaN or infinity."""
    for key, values in leaves:
        if values.dtype.kind in "fc" and not _all_finite(values[row]):
            flat = np.asarray(values[row]).ravel()
            raise _non_finite(key, flat[~np.isfinite(flat)][0])


def _all_finite(values: Array) -> bool:
    """For small arrays a search in bytes is quicker than a reduction."""
    finite = np.isfinite(values)
    return b"\0" not in finite.tobytes() if finite.size <= _SMALL_BYTES else bool(finite.all())


def _non_finite(key: Key, value: Any) -> ValueError:
    return ValueError(
        f"{spelled(key)} holds {value}: only finite numbers are stored. Use check_finite=False to allow it."
    )
