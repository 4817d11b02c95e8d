"""What a child sends its parent on the socket, each message announced by its reply words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rollout_worker.envs.faults import EnvFault
from rollout_worker.envs.looking import Looked
from rollout_worker.envs.reports import Reported


@dataclass(frozen=True, slots=True)
class Hello:
    """First message of a child: what its environments are."""

    said: tuple[Reported | Looked, ...]
    pid: int


@dataclass(frozen=True, slots=True)
class Failed:
    """A command failed; the child goes on to listen, the parent decides."""

    faults: tuple[EnvFault, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command gives back beside the block: leaves that are no tensors, or the results of a call."""

    payload: Any
