"""How the children of a crew run, and which environments each of them has."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rollout_worker.envs.lookout import LOOK_S


@dataclass(frozen=True, slots=True)
class CrewSettings:
    """How the children run. Durations in seconds; `num_threads` is each child's.

    `memory_directory` is where the files of the shared memory are made (None: they are anonymous).
    """

    num_processes: int
    start_method: str = "spawn"
    daemon: bool = False
    num_threads: int = 1
    look_s: float = LOOK_S
    start_timeout_s: float = 120.0
    step_timeout_s: float = 60.0
    close_timeout_s: float = 5.0
    memory_directory: Path | None = None


def shares(num_envs: int, num_processes: int) -> list[range]:
    """Contiguous, even shares of the environments, the larger ones first."""
    small, larger = divmod(num_envs, num_processes)
    ranges, start = [], 0
    for position in range(num_processes):
        stop = start + small + (position < larger)
        ranges.append(range(start, stop))
        start = stop
    return ranges


def span(indices: range) -> str:
    """A share in words."""
    if len(indices) == 1:
        return f"environment {indices.start}"
    return f"environments {indices.start} to {indices.stop - 1}"
