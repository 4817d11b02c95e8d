"""Environments that leave a trace where they are made, and some that are not what one is told of them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import toys
import toys_td
from tensordict import NonTensorData, TensorDict, TensorDictBase

from rollout_worker.envs import Bounded, Composite, EnvBase, GymEnv, NonTensor, Unbounded


class Wide(toys_td.CountEnv):
    """Its batch size is 2."""

    def __init__(self) -> None:
        super().__init__(batch_size=(2,))


KINDS: dict[str, Any] = {
    "ours": toys_td.CountEnv,
    "gymnasium": toys.Count,
    "cartpole": lambda: __import__("gymnasium").make("CartPole-v1"),
    "adapted": lambda: GymEnv("CartPole-v1"),
    "agents": toys_td.Team,
    "wide": Wide,
    "texts": toys_td.Words,
    "open": toys_td.Growing,
    "state": toys_td.Recurrent,
}


def noted(log: str, kind: str = "ours", **kwargs: Any) -> Any:
    """An environment of that kind; the process that makes it writes its id into the file `log`."""
    with Path(log).open("a") as file:
        file.write(f"{os.getpid()}\n")
    return KINDS[kind](**kwargs)


def by_index(env_index: int) -> toys_td.CountEnv:
    """Environment 2 has another observation than the others."""
    return toys_td.CountEnv(extra=2 if env_index == 2 else 1)


def by_process(parent: int) -> toys_td.CountEnv:
    """An environment that is another one in another process."""
    return toys_td.CountEnv(extra=0 if os.getpid() == parent else 1)


class Told(EnvBase):
    """A tensor, and values of all kinds that are no tensors: `show(n)` gives them for step n."""

    def __init__(self, show: Any, batch_size: tuple[int, ...] = ()) -> None:
        super().__init__(batch_size=batch_size)
        self.show, self.n = show, 0
        self.told: Any = None
        self.observation_spec = Composite(
            number=Unbounded((*batch_size, 1)), said=NonTensor(shape=batch_size), shape=batch_size
        )
        self.action_spec = Bounded(-1.0, 1.0, (*batch_size, 1))

    def _observed(self, **more: Any) -> TensorDict:
        self.said = self.show(self.n)
        said = NonTensorData(self.said, batch_size=self.batch_size)
        number = self.action_spec.zero() + self.n
        return TensorDict({"number": number, "said": said, **more}, batch_size=self.batch_size)

    def _reset(self, td: TensorDictBase | None, **kwargs: Any) -> TensorDictBase:
        self.n = 0
        return self._observed()

    def _step(self, td: TensorDictBase) -> TensorDictBase:
        said = td.get("said")
        self.told = getattr(said, "data", said)
        self.n += 1
        return self._observed(reward=self.action_spec.zero())

    def handed(self) -> Any:
        """The value that the last step was handed."""
        return self.told
