"""What a batched environment is asked to be: every keyword checked in one place, whoever sets it.

The constructors and `configure_parallel` make these; nothing here starts anything.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from rollout_worker.envs.launch import START_METHODS

WITHDRAWN = {
    "pin_memory": "page-locked buffers do not exist here",
    "allow_step_when_done": "an ended environment can always be stepped",
}
"""Keywords that are taken for the sake of existing code, and refused where they ask for something."""

PIPE_TIMEOUT = "BATCHED_PIPE_TIMEOUT"
"""Environment variable with the longest wait for a step or reset, in seconds, where no argument gives one."""


@dataclass(frozen=True, slots=True)
class BatchSettings:
    """The keywords that both kinds take. See `BatchedEnv` for what they mean."""

    share_individual_td: bool | None = None
    shared_memory: bool = True
    memmap: bool = False
    use_buffers: bool | None = None
    consolidate: bool = True
    non_blocking: bool = False
    num_threads: int | None = None
    num_sub_threads: int = 1
    mp_start_method: str | None = None
    daemon: bool = False
    check_finite: bool = False
    on_env_error: str = "raise"
    max_restarts: int | None = None

    def __post_init__(self) -> None:
        if self.memmap and self.shared_memory:
            raise RuntimeError(
                "memmap=True needs shared_memory=False: the memory is either a file or anonymous"
            )
        if self.mp_start_method is not None:
            checked_start_method(self.mp_start_method)
        for name in ("num_threads", "num_sub_threads"):
            count = getattr(self, name)
            if count is not None and count < 1:
                raise ValueError(f"{name} is {count}; it must be at least 1")
        if self.max_restarts is not None and self.max_restarts < 0:
            raise ValueError(f"max_restarts is {self.max_restarts}; it must be at least 0")
        if self.on_env_error not in ("raise", "restart"):
            raise ValueError(f"on_env_error is {self.on_env_error!r}; allowed are 'raise' and 'restart'")

    def changed(self, changes: Mapping[str, Any]) -> BatchSettings:
        """These settings with others in their place (None: as it is), checked anew."""
        return replace(self, **{name: value for name, value in changes.items() if value is not None})

    @property
    def memory_directory(self) -> Path | None:
        """Where files of the shared memory are made; None: they are anonymous."""
        return Path(tempfile.gettempdir()) if self.memmap else None


NAMES = tuple(field.name for field in fields(BatchSettings))


def checked_start_method(start_method: str) -> str:
    """The start method if there is one of that name. Raises ValueError."""
    if start_method not in START_METHODS:
        raise ValueError(f"the start method is {start_method!r}; allowed are {', '.join(START_METHODS)}")
    return start_method


def split_keywords(keywords: Mapping[str, Any], owner: str) -> dict[str, Any]:
    """The keywords of `BatchSettings`. Raises TypeError for one that nobody knows, ValueError for a withdrawn one."""
    known: dict[str, Any] = {}
    for name, value in keywords.items():
        if name in NAMES:
            known[name] = value
        elif name not in WITHDRAWN:
            raise TypeError(f"{owner} has no keyword {name!r}")
        elif value:
            raise ValueError(f"{name}={value!r} is not offered: {WITHDRAWN[name]}")
    return known


def pipe_timeout() -> float:
    """The wait that the environment variable sets. Raises ValueError for one that is no number."""
    text = os.environ.get(PIPE_TIMEOUT, "10000")
    try:
        return float(text)
    except ValueError as error:
        raise ValueError(f"{PIPE_TIMEOUT} is {text!r}; it must be a number of seconds") from error
