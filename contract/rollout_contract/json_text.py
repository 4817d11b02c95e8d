"""JSON text in which every key stands once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


class RepeatedKey(ValueError):
    """An object names a key twice: readers would differ in which one they take."""


def without_repeats(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """An object of a JSON text, for `object_pairs_hook` of Python's parser. RepeatedKey for a key that stands twice."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise RepeatedKey(f"the key {key[:80]!r} stands twice in one object")
        found[key] = value
    return found
