"""`open_envs`: makes a running vector env from a factory and numbers. Checks the numbers; decides nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rollout_worker.envs.batch_settings import checked_start_method
from rollout_worker.envs.crew.settings import CrewSettings
from rollout_worker.envs.factory import EnvFactory, recipes_of
from rollout_worker.envs.host_crew import CrewHost
from rollout_worker.envs.host_serial import SerialHost
from rollout_worker.envs.layout import Leaf
from rollout_worker.envs.resources import cpu_count
from rollout_worker.envs.stepper_base import StepRules
from rollout_worker.envs.vector import VectorEnv
from rollout_worker.envs.vector_parts import VectorSettings


def open_envs(
    factory: EnvFactory | Sequence[EnvFactory],
    *,
    num_envs: int,
    num_steps: int,
    kwargs: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
    num_blocks: int = 2,
    num_processes: int | None = None,
    start_method: str = "spawn",
    extra_leaves: Iterable[Leaf] = (),
    max_frames_per_traj: int | None = None,
    check_finite: bool = True,
    first_env_index: int = 0,
    start_timeout_s: float = 120.0,
    step_timeout_s: float = 60.0,
    close_timeout_s: float = 5.0,
    restarts: bool = False,
    max_restarts: int | None = None,
) -> VectorEnv:
    """Start `num_envs` environments and give them as a running vector env.

    `factory` is an entrypoint `pkg.mod:attr`, a callable, or one of these per environment; called with
    `kwargs` (one mapping, or one per environment). `num_processes` children step them (None: one per
    processor, at most `num_envs`; 0: none, the caller's process does). `first_env_index` is added to the
    index that a factory's `env_index` parameter is handed. `restarts` replaces an environment that raises, or whose
    process is lost or stuck, ends its trajectory as truncated, and adds the leaf `("next", "valid")`, False on the frame
    in which it failed; at most `max_restarts` times for one environment (None: as long as there are good steps between).

    Raises TypeError or RuntimeError for factories that cannot be used, ValueError for numbers out of range,
    ConfigurationError where shared memory does not suffice, and what `VectorEnv` names for environments that
    fail.
    """
    _check_counts(num_envs=num_envs, num_steps=num_steps, num_blocks=num_blocks)
    recipes = recipes_of(factory, num_envs, kwargs, argument="factory")
    settings = VectorSettings(
        num_steps=num_steps,
        num_blocks=num_blocks,
        extra_leaves=tuple(extra_leaves),
        first_env_index=first_env_index,
        rules=StepRules(
            max_frames_per_traj=max_frames_per_traj,
            check_finite=check_finite,
            restarts=restarts,
            max_restarts=max_restarts,
        ),
    )
    if num_processes == 0:
        return VectorEnv(recipes, settings, SerialHost()).start()
    crew_settings = CrewSettings(
        num_processes=processes_for(num_envs, num_processes),
        start_method=checked_start_method(start_method),
        start_timeout_s=start_timeout_s,
        step_timeout_s=step_timeout_s,
        close_timeout_s=close_timeout_s,
    )
    return VectorEnv(recipes, settings, CrewHost(crew_settings)).start()


def processes_for(num_envs: int, wanted: int | None) -> int:
    """How many children step so many environments. Raises ValueError for an impossible wish."""
    if wanted is None:
        return min(cpu_count(), num_envs)
    if not 1 <= wanted <= num_envs:
        raise ValueError(f"num_processes is {wanted}; allowed is 1 to {num_envs}, the number of environments")
    return wanted


def _check_counts(**counts: int) -> None:
    for name, count in counts.items():
        if count < 1:
            raise ValueError(f"{name} is {count}; it must be at least 1")
