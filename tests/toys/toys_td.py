"""Toy environments with tensordicts; apart from `toys` so that children of gymnasium environments load no torch."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase

from rollout_worker.envs import Binary, Composite, EnvBase, Unbounded


class CountEnv(EnvBase):
    """The behaviour tables' `Count(k, start)`: the action is added to the counter, reward = action, done at start + k."""

    def __init__(self, k: int = 3, start: float = 0.0, batch_size: tuple[int, ...] = ()) -> None:
        super().__init__(batch_size=batch_size)
        self.k, self.start = k, float(start)
        self.observation_spec = Composite(observation=Unbounded((*batch_size, 1)), shape=batch_size)
        self.action_spec = Unbounded((*batch_size, 1))
        self.n_reset = self.n_step = 0
        self.tag = "x"
        self.seed_seen: int | None = None
        self.register_buffer("buf", torch.tensor(7.0))
        self.count = torch.full((*batch_size, 1), self.start)

    def _reset(self, td: TensorDictBase | None, **kwargs: Any) -> TensorDictBase:
        self.n_reset += 1
        mask = None if td is None else td.get("_reset", None)
        fresh = torch.full_like(self.count, float(kwargs.get("start", self.start)))
        self.count = fresh if mask is None else torch.where(mask.reshape(self.count.shape), fresh, self.count)
        return TensorDict({"observation": self.count.clone()}, batch_size=self.batch_size)

    def _step(self, td: TensorDictBase) -> TensorDictBase:
        self.n_step += 1
        self.count = self.count + td.get("action")
        done = self.count >= self.start + self.k
        leaves = {"observation": self.count.clone(), "reward": td.get("action").clone(), "done": done}
        return TensorDict(leaves, batch_size=self.batch_size)

    def _set_seed(self, seed: int | None) -> None:
        self.seed_seen = seed

    def hello(self, x: Any, y: Any = None) -> tuple[str, Any, Any]:
        return self.tag, x, y

    def draw(self) -> float:
        return float(torch.rand(()))

    def threads(self) -> int:
        return torch.get_num_threads()

    def fail(self) -> None:
        raise ValueError("inner")


class Two(EnvBase):
    """Two agents in the group `agents`; the root is terminated on step `n` (None: never)."""

    def __init__(self, n: int | None = None) -> None:
        super().__init__()
        self.n, self.steps = n, 0
        self.observation_spec = Composite({"agents": Composite(obs=Unbounded((2, 1)))})
        self.action_spec = Composite({"agents": Composite(action=Unbounded((2, 1)))})
        self.reward_spec = Composite({"agents": Composite(reward=Unbounded((2, 1)))})
        flag = Binary(shape=(2, 1), dtype=torch.bool)
        self.done_spec = Composite(
            {"done": Binary(shape=(1,), dtype=torch.bool), "agents": Composite(done=flag)}
        )

    def _observation(self) -> dict[str, Any]:
        return {"agents": TensorDict({"obs": torch.full((2, 1), float(self.steps))}, batch_size=())}

    def _reset(self, td: TensorDictBase | None, **kwargs: Any) -> TensorDictBase:
        self.steps = 0
        return TensorDict(self._observation(), batch_size=())

    def _step(self, td: TensorDictBase) -> TensorDictBase:
        self.steps += 1
        found = TensorDict(self._observation(), batch_size=())
        found["agents", "reward"] = td["agents", "action"].clone()
        found["terminated"] = torch.tensor([self.n is not None and self.steps >= self.n])
        return found


class Loose(CountEnv):
    """Gives `more` or `less` than its spec declares."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what

    def _reset(self, td: TensorDictBase | None, **kwargs: Any) -> TensorDictBase:
        fresh = super()._reset(td, **kwargs)
        return fresh.set("extra", torch.zeros(1)) if self.what == "more" else fresh.exclude("observation")
