"""Gymnasium environments with what adapters must cope with: own resets, strange spaces, infos, pictures, agents."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium
import numpy as np
import toys
from gymnasium import spaces
from gymnasium.vector import AutoresetMode


class NextStep(toys.Count):
    """Resets itself on the step after an end, ignoring that step's action; its own `reset` does not change that."""

    def __init__(self, k: int = 3) -> None:
        super().__init__(k)
        self.is_over = False
        self.given: list[int] = []

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.is_over:
            self.is_over = False
            observation, info = self.reset()
            return observation, -99.0, False, False, info
        self.given.append(int(action))
        result = super().step(action)
        self.is_over = result[2]
        return result


class DeclaredNextStep(NextStep):
    """Says that it does."""

    metadata: ClassVar[dict[str, Any]] = {"autoreset_mode": AutoresetMode.NEXT_STEP}


class SameStep(toys.Count):
    """Resets itself in the step that ends; the last observation is in the info, if it is kept at all."""

    def __init__(self, k: int = 3, name: str | None = "final_obs") -> None:
        super().__init__(k)
        self.name = name

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = super().step(action)
        if not terminated:
            return observation, reward, terminated, truncated, info
        begun, _ = self.reset()
        return begun, reward, terminated, truncated, {} if self.name is None else {self.name: observation}


class Spaces(toys.Count):
    """An observation of every space that gymnasium has, sampled with the environment's own seed."""

    def _space(self) -> spaces.Space:
        return spaces.Dict(
            {
                "box": spaces.Box(-1, 1, (2,), np.float64),
                "bits": spaces.MultiBinary(3),
                "from_two": spaces.Discrete(3, start=2),
                "several": spaces.MultiDiscrete([2, 3], start=[1, 1]),
                "flag": spaces.Box(0, 1, (1,), np.bool_),
                "text": spaces.Text(5),
                "sequence": spaces.Sequence(spaces.Discrete(3)),
                "graph": spaces.Graph(spaces.Box(-1, 1, (2,)), spaces.Discrete(2)),
                "one_of": spaces.OneOf([spaces.Discrete(2), spaces.Box(0, 1, (1,))]),
                "pair": spaces.Tuple(
                    [spaces.Discrete(2), spaces.Dict(deep=spaces.Box(0, 9, (1,), np.int32))]
                ),
            }
        )

    def _observe(self) -> Any:
        self.last = self.observation_space.sample()
        return self.last


class Speaking(toys.Count):
    """Takes texts as actions, remembers them."""

    def __init__(self) -> None:
        super().__init__(99)
        self.action_space = spaces.Text(4)
        self.given: list[str] = []

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.given.append(action)
        return super().step(action)


class Informed(toys.Count):
    """Has lives and a mask in its infos; the mask is not there after a reset."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        observation, _ = super().reset(seed=seed)
        self.options = options
        return observation, {"lives": 3, "deep": {"name": "start"}}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, _ = super().step(action)
        mask = np.array([self.n % 2, 1], dtype=np.int8)
        return (
            observation,
            reward,
            terminated,
            truncated,
            {"lives": 3 - self.n, "mask": mask, "deep": {"name": f"s{self.n}"}},
        )


class Painted(toys.Count):
    """Renders a picture of its counter."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array", "human"]}

    def __init__(self, render_mode: str = "rgb_array") -> None:
        super().__init__(3)
        self.render_mode = render_mode

    def render(self) -> Any:
        return np.full((2, 3, 3), self.n, dtype=np.uint8) if self.render_mode == "rgb_array" else None


class Offset(toys.Count):
    """Rewards come as arrays of one element, or of two where `size` says so."""

    def __init__(self, size: int = 1) -> None:
        super().__init__(99)
        self.size = size

    def step(self, action: Any) -> Any:
        observation, _, terminated, truncated, info = super().step(action)
        return observation, np.full(self.size, 0.5), terminated, truncated, info


class Unknown(spaces.Space[Any]):
    """A space that gymnasium does not have."""


class Alien(gymnasium.Env[Any, Any]):
    """Observes through it."""

    observation_space = Unknown()
    action_space = spaces.Discrete(2)
