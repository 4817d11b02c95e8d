"""Puts the local tests' own worker program on the path, and gives them a server for the data plane."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from data_servers import DataServer

SUPPORT = str(Path(__file__).parent / "support")

if SUPPORT not in sys.path:
    sys.path.insert(0, SUPPORT)


@pytest.fixture
def data_server():
    """A server with a password on a socket of its own; yields (socket path, password)."""
    with DataServer(tcp=False, password="hush") as server:
        yield server.socket_path, server.password
