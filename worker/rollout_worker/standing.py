"""Where a worker stands: what its heartbeat and its log tell, and what its next decision depends on.

Written by the loop alone; read by the threads that tell.
"""

from __future__ import annotations

from dataclasses import dataclass

from rollout_contract.messages import WorkerState


@dataclass
class Standing:
    """What the loop knows of itself."""

    state: WorkerState = WorkerState.STARTING
    loaded_version: int = 0
    rejected_version: int = 0
    seed_epoch: int = -1
    """-1: not seeded yet, so that the first news leads to seeding."""
    batches: int = 0
    """Appended by this attempt."""
    frames: int = 0
    """Likewise."""
    frames_per_second: float = 0.0
    last_error: str = ""
