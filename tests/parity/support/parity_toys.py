"""The environments of the scenarios, written against the names that both libraries share."""

from __future__ import annotations

from typing import Any

import torch
from parity_api import (
    Binary,
    Composite,
    EnvBase,
    NonTensor,
    NonTensorData,
    TensorDict,
    TensorDictBase,
    Unbounded,
)


def flags(*shape: int) -> dict[str, Any]:
    """The specs of the three flags of one level."""
    return {
        name: Binary(shape[-1], shape=shape, dtype=torch.bool) for name in ("done", "terminated", "truncated")
    }


class Count(EnvBase):
    """`Count(k, start, batch_size, extra)` of the behaviour tables: the action is added to the counter."""

    def __init__(
        self,
        k: float = 3,
        start: float = 0,
        batch_size: tuple[int, ...] = (),
        extra: int = 0,
        device: Any = None,
    ) -> None:
        super().__init__(device=device, batch_size=torch.Size(batch_size))
        self.k, self.start, self.extra = float(k), float(start), extra
        leaves = {"observation": Unbounded(shape=(*batch_size, 1), device=device)}
        if extra:
            leaves["extra"] = Unbounded(shape=(*batch_size, extra), device=device)
        self.observation_spec = Composite(leaves, shape=batch_size, device=device)
        self.action_spec = Unbounded(shape=(*batch_size, 1), device=device)
        self.reward_spec = Unbounded(shape=(*batch_size, 1), device=device)
        self.done_spec = Composite(flags(*batch_size, 1), shape=batch_size, device=device)
        self.register_buffer("buf", torch.tensor(7.0))
        self.count = torch.full((*batch_size, 1), self.start)
        self.n_reset = self.n_step = 0
        self.tag = "x"
        self.seed_seen: int | None = None
        self.keys_seen: list[str] = []

    def _observed(self) -> dict[str, Any]:
        found = {"observation": self.count.clone()}
        if self.extra:
            found["extra"] = self.count.expand(*self.batch_size, self.extra).clone()
        return found

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        self.n_reset += 1
        self.keys_seen = [] if tensordict is None else sorted(map(str, tensordict.keys()))
        fresh = torch.full_like(self.count, float(kwargs.get("start", self.start)))
        mask = None if tensordict is None else tensordict.get("_reset", None)
        self.count = fresh if mask is None else torch.where(mask.reshape(fresh.shape), fresh, self.count)
        return TensorDict(self._observed(), batch_size=self.batch_size, device=self.device)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        self.n_step += 1
        action = tensordict.get("action")
        self.count = self.count + action
        done = self.count >= self.start + self.k
        ends = {"reward": action.clone(), "done": done, "terminated": done.clone()}
        return TensorDict({**self._observed(), **ends}, batch_size=self.batch_size, device=self.device)

    def _set_seed(self, seed: int | None) -> None:
        self.seed_seen = seed

    def hello(self, x: Any, y: Any = None) -> tuple[Any, ...]:
        return self.tag, x, y

    def twice(self, value: torch.Tensor) -> torch.Tensor:
        return value * 2

    def fail(self) -> None:
        raise ValueError("inner")


class Bare(Count):
    """Gives `done` alone, and a reward without its last dimension."""

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        following = super()._step(tensordict).exclude("terminated")
        return following.set("reward", following.get("reward").squeeze(-1))


class Doubles(Count):
    """Gives a float64 observation where its spec says float32."""

    def _observed(self) -> dict[str, Any]:
        return {"observation": self.count.double() + 0.5}


class Team(EnvBase):
    """Three agents in a nested group, each counting its own actions; all are done where any counter reaches `k`."""

    def __init__(self, k: float = 3, start: float = 0) -> None:
        super().__init__()
        self.k, self.start = float(k), float(start)
        self.count = torch.full((3, 1), self.start)
        self.n_reset = 0
        group = {"obs": Unbounded(shape=(3, 2))}
        self.observation_spec = Composite({"agents": Composite(group, shape=(3,))})
        self.action_spec = Composite({"agents": Composite({"action": Unbounded(shape=(3, 1))}, shape=(3,))})
        self.reward_spec = Composite({"agents": Composite({"reward": Unbounded(shape=(3, 1))}, shape=(3,))})
        self.done_spec = Composite({**flags(1), "agents": Composite(flags(3, 1), shape=(3,))})

    def _group(self, **more: Any) -> TensorDict:
        return TensorDict({"obs": self.count.expand(3, 2).clone(), **more}, batch_size=(3,))

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        self.n_reset += 1
        self.count = torch.full((3, 1), self.start)
        return TensorDict({"agents": self._group()}, batch_size=())

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        action = tensordict.get(("agents", "action"))
        self.count = self.count + action
        done = self.count >= self.start + self.k
        group = self._group(reward=action.clone(), done=done, terminated=done.clone())
        root = {"agents": group, "done": done.any(0), "terminated": done.any(0)}
        return TensorDict(root, batch_size=())

    def _set_seed(self, seed: int | None) -> None:
        del seed


class Recurrent(Count):
    """Reads the state `hid` from the root (E-35) and gives its own under `next` where the caller put one there."""

    def __init__(self, *, hands_on: bool = False) -> None:
        super().__init__(k=99)
        self.hands_on = hands_on
        hid = Unbounded(shape=(2,))
        self.state_spec = Composite(hid=hid)
        if hands_on:
            self.observation_spec = Composite(observation=Unbounded(shape=(1,)), hid=hid.clone())
        self.seen: list[float] = []

    def _observed(self) -> dict[str, Any]:
        return {**super()._observed(), **({"hid": torch.zeros(2)} if self.hands_on else {})}

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        following = super()._step(tensordict)
        hidden = tensordict.get("hid")
        self.seen = hidden.tolist()
        if self.hands_on:
            given = tensordict.get(("next", "hid"), None)
            return following.set("hid", torch.full((2,), -1.0) if given is None else given + 100)
        return following.set("observation", following.get("observation") + hidden.sum())


class Words(EnvBase):
    """A text observation; done on step `k`. The action may be a text too."""

    def __init__(self, k: int = 3, *, worded: bool = False) -> None:
        super().__init__()
        self.k, self.n, self.worded = k, 0, worded
        self.observation_spec = Composite(text=NonTensor(shape=()))
        self.action_spec = Composite(action=NonTensor(shape=())) if worded else Unbounded(shape=(1,))
        self.reward_spec = Unbounded(shape=(1,))
        self.done_spec = Composite(flags(1))

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        self.n = 0
        return TensorDict({"text": NonTensorData("reset0")}, batch_size=())

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        action = tensordict.get("action")
        self.n += int(getattr(action, "data", action) if self.worded else action.item())
        done = torch.tensor([self.n >= self.k])
        leaves = {"text": NonTensorData(f"step{self.n}"), "done": done, "terminated": done.clone()}
        return TensorDict({**leaves, "reward": torch.tensor([float(self.n)])}, batch_size=())

    def _set_seed(self, seed: int | None) -> None:
        del seed


class Growing(Count):
    """An observation `var` of `counter + 1` rows, which its spec leaves open."""

    def __init__(self, k: float = 99) -> None:
        super().__init__(k=k)
        self.observation_spec = Composite(observation=Unbounded(shape=(1,)), var=Unbounded(shape=(-1, 2)))

    def _observed(self) -> dict[str, Any]:
        rows = int(self.count.item()) + 1
        return {**super()._observed(), "var": torch.full((rows, 2), float(self.count.item()))}
