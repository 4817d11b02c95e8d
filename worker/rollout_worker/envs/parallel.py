"""ParallelEnv: several environments as one, stepped by child processes."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Mapping, Sequence
from typing import Any

from rollout_worker.envs.batched import BatchedEnv
from rollout_worker.envs.factory import EnvFactory, Recipe
from rollout_worker.envs.opening import checked_start_method, processes_for, spin_for
from rollout_worker.envs.processes import CrewSettings
from rollout_worker.envs.spec_leaves import Device
from rollout_worker.envs.vector import VectorEnv
from rollout_worker.envs.vector_parallel import ParallelVector
from rollout_worker.envs.vector_parts import VectorSettings

PIPE_TIMEOUT = "BATCHED_PIPE_TIMEOUT"
"""Environment variable with the longest wait for a step or reset, in seconds, where no argument gives one."""


class ParallelEnv(BatchedEnv):
    """`num_workers` environments in `num_processes` child processes (None: one per processor, at most one per
    environment).

    `ParallelEnv(8, lambda: GymEnv("CartPole-v1"))`. `create_env_fn` is one factory or one per environment (an
    entrypoint `pkg.mod:attr`, or a callable), `create_env_kwargs` likewise; each environment gets its own
    copy of what they hold. Results equal `SerialEnv`'s.

    `mp_start_method` is spawn (the default), fork or forkserver; `num_sub_threads` the threads of numeric
    libraries in each child; `step_timeout_s` how long one environment may take for one call before its
    process counts as stuck and is killed.
    """

    def __init__(
        self,
        num_workers: int,
        create_env_fn: EnvFactory | Sequence[EnvFactory],
        *,
        create_env_kwargs: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        device: Device = None,
        num_processes: int | None = None,
        mp_start_method: str | None = None,
        num_sub_threads: int = 1,
        daemon: bool = False,
        check_finite: bool = False,
        start_timeout_s: float = 120.0,
        step_timeout_s: float | None = None,
        close_timeout_s: float = 5.0,
        **withdrawn: Any,
    ) -> None:
        super().__init__(
            num_workers,
            create_env_fn,
            create_env_kwargs=create_env_kwargs,
            device=device,
            check_finite=check_finite,
            **withdrawn,
        )
        method = mp_start_method or multiprocessing.get_start_method(allow_none=True) or "spawn"
        processes = processes_for(num_workers, num_processes)
        self.__dict__["_crew_settings"] = CrewSettings(
            num_processes=processes,
            spin_s=spin_for(processes),
            start_method=checked_start_method(method),
            daemon=daemon,
            num_threads=num_sub_threads,
            start_timeout_s=start_timeout_s,
            step_timeout_s=_pipe_timeout() if step_timeout_s is None else step_timeout_s,
            close_timeout_s=close_timeout_s,
        )

    def _make_vector(self, recipes: Sequence[Recipe], settings: VectorSettings) -> VectorEnv:
        return ParallelVector(recipes, settings, self._crew_settings)


def _pipe_timeout() -> float:
    """The wait that the environment variable sets. Raises ValueError for one that is no number."""
    text = os.environ.get(PIPE_TIMEOUT, "10000")
    try:
        return float(text)
    except ValueError as error:
        raise ValueError(f"{PIPE_TIMEOUT} is {text!r}; it must be a number of seconds") from error
