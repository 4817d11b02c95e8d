"""Tells which leaves that are no tensors need not be sent again: constants that are what they were.

Only values that nobody can change are left out (texts, numbers, and tuples of these). Anything else is sent every time:
the side that receives it may change what it was given, and must be shown what the environment holds.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np

_PLAIN = frozenset({str, bytes, int, bool, type(None), type(Ellipsis)})
_NUMBERS = frozenset({float, complex})


def is_constant(value: Any) -> bool:
    """Whether nobody can change a value, nor anything in it. Subclasses may have attributes, and do not count."""
    kind = type(value)
    if kind in _PLAIN or kind in _NUMBERS:
        return True
    if kind is tuple or kind is frozenset:
        return all(map(is_constant, value))
    return isinstance(value, np.generic) and not isinstance(value, (np.void, np.object_))


def is_same(one: Any, other: Any) -> bool:
    """Whether two constants cannot be told apart: 1, 1.0 and True can, and so can 0.0 and -0.0."""
    if type(one) is not type(other):
        return False
    if one is other:
        return True
    if type(one) in _PLAIN:
        return bool(one == other)
    if type(one) is tuple:
        return len(one) == len(other) and all(map(is_same, one, other))
    if isinstance(one, np.generic):
        return bool(one.dtype == other.dtype and one.tobytes() == other.tobytes())
    return repr(one) == repr(other)


class Memory:
    """What the other side holds of some leaves, by where they stand. Both sides keep one, and it is the same in both as long
    as everything that one writes is read by the other, in order."""

    def __init__(self) -> None:
        self._values: dict[Hashable, Any] = {}

    def get(self, place: Hashable) -> Any:
        """What stands there; None where nothing is known of it."""
        return self._values.get(place)

    def has(self, place: Hashable, value: Any) -> bool:
        """Whether this very constant stands there."""
        return is_same(self._values.get(place, _NOTHING), value)

    def holds(self, place: Hashable, value: Any) -> bool:
        """Whether this very constant was written there last; from now on it was. Called for every value that is written."""
        if self.has(place, value):
            return True
        self.write(place, value)
        return False

    def write(self, place: Hashable, value: Any) -> None:
        """Note what is written. What can be changed is forgotten."""
        if is_constant(value):
            self._values[place] = value
        else:
            self._values.pop(place, None)


_NOTHING = object()
