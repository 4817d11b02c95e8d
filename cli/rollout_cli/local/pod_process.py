"""The process of one pod: started under the launcher, in a session of its own, with its log; its end is an event.

Used by the local cluster. Knows signals, descriptors and exit codes; nothing of jobs or of pods' documents.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

LAUNCHER = str(Path(__file__).with_name("launcher.py"))
LAUNCHER_PATIENCE_S = 10.0
"""The launcher itself gives up on unkillable processes after 5 s."""


class PodProcess:
    """A running program and everything that descends from it. Belongs to the event loop that started it."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._last_resort: asyncio.TimerHandle | None = None
        self._watch()

    @classmethod
    def start(
        cls, arguments: Sequence[str], *, environ: Mapping[str, str], directory: Path, log: Path
    ) -> PodProcess:
        """Start a program; what it writes is appended to the log. OSError if the interpreter cannot be started."""
        with log.open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", LAUNCHER, *arguments],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=directory,
                env=dict(environ),
                start_new_session=True,
            )
        return cls(process)

    @property
    def pid(self) -> int:
        """Of the launcher, whose session the program is in."""
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        """Whether nothing of it is left."""
        return self._ended.done()

    async def wait(self) -> int:
        """The program's exit code, 128 + n if signal n ended it, once nothing of it is left."""
        return await asyncio.shield(self._ended)

    def terminate(self) -> None:
        """SIGTERM to the program."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL to the program and everything that descends from it. `wait` ends soon after."""
        self._signal(signal.SIGUSR1)
        if not self.has_ended and self._last_resort is None:
            loop = asyncio.get_running_loop()
            self._last_resort = loop.call_later(LAUNCHER_PATIENCE_S, self._kill_group)

    def _signal(self, number: signal.Signals) -> None:
        if not self.has_ended:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    def _kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        if hasattr(os, "pidfd_open"):
            descriptor = os.pidfd_open(self._process.pid)
            loop.add_reader(descriptor, self._collect, descriptor)
        else:
            waiting = loop.run_in_executor(None, self._process.wait)
            waiting.add_done_callback(lambda _: self._note_end())

    def _collect(self, descriptor: int) -> None:
        asyncio.get_running_loop().remove_reader(descriptor)
        os.close(descriptor)
        self._process.wait()
        self._note_end()

    def _note_end(self) -> None:
        # The launcher has ended what it stood over; if it was killed itself, its process group is what can be reached.
        self._kill_group()
        if self._last_resort is not None:
            self._last_resort.cancel()
        if self._process.stdin is not None:
            self._process.stdin.close()
        code = self._process.returncode
        if not self._ended.done():
            self._ended.set_result(128 - code if code < 0 else code)
