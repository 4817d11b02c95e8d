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
    """What a batch has taken since its start. Everything is counted up, so that what a part of a run took is the difference
    of two of these.

    `busy_s`: seconds that each process has spent on commands, and `commands`: how many those were; `busy_s[i] / commands[i]`
    is what a step takes in process i. `waited_s`: seconds that the caller waited for them; where that is much more than the
    busiest process took, processes want for processors. `sent_bytes` and `received_bytes`: what has gone to each process and
    come from it in messages; what goes through shared memory is not among it. `memory_bytes`: how large that memory is.
    `restarts`: how often each environment was replaced after a failure. A batch in the caller's own process has no
    processes, and waits for none: `busy_s` is empty.
    """

    busy_s: tuple[float, ...] = ()
    commands: tuple[int, ...] = ()
    waited_s: float = 0.0
    sent_bytes: tuple[int, ...] = ()
    received_bytes: tuple[int, ...] = ()
    memory_bytes: int = 0
    restarts: tuple[int, ...] = ()


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
