"""Kubernetes quantities (`4Gi`, `500m`, `8`) as exact numbers, and bytes back as a quantity.

Used by the spec's checks, the operator (limits, shared memory) and the worker (stream limits). Pure; the spec keeps
quantities as they were written, so that what a user reads back is what they wrote.
"""

from __future__ import annotations

import re
from fractions import Fraction

from rollout_contract.faults import shown

Quantity = str | int

MAX_LENGTH = 32
"""Longest text taken for a quantity; Kubernetes keeps 64 bits, which need 20 digits and a suffix."""

_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60}
_DECIMAL = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 10**3),
    "": Fraction(1),
    "k": Fraction(10**3),
    "M": Fraction(10**6),
    "G": Fraction(10**9),
    "T": Fraction(10**12),
    "P": Fraction(10**15),
    "E": Fraction(10**18),
}
_SUFFIXES = _DECIMAL | {name: Fraction(factor) for name, factor in _BINARY.items()}

PATTERN = r"^[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]{1,2})?$"
_QUANTITY = re.compile(
    r"(?P<number>[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))(?P<suffix>[KMGTPE]i|[numkMGTPE]?|[eE][+-]?[0-9]{1,2})"
)


def parse(quantity: Quantity) -> Fraction:
    """The exact value of a quantity. ValueError, with what is allowed, for anything else."""
    if isinstance(quantity, int) and not isinstance(quantity, bool) and quantity.bit_length() < 64:
        return Fraction(quantity)
    match = (
        _QUANTITY.fullmatch(quantity) if isinstance(quantity, str) and len(quantity) <= MAX_LENGTH else None
    )
    if match is None:
        raise ValueError(
            f"{shown(quantity)} is no quantity: write a whole number, or text with one of the suffixes "
            "m, k, M, G, T, P, E, Ki, Mi, Gi, Ti, Pi, Ei, such as 500m, 4Gi or 1.5G"
        )
    number, suffix = Fraction(match["number"]), match["suffix"]
    if suffix in _SUFFIXES:
        return number * _SUFFIXES[suffix]
    return number * Fraction(10) ** int(suffix[1:])


def to_bytes(quantity: Quantity) -> int:
    """Whole bytes of a size, rounded up as Kubernetes does. ValueError for what is no quantity, or negative."""
    value = parse(quantity)
    if value < 0:
        raise ValueError(f"{shown(quantity)} is negative: a size is 0 or more")
    return -(-value.numerator // value.denominator)


def whole_cpus(quantity: Quantity) -> int:
    """Processors that a CPU quantity pays for in full, at least one: `1500m` is 1, `4` is 4."""
    return max(1, int(parse(quantity)))


def format_bytes(size: int) -> str:
    """A size as a quantity for people: the largest binary unit of which it holds one, rounded down (`310Mi`)."""
    unit = ""
    for name, factor in _BINARY.items():
        if size < factor:
            break
        unit = name
    return f"{size // _BINARY.get(unit, 1)}{unit}"
