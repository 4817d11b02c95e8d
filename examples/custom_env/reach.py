"""An environment of one's own: a point on a plane moves towards a goal. Any `gymnasium.Env` works like this one."""

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict


class Reach(gym.Env):
    """Observation: where the point is, and where it should be. Action: a step in each direction, at most 1 long."""

    def __init__(self, max_steps: int = 100) -> None:
        plane = Box(-10.0, 10.0, shape=(2,), dtype=np.float32)
        self.observation_space = Dict(position=plane, goal=plane)
        self.action_space = Box(-1.0, 1.0, shape=(2,), dtype=np.float32)
        self.max_steps = max_steps

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        super().reset(seed=seed)  # seeds self.np_random: the only randomness that an environment should use
        self.position, self.goal = self.np_random.uniform(-10.0, 10.0, size=(2, 2)).astype(np.float32)
        self.steps = 0
        return self._observe(), {}

    def step(self, action: np.ndarray) -> tuple[dict, float, bool, bool, dict]:
        self.position = np.clip(self.position + action, -10.0, 10.0)
        self.steps += 1
        distance = float(np.linalg.norm(self.goal - self.position))
        is_there = distance < 0.5
        is_late = self.steps >= self.max_steps and not is_there
        return self._observe(), -distance, is_there, is_late, {}

    def _observe(self) -> dict:
        return {"position": self.position.copy(), "goal": self.goal.copy()}
