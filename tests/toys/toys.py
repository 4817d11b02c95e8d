"""The small environments of the tests: importable by child processes, each with one trait to check.

The gymnasium ones are those that the probes name; `toys_td` has those with tensordicts.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces

INT64 = np.iinfo(np.int64)


class Count(gymnasium.Env):
    """Observation `[start]` after a reset, plus 1 per step; reward 1; terminated on step `k`."""

    def __init__(self, k: int = 3, start: int = 0) -> None:
        self.k, self.start, self.n = k, start, 0
        self.n_reset = self.n_step = 0
        self.tag = "x"
        self.seeds: list[int | None] = []
        self.observation_space = self._space()
        self.action_space = spaces.Discrete(2)

    def _space(self) -> spaces.Space:
        return spaces.Box(INT64.min, INT64.max, (1,), np.int64)

    def _observe(self) -> Any:
        return np.array([self.start + self.n])

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.seeds.append(seed)
        self.n, self.n_reset = 0, self.n_reset + 1
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.n, self.n_step = self.n + 1, self.n_step + 1
        return self._observe(), 1.0, self.n >= self.k, False, {}

    def hello(self, x: Any, y: Any = None) -> tuple[str, Any, Any]:
        return self.tag, x, y

    def fail(self) -> None:
        raise ValueError("inner")

    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def report(self) -> dict[str, Any]:
        """What this process is like."""
        import sys

        torch = sys.modules.get("torch")
        return {
            "pid": os.getpid(),
            "has_torch": torch is not None,
            "torch_threads": None if torch is None else torch.get_num_threads(),
            "omp": os.environ.get("OMP_NUM_THREADS"),
            "sigint": signal.getsignal(signal.SIGINT) == signal.SIG_IGN,
        }


class Alias(Count):
    """Hands out one observation buffer and info every time, and changes them in place."""

    def __init__(self, k: int = 3) -> None:
        super().__init__(k)
        self.buffer = np.zeros(1, dtype=np.int64)
        self.info: dict[str, Any] = {}

    def _observe(self) -> Any:
        self.buffer[0] = self.n
        self.info["n"] = self.n
        return self.buffer


class Calls(Count):
    """Observation `[n, resets so far, steps so far]`."""

    def _space(self) -> spaces.Space:
        return spaces.Box(INT64.min, INT64.max, (3,), np.int64)

    def _observe(self) -> Any:
        return np.array([self.start + self.n, self.n_reset, self.n_step])

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self._observe(), {}


class Rng(Count):
    """Observation drawn from the environment's own generator, at reset and at each step."""

    def __init__(self, k: int = 10) -> None:
        super().__init__(k)

    def _space(self) -> spaces.Space:
        return spaces.Box(0.0, 1.0, (1,), np.float64)

    def _observe(self) -> Any:
        return self.np_random.random(1)


class GlobalRng(Rng):
    """Draws from the global generators of Python and numpy."""

    def _observe(self) -> Any:
        return np.array([(random.random() + np.random.random()) / 2])


class AtPlace(Count):
    """Does its deed at the place `where`: constructor, reset, close, or the step of that number; only as number `only`."""

    def __init__(self, where: str | int, only: int | None, env_index: int) -> None:
        super().__init__(1000)
        self.where = where if only in (None, env_index) else "nowhere"
        self.env_index = env_index
        self._maybe("constructor")

    def do(self) -> None:
        """The deed."""
        raise NotImplementedError

    def _maybe(self, place: str | int) -> None:
        if place == self.where:
            self.do()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        self._maybe("reset")
        return super().reset(seed=seed)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._maybe(self.n_step + 1)
        return super().step(action)

    def close(self) -> None:
        self._maybe("close")


class Fault(AtPlace):
    """Fails in the way `how`. -1 never fails."""

    def __init__(
        self, how: str = "raise", where: str | int = "step", only: int | None = None, env_index: int = 0
    ) -> None:
        self.how = how
        super().__init__(where, only, env_index)

    def do(self) -> None:
        if self.how == "raise":
            raise ValueError(f"boom-{7 + self.env_index}")
        if self.how == "exit":
            os._exit(3)
        if self.how == "sys.exit":
            raise SystemExit(3)
        if self.how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.how == "sleep":
            time.sleep(3600)


class Wrong(Count):
    """From step 2 on gives what its spaces do not allow: `what` says what."""

    def __init__(self, what: str) -> None:
        super().__init__(1000)
        self.what = what
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(2, dtype=np.float32), {}

    def step(self, action: Any) -> Any:
        super().step(action)
        good = (np.ones(2, dtype=np.float32), 0.5, False, False, {})
        if self.n < 2:
            return good
        return {
            "shape": (np.ones(3, dtype=np.float32), *good[1:]),
            "broadcast": (np.ones(1, dtype=np.float32), *good[1:]),
            "nan": (np.array([0.0, np.nan], dtype=np.float32), *good[1:]),
            "inf": (np.array([np.inf, 0.0], dtype=np.float32), *good[1:]),
            "reward nan": (good[0], float("nan"), *good[2:]),
            "reward none": (good[0], None, *good[2:]),
            "reward array": (good[0], np.ones(2), *good[2:]),
            "four": good[:4],
            "nothing": None,
            "text": ("hello", *good[1:]),
            "complex": (np.array([1j, 0]), *good[1:]),
        }[self.what]


class Sleep(Count):
    """`Count(1000)` whose step takes `t` seconds."""

    def __init__(self, t: float) -> None:
        super().__init__(1000)
        self.t = t

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        time.sleep(self.t)
        return super().step(action)


class Busy(Count):
    """A step that computes for ever in one call that never returns to Python."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        while True:
            sum(range(10**9))


class Who(Count):
    """Observation = the index that it was made with."""

    def __init__(self, env_index: int) -> None:
        super().__init__(1000, start=env_index)

    def _observe(self) -> Any:
        return np.array([self.start])


class Text(Count):
    """Text observation `w<index>-s<steps since reset>`; terminated on step `k`."""

    def __init__(self, k: int = 3, env_index: int = 0, name: str | None = None) -> None:
        self.name = f"w{env_index}" if name is None else name
        super().__init__(k)

    def _space(self) -> spaces.Space:
        return spaces.Text(32)

    def _observe(self) -> Any:
        return f"{self.name}-s{self.n}"


class Nested(Count):
    """A nested observation with dtypes that a detour through floats would damage; reward 0.1."""

    def _space(self) -> spaces.Space:
        return spaces.Dict(
            {
                "cam": spaces.Box(0, 255, (2, 2), np.uint8),
                "pos": spaces.Dict(
                    {
                        "x": spaces.Box(-np.inf, np.inf, (1,), np.float64),
                        "n": spaces.Box(INT64.min, INT64.max, (1,), np.int64),
                    }
                ),
                "on": spaces.Box(0, 1, (1,), np.bool_),
            }
        )

    def _observe(self) -> Any:
        return {
            "cam": np.full((2, 2), 255, dtype=np.uint8),
            "pos": {"x": np.array([2.0**53 - 1]), "n": np.array([2**53 + 1])},
            "on": np.array([True]),
        }

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, _, terminated, truncated, info = super().step(action)
        return observation, 0.1, terminated, truncated, info


class Actions(gymnasium.Env):
    """Checks that its action is in its space, and remembers it; `kind` chooses the space."""

    SPACES: ClassVar[dict[str, spaces.Space]] = {
        "discrete": spaces.Discrete(3, start=5),
        "multi": spaces.MultiDiscrete([2, 3]),
        "binary": spaces.MultiBinary(4),
        "box": spaces.Box(-1.0, 1.0, (2,), np.float32),
        "dict": spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Box(0.0, 1.0, (1,), np.float64)}),
        "tuple": spaces.Tuple([spaces.Discrete(2), spaces.Dict({"c": spaces.MultiBinary(2)})]),
    }

    def __init__(self, kind: str) -> None:
        self.observation_space = spaces.Box(0, 1, (1,), np.float32)
        self.action_space = self.SPACES[kind]
        self.last: Any = None
        self.given: list[Any] = []

    def spoil(self) -> None:
        """Change every action that was given, in place."""
        for action in self.given:
            action[...] = -1

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(1, dtype=np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if not self.action_space.contains(action):
            raise AssertionError(f"{action!r} is not in {self.action_space}")
        self.last = action
        self.given.append(action)
        return np.zeros(1, dtype=np.float32), 0.0, False, False, {}


class Strange(Count):
    """An observation space of nobody's: it has no spec."""

    def _space(self) -> spaces.Space:
        return NobodysSpace()


class NobodysSpace(spaces.Space):
    """A space that gymnasium does not know."""


class Total(gymnasium.Wrapper):
    """A wrapper that sums the rewards of the episode into the observation."""

    def __init__(self, k: int = 3) -> None:
        super().__init__(Count(k))
        self.observation_space = spaces.Dict(
            {"observation": self.env.observation_space, "total": spaces.Box(0, np.inf, (1,), np.float64)}
        )
        self.total = 0.0

    def _observe(self, observation: Any) -> Any:
        return {"observation": observation, "total": np.array([self.total])}

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(**kwargs)
        self.total = 0.0
        return self._observe(observation), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        self.total += float(reward)
        return self._observe(observation), reward, terminated, truncated, info


def count(k: int = 3, start: int = 0) -> Count:
    """A plain function that makes an environment."""
    return Count(k, start)


def not_an_env() -> str:
    """Makes a text."""
    return "no environment"


class Optioned(Count):
    """Starts where the reset's options say."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        self.start = (options or {}).get("start", 0)
        return super().reset(seed=seed)


class Gate(Count):
    """Its steps wait for SIGUSR1 where it is shut."""

    def __init__(self, state: str = "open") -> None:
        super().__init__(1000)
        self.is_shut = state == "shut"
        self.opened = threading.Event()
        if self.is_shut:
            signal.signal(signal.SIGUSR1, lambda *_: self.opened.set())

    @staticmethod
    def open_all(pid: int) -> None:
        os.kill(pid, signal.SIGUSR1)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.is_shut:
            self.opened.wait(30)
        return super().step(action)


class Marked(Count):
    """Cannot be made while a file is there; where it `waits`, it waits until the file is gone, and not for ever."""

    def __init__(self, marker: str, waits: bool = False) -> None:
        end = time.monotonic() + 300
        while os.path.exists(marker):
            if not waits or time.monotonic() > end:
                raise ValueError("there is a mark")
            time.sleep(0.01)
        super().__init__(1000)


class Breaking(Rng):
    """`Rng` whose third step raises."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.n == 2:
            raise ValueError("boom")
        return super().step(action)


class FailsOnce(Count):
    """The reset of the second one that a process makes raises. Where processes are forked, set `made` to 0 before."""

    made: ClassVar[int] = 0

    def __init__(self) -> None:
        super().__init__()
        type(self).made += 1
        self.fails = self.made == 2

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        if self.fails:
            raise ValueError("boom")
        return super().reset(seed=seed)


class Big(Count):
    """Frames of a megabyte."""

    SHAPE: ClassVar[tuple[int, ...]] = (512, 512, 4)

    def _space(self) -> spaces.Space:
        return spaces.Box(0, 255, self.SHAPE, np.uint8)

    def _observe(self) -> Any:
        return np.full(self.SHAPE, self.n % 256, dtype=np.uint8)
