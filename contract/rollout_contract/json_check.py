"""Whether a document that came from YAML or Python is plain JSON of a sane size, before anything walks it freely.

First step of `parse_manifest`. YAML can say what JSON cannot (dates, NaN, keys that are numbers, loops through
anchors, a few lines that unfold to gigabytes); the API server would refuse it or change it in silence.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from rollout_contract.errors import Fault
from rollout_contract.faults import Location, path_of, safe_value, shown

MAX_DEPTH = 64
"""Levels of nesting: far more than any manifest has, fewer than Python's own walks stand."""
MAX_VALUES = 100_000
"""Keys and values in all: an object in the API server has at most 1.5 MiB."""
_INT64 = range(-(2**63), 2**63)


class DocumentTooLarge(Exception):
    """The document is too deep or too large to be looked at; carries the one fault that says so."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(str(fault))
        self.fault = fault


class _Budget:
    """Counts what was visited."""

    def __init__(self) -> None:
        self.left = MAX_VALUES

    def take(self, location: Location) -> None:
        self.left -= 1
        if self.left < 0:
            raise DocumentTooLarge(
                _fault((), None, f"has more than {MAX_VALUES} values: this is no manifest")
            )
        if len(location) > MAX_DEPTH:
            raise DocumentTooLarge(
                _fault(
                    location[:8],
                    None,
                    f"is nested more than {MAX_DEPTH} levels deep; a YAML anchor may refer to itself",
                )
            )


def _fault(location: Location, value: object, message: str) -> Fault:
    return Fault(path=path_of(location), value=safe_value(location, value), message=message)


def json_faults(document: object) -> dict[Location, Fault]:
    """Every place whose value JSON cannot say, with its fault. DocumentTooLarge if there is no sane end to it."""
    return dict(_walk(document, (), _Budget()))


def _walk(value: object, location: Location, budget: _Budget) -> Iterator[tuple[Location, Fault]]:
    budget.take(location)
    match value:
        case dict():
            for key, item in value.items():
                if isinstance(key, str) and _is_unicode(key):
                    yield from _walk(item, (*location, key), budget)
                else:
                    at = (*location, str(key) if _is_plain(key) else "?")
                    yield at, _fault(at, None, f"the key {shown(key)} must be text: put it in quotes")
        case list() | tuple():
            for index, item in enumerate(value):
                yield from _walk(item, (*location, index), budget)
        case _:
            problem = _problem_of(value)
            if problem:
                yield location, _fault(location, value, problem)


def _is_plain(key: object) -> bool:
    return key is None or isinstance(key, bool | float) or (isinstance(key, int) and key in _INT64)


def _problem_of(value: object) -> str | None:
    match value:
        case None | bool():
            return None
        case str():
            return None if _is_unicode(value) else "the text is not valid Unicode"
        case int():
            return (
                None
                if value in _INT64
                else f"{shown(value)} does not fit into 64 bits: use a smaller number, or text"
            )
        case float():
            return (
                None
                if math.isfinite(value)
                else f"{shown(value)} cannot be said in JSON: write a finite number or text"
            )
        case _:
            hint = ": put it in quotes" if type(value).__name__ in ("date", "datetime") else ""
            return f"a value of type {type(value).__name__} cannot be said in JSON{hint}"


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
