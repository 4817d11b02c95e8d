"""The chain of seeds that `set_seed` hands out: the same numbers on every machine, and the ones TorchRL users know."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import numpy as np

_SEEDS = 2**32 - 1


def successor(seed: int, *, is_static: bool = False) -> int:
    """The seed of the next environment: the same where static, else eight bytes of numpy's generator, big-endian."""
    if is_static:
        return seed
    return int.from_bytes(np.random.default_rng(seed).bytes(8), "big") % _SEEDS


def chain(seed: int, length: int, *, is_static: bool = False) -> tuple[list[int], int]:
    """The seeds of `length` environments, and the one to go on with."""
    seeds = list(islice(_chain(seed, is_static), length + 1))
    return seeds[:-1], seeds[-1]


def _chain(seed: int, is_static: bool) -> Iterator[int]:
    while True:
        yield seed
        seed = successor(seed, is_static=is_static)
