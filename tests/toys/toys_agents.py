"""A PettingZoo parallel environment: walkers that leave one by one, and a judge of another type."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv


class Walkers(ParallelEnv):  # type: ignore[type-arg]
    """`walker_i` is terminated on step `ends[i]`, the `judge` is truncated on step `limit`; observations count steps."""

    metadata: ClassVar[dict[str, Any]] = {"name": "walkers"}

    def __init__(self, ends: tuple[int, ...] = (2, 4), limit: int = 4) -> None:
        self.ends, self.limit = ends, limit
        self.possible_agents = [*(f"walker_{i}" for i in range(len(ends))), "judge"]
        self.agents: list[str] = []
        self.seeds: list[int | None] = []
        self.given: list[dict[str, Any]] = []
        self.n = 0

    @property
    def state_space(self) -> Any:
        return spaces.Box(0, 99, (1,), np.float32)

    def observation_space(self, agent: str) -> Any:
        if agent == "judge":
            return spaces.Dict(seen=spaces.Box(0, 99, (3,), np.float32), action_mask=spaces.MultiBinary(2))
        return spaces.Box(0, 99, (2,), np.float32)

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(2) if agent == "judge" else spaces.Box(-1, 1, (1,), np.float32)

    def _observe(self) -> dict[str, Any]:
        each = {agent: np.full(2, self.n, dtype=np.float32) for agent in self.agents if agent != "judge"}
        if "judge" in self.agents:
            each["judge"] = {
                "seen": np.full(3, self.n, dtype=np.float32),
                "action_mask": np.array([1, self.n % 2], dtype=np.int8),
            }
        return each

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.seeds.append(seed)
        self.agents, self.n = list(self.possible_agents), 0
        return self._observe(), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> Any:
        self.given.append(actions)
        self.n += 1
        terminated = {agent: self._ends(agent) for agent in self.agents}
        truncated = {agent: agent == "judge" and self.n >= self.limit for agent in self.agents}
        found = self._observe()
        rewards = {agent: float(self.n) for agent in self.agents}
        infos: dict[str, Any] = {agent: {} for agent in self.agents}
        self.agents = [agent for agent in self.agents if not terminated[agent] and not truncated[agent]]
        return found, rewards, terminated, truncated, infos

    def _ends(self, agent: str) -> bool:
        return agent != "judge" and self.n >= self.ends[int(agent.rsplit("_", 1)[1])]

    def state(self) -> Any:
        return np.array([self.n], dtype=np.float32)

    def render(self) -> Any:
        return f"at {self.n}"

    def close(self) -> None:
        self.agents = []
