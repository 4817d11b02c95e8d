"""The learner of a local run: the user's program, started with our interpreter, watched, started again when it fails.

Called by `run`. Its output goes to `logs/learner.log`, where the screen reads its last lines; whether and when it is
started again is decided by `restarts`.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rollout_cli.errors import UsageError
from rollout_cli.local import tether
from rollout_cli.local.processes import end_process, exit_text, kill_session
from rollout_cli.local.restarts import Ended, GiveUp, History, Restart, decide
from rollout_contract.errors import RolloutError
from rollout_contract.spec import FailurePolicy

STOP_TIMEOUT_S = 10.0
"""From SIGTERM to SIGKILL."""
TAIL_BYTES = 64 * 1024
"""Of its log: a traceback is shorter."""


class LearnerFailed(RolloutError):
    """The learner was given up. The text holds the last of what it wrote."""


def check_program(program: Path) -> None:
    """UsageError if the file is no Python program: better now than after everything was started."""
    try:
        source = program.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read the learner {program}: {error.strerror or error}") from error
    try:
        compile(source, str(program), "exec", dont_inherit=True)
    except SyntaxError as error:
        where = f", line {error.lineno}" if error.lineno else ""
        raise UsageError(f"the learner {program} is no Python program: {error.msg}{where}") from error
    except ValueError as error:  # null bytes
        raise UsageError(f"the learner {program} is no Python program: {error}") from error


@dataclass
class Learner:
    """One learner and all its attempts. `acked_frames` tells how many frames were acked so far, by anybody."""

    program: Path
    environment: Mapping[str, str] = field(repr=False)
    log_file: Path
    policy: FailurePolicy
    acked_frames: Callable[[], int]
    tell: Callable[[str], None]
    history: History = field(default_factory=History)
    process: asyncio.subprocess.Process | None = None
    is_last: bool = False
    """The job failed: whatever its end, it is not started again."""
    state: str = "starting"
    """For the screen: starting, running, waiting (to be started again), ended."""

    async def run(self) -> None:
        """Run it until it ends with code 0, or for the last time. LearnerFailed once it is given up."""
        while True:
            ended, text = await self._run_once()
            if ended.exit_code == 0 or self.is_last:
                self.state = "ended"
                return
            match decide(ended, self.history, self.policy):
                case GiveUp(reason=reason):
                    self.state = "failed"
                    raise LearnerFailed(
                        f"the learner ended with {exit_text(ended.exit_code)}, and is not started again: {reason}. "
                        f"All it wrote is in {self.log_file}; the end:\n{text}"
                    )
                case Restart(after_s=after_s, history=history):
                    self.history = history
                    self.state = "waiting"
                    self.tell(
                        f"the learner ended with {exit_text(ended.exit_code)}; started again in {after_s:.0f} s "
                        f"({history.restarts} of at most {self.policy.backoff_limit} restarts)\n{text}"
                    )
                    await asyncio.sleep(after_s)

    async def stop(self) -> None:
        """End it and all that it started: SIGTERM, then SIGKILL. Safe to call at any time."""
        process = self.process
        if process is None:
            return
        await end_process(process, grace_s=STOP_TIMEOUT_S)
        kill_session(process.pid)

    async def _run_once(self) -> tuple[Ended, str]:
        """One attempt: how it ended, and the end of what it wrote."""
        clock = asyncio.get_running_loop().time
        start, acked_before = clock(), self.acked_frames()
        with self.log_file.open("ab") as log:
            begin = log.tell()
            self.process = await asyncio.create_subprocess_exec(
                *tether.command([sys.executable, str(self.program)]),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=asyncio.subprocess.STDOUT,
                env={**self.environment, "PYTHONUNBUFFERED": "1"},
                start_new_session=True,
            )
        self.state = "running"
        code = await self.process.wait()
        kill_session(self.process.pid)
        ended = Ended(code, clock() - start, has_acked=self.acked_frames() > acked_before)
        return ended, tail_text(self.log_file, begin)


def tail_text(path: Path, begin: int = 0) -> str:
    """The end of a file from offset `begin` on, at most TAIL_BYTES of it."""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(begin, size - TAIL_BYTES))
        return file.read().decode(errors="replace").rstrip()
