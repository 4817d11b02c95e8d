"""Environments with odd observations, as real ones have: by kind, what is handed out, and what is meant."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np
import toys
from gymnasium import spaces

F32 = np.float32


def box(shape: tuple[int, ...], dtype: Any = F32) -> spaces.Box:
    if np.dtype(dtype).kind == "b":
        return spaces.Box(0, 1, shape, dtype)
    limits = (-np.inf, np.inf) if np.dtype(dtype).kind == "f" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    return spaces.Box(*limits, shape, dtype)


def grid(n: int) -> Any:
    return np.arange(6, dtype=F32).reshape(2, 3) + n


def read_only(array: Any) -> Any:
    array.setflags(write=False)
    return array


ARRAYS: dict[str, tuple[Any, Any, Any]] = {
    "transposed": (box((3, 2)), lambda n: grid(n).T, lambda n: grid(n).T.copy()),
    "reversed": (box((2, 3)), lambda n: grid(n)[::-1, ::-1], lambda n: np.flip(grid(n)).copy()),
    "every second": (box((2, 2)), lambda n: grid(n)[:, ::2], lambda n: grid(n)[:, [0, 2]]),
    "fortran": (box((2, 3)), lambda n: np.asfortranarray(grid(n)), grid),
    "read-only": (box((2, 3)), lambda n: read_only(grid(n)), grid),
    "broadcast": (box((2, 2)), lambda n: np.broadcast_to(F32(n), (2, 2)), lambda n: np.full((2, 2), n, F32)),
    "big-endian": (box((2, 3)), lambda n: grid(n).astype(">f4"), grid),
    "zero-d": (box(()), lambda n: np.array(n, F32), lambda n: np.array(n, F32)),
    "numpy scalar": (box(()), F32, lambda n: np.array(n, F32)),
    "python number": (box(()), float, lambda n: np.array(n, F32)),
    "list": (box((2,)), lambda n: [n, n + 0.5], lambda n: np.array([n, n + 0.5], F32)),
    "float64 for float32": (box((1,)), lambda n: np.array([n + 0.5]), lambda n: np.array([n + 0.5], F32)),
    "ints for float32": (box((2,)), lambda n: np.array([n, -n]), lambda n: np.array([n, -n], F32)),
    "masked": (box((2,)), lambda n: np.ma.masked_array([n, 1.0], dtype=F32), lambda n: np.array([n, 1], F32)),
    "record of one": (
        box((1,)),
        lambda n: np.array([n], F32).view(np.recarray),
        lambda n: np.array([n], F32),
    ),
    "nothing": (box((0, 3)), lambda n: np.zeros((0, 3), F32), lambda n: np.zeros((0, 3), F32)),
    "bool": (box((3,), np.bool_), lambda n: np.arange(3) == n, lambda n: np.arange(3) == n),
    "bits as bool": (
        spaces.MultiBinary(3),
        lambda n: np.arange(3) == n,
        lambda n: (np.arange(3) == n).astype("i1"),
    ),
    "discrete as int": (spaces.Discrete(9), lambda n: n, lambda n: np.array(n)),
    "discrete as int32": (spaces.Discrete(9), np.int32, lambda n: np.array(n)),
    **{
        dtype: (
            box((2,), dtype),
            lambda n, dtype=dtype: np.array([np.iinfo(dtype).max - n, n], dtype),
            lambda n, dtype=dtype: np.array([np.iinfo(dtype).max - n, n], dtype),
        )
        for dtype in ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
    },
    "float16": (
        box((2,), np.float16),
        lambda n: np.array([n + 2**-10, -0.0], np.float16),
        lambda n: np.array([n + 2**-10, -0.0], np.float16),
    ),
    "denormal": (
        box((2,), np.float64),
        lambda n: np.array([5e-324 * (n + 1), 1 + 2**-52]),
        lambda n: np.array([5e-324 * (n + 1), 1 + 2**-52]),
    ),
}
"""By name: the space, what is handed out at count n, and what must arrive."""


class Odd(toys.Count):
    """An array of one kind, terminated on step `k`; the reward comes in odd types too."""

    REWARDS = (1, np.float32(1), np.int64(1), np.array(1.0), True, np.array([1.0]), np.float16(1))

    def __init__(self, kind: str, k: int = 3) -> None:
        self.kind = kind
        super().__init__(k)

    def _space(self) -> spaces.Space:
        return ARRAYS[self.kind][0]

    def _observe(self) -> Any:
        return ARRAYS[self.kind][1](self.n)

    def step(self, action: Any) -> Any:
        observation, _, terminated, _, info = super().step(action)
        return observation, self.REWARDS[self.n_step % 7], np.bool_(terminated), np.array(False), info


class DeepAlias(toys.Count):
    """One nested observation and one nested info, both handed out every time and changed in place, also between calls."""

    def __init__(self, k: int = 3) -> None:
        super().__init__(k)
        self.deep = {
            "own": np.zeros(2, F32),
            "pair": (np.zeros(1, np.int64), {"view": np.zeros((2, 4), np.uint8).T}),
            "flag": np.zeros((), np.bool_),
        }
        self.info: dict[str, Any] = {"inner": {"list": [0], "array": np.zeros(1, np.int64)}}

    def _space(self) -> spaces.Space:
        pair = spaces.Tuple([box((1,), np.int64), spaces.Dict(view=box((4, 2), np.uint8))])
        return spaces.Dict(own=box((2,)), pair=pair, flag=box((), np.bool_))

    def fill(self, n: int) -> None:
        self.deep["own"][...] = n
        self.deep["pair"][0][...] = n
        self.deep["pair"][1]["view"][...] = n
        self.deep["flag"][...] = n % 2 == 1
        self.info["inner"]["list"][0] = n
        self.info["inner"]["array"][...] = n

    def _observe(self) -> Any:
        self.fill(self.n)
        return self.deep

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        observation, _ = super().reset(seed=seed)
        return observation, self.info

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, _ = super().step(action)
        return observation, reward, terminated, truncated, self.info


class Shuffled(toys.Count):
    """A dict observation whose keys come in another order each time, in an OrderedDict."""

    def _space(self) -> spaces.Space:
        return spaces.Dict(a=box((1,)), b=box((2,)), c=spaces.Dict(x=box(()), y=box((1,), np.int64)))

    def _observe(self) -> Any:
        inner = [("x", F32(self.n)), ("y", np.array([self.n]))]
        entries = [("a", np.array([self.n], F32)), ("b", np.full(2, self.n, F32)), ("c", OrderedDict(inner))]
        return OrderedDict(entries[self.n % 3 :] + entries[: self.n % 3])


class Longer(toys.Count):
    """A text that grows with each step, of all kinds of characters."""

    WORDS = ("", "a", "é" * 300, "\N{SNOWMAN}\n\t\x00", "x" * 70_000, '{"json": [1]}', "\ud83d\ude00")

    def _space(self) -> spaces.Space:
        return spaces.Text(1_000_000)

    def _observe(self) -> Any:
        return self.WORDS[self.n % len(self.WORDS)] + str(self.n)
