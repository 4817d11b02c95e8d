"""Toy environments with tensordicts; apart from `toys` so that children of gymnasium environments load no torch."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

import torch
from tensordict import NonTensorData, TensorDict, TensorDictBase

from rollout_worker.envs import Binary, Categorical, Composite, EnvBase, NonTensor, Unbounded


class CountEnv(EnvBase):
    """The behaviour tables' `Count(k, start, batch_size, extra)`: the action is added to the counter, reward = action.

    Done at start + k; `extra` is another observation of that size.
    """

    def __init__(
        self,
        k: float = 3,
        start: float = 0.0,
        batch_size: tuple[int, ...] = (),
        extra: int = 0,
        device: str | None = None,
    ) -> None:
        super().__init__(batch_size=batch_size, device=device)
        self.k, self.start, self.extra = k, float(start), extra
        leaves = {"observation": Unbounded((*batch_size, 1))}
        if extra:
            leaves["extra"] = Unbounded((*batch_size, extra))
        self.observation_spec = Composite(leaves, shape=batch_size)
        self.action_spec = Unbounded((*batch_size, 1))
        self.n_reset = self.n_step = 0
        self.tag = "x"
        self.seed_seen: int | None = None
        self.reset_keys_seen: list[str] | None = None
        self.step_keys_seen: list[str] = []
        self.lock = threading.Lock()
        self.register_buffer("buf", torch.tensor(7.0))
        self.count = torch.full((*batch_size, 1), self.start)

    def _reset(self, td: TensorDictBase | None, **kwargs: Any) -> TensorDictBase:
        self.n_reset += 1
        self.reset_keys_seen = None if td is None else sorted(map(str, td.keys()))
        mask = None if td is None else td.get("_reset", None)
        fresh = torch.full_like(self.count, float(kwargs.get("start", self.start)))
        self.count = fresh if mask is None else torch.where(mask.reshape(self.count.shape), fresh, self.count)
        return TensorDict(self.observed(), batch_size=self.batch_size)

    def observed(self) -> dict[str, Any]:
        found = {"observation": self.count.clone()}
        if self.extra:
            found["extra"] = self.count.expand(*self.batch_size, self.extra).clone()
        return found

    def _step(self, td: TensorDictBase) -> TensorDictBase:
        self.n_step += 1
        self.step_keys_seen = sorted(map(str, td.keys()))
        self.count = self.count + td.get("action")
        done = self.count >= self.start + self.k
        leaves = {**self.observed(), "reward": td.get("action").clone(), "done": done}
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

    def t(self) -> str:
        return "given"

    def twice(self, value: torch.Tensor) -> torch.Tensor:
        return value * 2

    def unsendable(self) -> Any:
        return (each for each in "ab")

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "lock": None}


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


class Doubles(CountEnv):
    """Gives a float64 observation where its spec says float32."""

    def observed(self) -> dict[str, Any]:
        return {"observation": self.count.double() + 0.5}


class Misshapen(CountEnv):
    """Gives an observation of another shape from step 2 on."""

    def observed(self) -> dict[str, Any]:
        found = super().observed()
        return {"observation": torch.zeros(4)} if self.n_step >= 2 else found


class Hollow(CountEnv):
    """Declares an empty composite."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_spec = Composite(observation=Unbounded((1,)), e=Composite())


class Team(EnvBase):
    """Three agents in a nested group, each counting its own actions; the root is done where all of them are at `k`."""

    def __init__(self, k: float = 3) -> None:
        super().__init__()
        self.k, self.n_reset = float(k), 0
        self.count = torch.zeros(3, 1)
        self.observation_spec = Composite(agents=Composite(obs=Unbounded((3, 2)), shape=(3,)))
        self.action_spec = Composite(agents=Composite(action=Unbounded((3, 1)), shape=(3,)))
        self.reward_spec = Composite(agents=Composite(reward=Unbounded((3, 1)), shape=(3,)))
        flag = Binary(shape=(3, 1), dtype=torch.bool)
        root = {"done": Binary(shape=(1,), dtype=torch.bool)}
        self.done_spec = Composite({**root, "agents": Composite(done=flag, shape=(3,))})

    def _reset(self, td: TensorDictBase | None, **kwargs: Any) -> TensorDictBase:
        self.n_reset += 1
        self.count = torch.zeros(3, 1)
        return TensorDict({"agents": self._group()}, batch_size=())

    def _group(self, **more: Any) -> TensorDict:
        return TensorDict({"obs": self.count.expand(3, 2).clone(), **more}, batch_size=(3,))

    def _step(self, td: TensorDictBase) -> TensorDictBase:
        action = td.get(("agents", "action"))
        self.count = self.count + action
        done = self.count >= self.k
        return TensorDict(
            {"agents": self._group(reward=action.clone(), done=done), "done": done.all(0)}, batch_size=()
        )


class Recurrent(CountEnv):
    """Reads the state `hid` from the root; with `hands_on`, gives its own under `next` where the caller put one there."""

    def __init__(self, hands_on: bool = False) -> None:
        super().__init__(k=99)
        self.hands_on = hands_on
        self.state_spec = Composite(hid=Unbounded((2,)))
        if hands_on:
            self.observation_spec = Composite(observation=Unbounded((1,)), hid=Unbounded((2,)))
        self.seen: list[float] = []

    def observed(self) -> dict[str, Any]:
        return {**super().observed(), **({"hid": torch.zeros(2)} if self.hands_on else {})}

    def _step(self, td: TensorDictBase) -> TensorDictBase:
        following = super()._step(td)
        hidden = td.get("hid")
        self.seen = hidden.tolist()
        if self.hands_on:
            given = td.get(("next", "hid"), None)
            return following.set("hid", torch.full((2,), -1.0) if given is None else given + 100)
        return following.set("observation", following.get("observation") + hidden.sum())


class Words(EnvBase):
    """A text observation; done on step `k`. With `worded` the action is a text too."""

    def __init__(self, k: int = 3, worded: bool = False) -> None:
        super().__init__()
        self.k, self.n, self.worded = k, 0, worded
        self.observation_spec = Composite(text=NonTensor(shape=()))
        self.action_spec = Composite(action=NonTensor(shape=())) if worded else Unbounded((1,))

    def _reset(self, td: TensorDictBase | None, **kwargs: Any) -> TensorDictBase:
        self.n = 0
        return TensorDict({"text": NonTensorData("reset0")}, batch_size=())

    def _step(self, td: TensorDictBase) -> TensorDictBase:
        action = td.get("action")
        self.n += int(getattr(action, "data", action) if self.worded else action.item())
        leaves = {"text": NonTensorData(f"step{self.n}"), "done": torch.tensor([self.n >= self.k])}
        return TensorDict({**leaves, "reward": torch.tensor([float(self.n)])}, batch_size=())


class Growing(CountEnv):
    """An observation `var` of `counter + 1` rows, which its spec leaves open."""

    def __init__(self, k: float = 99) -> None:
        super().__init__(k=k)
        self.observation_spec = Composite(observation=Unbounded((1,)), var=Unbounded((-1, 2)))

    def observed(self) -> dict[str, Any]:
        rows = int(self.count.item()) + 1
        return {**super().observed(), "var": torch.full((rows, 2), float(self.count.item()))}


class Crooked(CountEnv):
    """Fails in the way `how` in the step of that number, or while its state is loaded; only where `env_index` is `only`."""

    def __init__(
        self,
        how: str = "raise",
        where: int | str = 2,
        only: int = 1,
        env_index: int = 0,
        device: str | None = None,
    ) -> None:
        super().__init__(k=1000, device=device)
        self.how, self.where, self.is_crooked = how, where, env_index == only
        self._maybe("constructor")

    def _maybe(self, place: int | str) -> None:
        if not self.is_crooked or place != self.where:
            return
        if self.how == "raise":
            raise ValueError("boom")
        if self.how == "sleep":
            time.sleep(3600)
        os.kill(os.getpid(), signal.SIGKILL)

    def _step(self, td: TensorDictBase) -> TensorDictBase:
        following = super()._step(td)
        self._maybe(self.n_step)
        return following

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        self._maybe("load")
        return super().load_state_dict(*args, **kwargs)


class Locked(CountEnv):
    """Its state holds locks, deep inside."""

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return {"buf": self.buf, "deep": [{"lock": threading.Lock(), "more": (threading.RLock(), 3)}]}


SHARED = CountEnv()


def shared() -> CountEnv:
    """Gives one and the same environment each time."""
    return SHARED


class Tree(EnvBase):
    """Any tree of observations, `leaves` of (key, dtype or "text", shape). What it shows depends on its seed and on what was
    done. With a `team`, two agents have rewards and flags of their own below the root.
    """

    def __init__(
        self,
        leaves: tuple[tuple[tuple[str, ...], str, tuple[int, ...]], ...],
        team: bool = False,
        k: int = 4,
    ) -> None:
        super().__init__()
        self.leaves, self.team, self.k, self.n = leaves, team, k, 0
        self.drawn = torch.Generator().manual_seed(0)
        tree = Composite()
        for key, dtype, shape in leaves:
            is_text = dtype == "text"
            tree[key] = NonTensor(shape=()) if is_text else Unbounded(shape, dtype=getattr(torch, dtype))
        self.observation_spec = tree
        self.action_spec = Composite(deep=Composite(action=Categorical(3)))
        if team:
            each = Binary(shape=(2, 1), dtype=torch.bool)
            one = Binary(shape=(1,), dtype=torch.bool)
            self.reward_spec = Composite(reward=Unbounded((1,)), team=Composite(reward=Unbounded((2, 1))))
            self.done_spec = Composite(done=one, team=Composite(done=each))

    def _set_seed(self, seed: int | None) -> None:
        if seed is not None:
            self.drawn.manual_seed(seed)

    def _observed(self) -> TensorDict:
        found = TensorDict({}, batch_size=())
        for key, dtype, shape in self.leaves:
            drawn = torch.randint(0, 100, shape, generator=self.drawn) + self.n
            is_text = dtype == "text"
            found[key] = NonTensorData(str(drawn.tolist())) if is_text else drawn.to(getattr(torch, dtype))
        return found

    def _reset(self, td: TensorDictBase | None, **kwargs: Any) -> TensorDictBase:
        self.n = 0
        return self._observed()

    def _step(self, td: TensorDictBase) -> TensorDictBase:
        self.n += int(td["deep", "action"])
        found = self._observed()
        found["reward"] = torch.tensor([float(self.n)])
        found["terminated"] = torch.tensor([self.n >= self.k])
        if self.team:
            found["team", "reward"] = torch.tensor([[1.0], [float(self.n)]])
            found["team", "terminated"] = torch.tensor([[self.n >= 2], [self.n >= self.k]])
        return found
