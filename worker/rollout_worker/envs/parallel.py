"""ParallelEnv: several environments as one, stepped by child processes."""

from __future__ import annotations

import multiprocessing
import warnings
from collections.abc import Mapping
from typing import Any, Self

import torch

from rollout_worker.envs.base import EnvBase
from rollout_worker.envs.batch_known import Factories, Kwargs, MetaData
from rollout_worker.envs.batch_settings import checked_start_method, pipe_timeout
from rollout_worker.envs.batched import BatchedEnv
from rollout_worker.envs.crew.settings import CrewSettings
from rollout_worker.envs.env_creator import warn_of_lambdas
from rollout_worker.envs.host import Host
from rollout_worker.envs.host_crew import CrewHost
from rollout_worker.envs.opening import processes_for
from rollout_worker.envs.reports import Known
from rollout_worker.envs.spec_leaves import Device


class ParallelEnv(BatchedEnv):
    """`num_workers` environments in `num_processes` child processes (None: one per processor, at most one per
    environment).

    `ParallelEnv(8, partial(GymEnv, "CartPole-v1"))`. `create_env_fn` is one factory or one per environment (an
    entrypoint `pkg.mod:attr`, or a callable), `create_env_kwargs` likewise; each environment gets its own
    copy of what they hold. Results equal `SerialEnv`'s, without gradients.

    `mp_start_method` is spawn (the default), fork or forkserver; `num_sub_threads` the threads of numeric
    libraries in each child, `num_threads` torch's in this process while the children run (None: what they leave,
    at least 1); `daemon` marks the children as daemons; `memmap` (with `shared_memory=False`) puts the shared
    block into a file; `step_timeout_s` is how long one environment may take for one call before its process counts
    as stuck and is killed. `serial_for_single` makes a SerialEnv where there is one environment; `auto_wrap_envs`
    False says nothing about lambdas. See `BatchedEnv` for the other keywords.
    """

    _in_process = False
    _no_settings: frozenset[str] = frozenset()

    def __new__(cls, *args: Any, serial_for_single: bool = False, **keywords: Any) -> Any:
        """A SerialEnv, where that was asked for and one environment is all."""
        num_workers = args[0] if args else keywords.get("num_workers")
        if serial_for_single and num_workers == 1:
            from rollout_worker.envs.serial import SerialEnv

            kept = {name: value for name, value in keywords.items() if name not in _OF_PROCESSES}
            return SerialEnv(*args, **kept)
        return super().__new__(cls)

    def __init__(
        self,
        num_workers: int,
        create_env_fn: Factories,
        *,
        create_env_kwargs: Kwargs = None,
        device: Device = None,
        meta_data: MetaData = None,
        num_processes: int | None = None,
        start_timeout_s: float = 120.0,
        step_timeout_s: float | None = None,
        close_timeout_s: float = 5.0,
        auto_wrap_envs: bool = True,
        serial_for_single: bool = False,
        **keywords: Any,
    ) -> None:
        if auto_wrap_envs:
            warn_of_lambdas(create_env_fn)
        hidden = self.__dict__
        hidden["_threads"] = None
        hidden["_num_processes"] = num_processes
        hidden["_limits"] = {
            "start_timeout_s": start_timeout_s,
            "step_timeout_s": pipe_timeout() if step_timeout_s is None else step_timeout_s,
            "close_timeout_s": close_timeout_s,
        }
        super().__init__(
            num_workers,
            create_env_fn,
            create_env_kwargs=create_env_kwargs,
            device=device,
            meta_data=meta_data,
            **keywords,
        )
        processes_for(num_workers, num_processes)

    def _make_host(self) -> CrewHost:
        settings = self._settings
        processes = processes_for(self.num_workers, self._num_processes)
        method = settings.mp_start_method or multiprocessing.get_start_method(allow_none=True) or "spawn"
        return CrewHost(
            CrewSettings(
                num_processes=processes,
                start_method=checked_start_method(method),
                daemon=settings.daemon,
                num_threads=settings.num_sub_threads,
                memory_directory=settings.memory_directory,
                **self._limits,
            ),
            consolidate=settings.consolidate,
        )

    def _passed_on(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(each for each in args if each is not self)

    # -- threads of this process -----------------------------------------------------------------------------------

    @property
    def num_threads(self) -> int:
        """Torch's threads in this process while the children run."""
        asked: int | None = self._settings.num_threads
        if asked is not None:
            return asked
        threads = self.__dict__["_threads"]
        before = torch.get_num_threads() if threads is None else threads[0]
        return max(1, before - processes_for(self.num_workers, self._num_processes))

    @property
    def num_sub_threads(self) -> int:
        """Torch's threads in each child."""
        return self._settings.num_sub_threads

    @property
    def daemon(self) -> bool:
        """Whether the children are daemons."""
        return self._settings.daemon

    def _start_on(self, host: Host, known: Known | None) -> None:
        super()._start_on(host, known)
        if self.__dict__["_threads"] is None:
            before, now = torch.get_num_threads(), self.num_threads
            self.__dict__["_threads"] = (before, now)
            torch.set_num_threads(now)

    def close(self, *, raise_if_closed: bool = True) -> None:
        """End the children and give back memory and threads. See `BatchedEnv.close`."""
        try:
            super().close(raise_if_closed=raise_if_closed)
        finally:
            threads, self.__dict__["_threads"] = self.__dict__["_threads"], None
            if threads is not None and torch.get_num_threads() == threads[1]:
                torch.set_num_threads(threads[0])

    # -- copies and devices ----------------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_group": None, "_engine": None, "_threads": None}

    def to(self, device: Any) -> Self:  # type: ignore[override]
        """Give results and specs on another device from now on; children and their memory stay where they are.

        A batch that was seeded is seeded again from the same number, with a warning.
        """
        before = self.device
        super().to(device)
        seed = self.__dict__["_seed"]
        if self.device != before and seed is not None and not self.is_closed:
            warnings.warn("the batch was seeded before it was moved: it is seeded again now", stacklevel=2)
            self.set_seed(*seed)
        return self


_OF_PROCESSES = frozenset(
    {
        "mp_start_method",
        "num_processes",
        "auto_wrap_envs",
        "start_timeout_s",
        "step_timeout_s",
        "close_timeout_s",
    }
)
"""Keywords of ParallelEnv that a SerialEnv has no use for."""


def parallel_of(args: tuple[Any, ...], num_envs: int, keywords: Mapping[str, Any]) -> EnvBase:
    """`make_parallel`: with a number first, the constructor's form; else a factory and `num_envs`."""
    if args and isinstance(args[0], int):
        return ParallelEnv(*args, **keywords)
    return ParallelEnv(num_envs, *args, **keywords)
