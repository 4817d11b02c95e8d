"""What became of a child: how its process ended or that it is silent, what it was busy with, what it has to say."""

from __future__ import annotations

from typing import Any

from rollout_worker.envs.arena import ControlPage
from rollout_worker.envs.batch_settings import PIPE_TIMEOUT
from rollout_worker.envs.crew.children import Child
from rollout_worker.envs.crew.descriptors import readable
from rollout_worker.envs.crew.settings import CrewSettings, span
from rollout_worker.envs.faults import Cause, EnvFault, ending_of
from rollout_worker.envs.launch import MAIN_GUARD, NO_MAIN_GUARD
from rollout_worker.envs.progress import Doing, read_progress
from rollout_worker.envs.transfer import receive

MESSAGE_S = 10.0
"""A message that a child has announced must arrive within this, and so must the exit code of one that has ended: where
others compute, the server of forkserver is slow to tell it."""


class Findings:
    """Looks at the children of one crew."""

    def __init__(self, control: ControlPage, settings: CrewSettings) -> None:
        self._control, self._settings = control, settings

    def receive(self, child: Child) -> Any:
        """An announced message. Raises EOFError where it does not come: the child died, or stopped in the middle."""
        if child.conn.fileno() not in readable([child.conn.fileno(), child.pidfd], MESSAGE_S):
            raise EOFError
        return receive(child.conn)

    def death_of(self, child: Child, call: str) -> EnvFault:
        """The fault of a child whose process has ended. `call` is what the crew was doing."""
        child.reap(MESSAGE_S)
        exitcode = child.process.exitcode
        if exitcode == NO_MAIN_GUARD:
            raise RuntimeError(MAIN_GUARD) from None
        index, busy_with = self._busy(child, call)
        text = f"the process that steps {span(child.indices)} {ending_of(exitcode)}"
        return EnvFault(Cause.LOST, index, child.pid, busy_with, text)

    def silence_of(self, child: Child, call: str, limit_s: float) -> EnvFault:
        """The fault of a child that does not get on."""
        index, busy_with = self._busy(child, call)
        text = f"no answer within {limit_s:g} s; its process was killed"
        if limit_s == self._settings.step_timeout_s:
            text += f" (the limit is step_timeout_s, or the variable {PIPE_TIMEOUT})"
        return EnvFault(Cause.TIMEOUT, index, child.pid, busy_with, text)

    def _busy(self, child: Child, call: str) -> tuple[int | None, str]:
        """Which environment a child was busy with, and the call."""
        doing, row = read_progress(int(self._control.progress[child.position, 0]))
        if doing is Doing.IDLE:
            return (child.indices.start if len(child.indices) == 1 else None), call
        return child.indices.start + row, call if doing is Doing.CALL else doing.name.lower()
