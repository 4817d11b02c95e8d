"""Environments with one trait beside `Count`: what they give beyond their specs, hold, draw, or fail at."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections import OrderedDict
from typing import Any

import torch
from parity_api import TensorDictBase
from parity_toys import Count

SHARED = Count()


def shared() -> Count:
    """One and the same environment each time."""
    return SHARED


class Talkative(Count):
    """Gives a leaf at each step that no spec declares."""

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        return super()._step(tensordict).set("more", torch.ones(1))


class Misshapen(Count):
    """Gives an observation of another shape in its second step."""

    def _observed(self) -> dict[str, Any]:
        return {"observation": torch.zeros(4)} if self.n_step == 2 else super()._observed()


class Locked(Count):
    """Has locks in its state, also deep inside."""

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        deep = OrderedDict(lock=multiprocessing.Lock(), n=3)
        return OrderedDict(buf=self.buf, lock=multiprocessing.Lock(), deep=deep)


class Drawing(Count):
    """Draws from torch's global generator, and counts its threads."""

    def draw(self) -> float:
        return float(torch.rand(()))

    def threads(self) -> int:
        return torch.get_num_threads()


class Failing(Count):
    """Its second step raises, or ends its process with an exit code or SIGKILL; one of them does, by its `start`."""

    def __init__(self, how: str, start: float = 0) -> None:
        super().__init__(k=99, start=start)
        self.how = how

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        if self.n_step == 1 and self.start == 1:
            if self.how == "raise":
                raise ValueError("boom")
            if self.how == "exit":
                os._exit(3)
            os.kill(os.getpid(), signal.SIGKILL)
        return super()._step(tensordict)
