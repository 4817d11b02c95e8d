"""Puts the operator tests' own builders and fakes on the path."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from data_servers import DataServer

SUPPORT = str(Path(__file__).parent / "support")

if SUPPORT not in sys.path:
    sys.path.insert(0, SUPPORT)


class Servers:
    """Starts servers for the data plane; each has a directory and a free port of its own."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack

    def start(self, **options: str) -> int:
        """The port of a server with these options (`maxmemory_policy="allkeys-lru"`), once it answers."""
        named = [part for key, value in options.items() for part in (f"--{key.replace('_', '-')}", value)]
        return self._stack.enter_context(DataServer(*named)).port


@pytest.fixture
def servers() -> Iterator[Servers]:
    """See `Servers`."""
    with ExitStack() as stack:
        yield Servers(stack)
