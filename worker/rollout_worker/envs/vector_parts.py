"""Small parts of the vector envs: their settings, what they report of episodes, and how a failure is remembered."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from rollout_contract.errors import EnvError
from rollout_worker.envs.layout import Leaf
from rollout_worker.envs.stepper_base import StepRules

Array = np.ndarray[Any, Any]

MAX_SEED = 2**64 - 1


class Episodes(NamedTuple):
    """Episodes that ended inside a block, in order of step, then of environment; one element per episode.

    `returns` (float64) sums rewards and `lengths` (int64) counts frames since the episode's reset, in earlier
    blocks too. A trajectory that `cut` ended is not an episode.
    """

    env_index: Array
    step: Array
    returns: Array
    lengths: Array


class Effort(NamedTuple):
    """What a group has taken since its start: seconds that each process spent on commands, how many those were, and seconds
    that the caller waited for them. `busy_s[i] / commands[i]` is what a step takes in process i; where `waited_s` is much
    more than the busiest process took, processes want for processors."""

    busy_s: tuple[float, ...]
    commands: tuple[int, ...]
    waited_s: float


@dataclass(frozen=True, slots=True)
class VectorSettings:
    """What a vector env does, beside which environments it steps."""

    num_steps: int = 1
    num_blocks: int = 1
    extra_leaves: tuple[Leaf, ...] = ()
    first_env_index: int = 0
    rules: StepRules = field(default_factory=StepRules)


@dataclass(frozen=True, slots=True)
class Failure:
    """What closed a vector env: enough to say it again, without the exception, whose frames hold on to memory."""

    kind: type[EnvError]
    message: str
    env_index: int | None
    pid: int | None
    call: str

    @staticmethod
    def of(error: BaseException) -> Failure:
        if isinstance(error, EnvError):
            return Failure(type(error), str(error), error.env_index, error.pid, error.call)
        return Failure(EnvError, f"{type(error).__name__}: {error}", None, None, "")

    def again(self) -> EnvError:
        text = f"the environments were closed after a failure; start them again. It was: {self.message}"
        return self.kind(text, env_index=self.env_index, pid=self.pid, call=self.call)
