"""The embedded Redis (or Valkey) of a local run: started on a free loopback port, kept alive, stopped without a trace.

Called by `run`. The server ends with the run however that ends, writes an append-only file so that a restart within the
run loses nothing, never evicts, and can be used only with a password made for this run. What goes through it is not
known here.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from rollout_cli.local import tether
from rollout_cli.local.processes import end_process, exit_text
from rollout_cli.local.redis_program import ServerProgram
from rollout_cli.local.run_dir import RunDir, write_secret
from rollout_contract.errors import StreamUnavailable

HOST = "127.0.0.1"
START_TIMEOUT_S = 30.0
"""From its start to its first answer; loading an append-only file of a GiB takes some seconds."""
STOP_TIMEOUT_S = 5.0
MAX_RESTARTS = 5
"""A server that ends more often than this within one run is not coming back."""
MAX_PORT_TRIES = 5
"""Somebody may take a free port between our look and the server's start."""
LAST_WORDS_LINES = 12
MEMORY_SHARE = 0.5
"""Of the machine's memory: the server answers "out of memory" (back-pressure) before the machine runs out."""
MIN_MEMORY_BYTES = 64 * 2**20


def config_text(*, port: int, password: str, directory: Path, max_memory_bytes: int) -> str:
    """The server's configuration file."""
    return "\n".join(
        [
            f"bind {HOST}",
            f"port {port}",
            f"requirepass {quoted(password)}",
            f"dir {quoted(str(directory))}",
            "databases 1",
            "daemonize no",
            'save ""',
            "appendonly yes",
            "appendfsync everysec",
            f"maxmemory {max_memory_bytes}",
            "maxmemory-policy noeviction",
            "",
        ]
    )


def quoted(text: str) -> str:
    """A text as one word of a configuration file, whatever bytes it has."""
    plain = set(range(0x20, 0x7F)) - {ord('"'), ord("\\")}
    return '"' + "".join(chr(b) if b in plain else f"\\x{b:02x}" for b in os.fsencode(text)) + '"'


def memory_for_server() -> int:
    """`maxmemory` in bytes: half of what the machine (or our control group) has."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with suppress(OSError, ValueError):
        total = min(total, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return max(MIN_MEMORY_BYTES, int(total * MEMORY_SHARE))


@dataclass
class EmbeddedRedis:
    """A server process. `start`, then `watch` in a task of its own, then `stop`; all from one event loop."""

    program: ServerProgram
    run_dir: RunDir
    password: str = field(default_factory=lambda: secrets.token_urlsafe(24), repr=False)
    port: int = 0
    restarts: int = 0
    process: asyncio.subprocess.Process | None = None

    @property
    def url(self) -> str:
        """`redis://host:port`, without the password."""
        return f"redis://{HOST}:{self.port}"

    @property
    def log_file(self) -> Path:
        """What the server says."""
        return self.run_dir.logs / "redis.log"

    async def start(self) -> None:
        """Start the server and wait for its first answer. StreamUnavailable with its own last words."""
        self.run_dir.redis.mkdir(mode=0o700, parents=True, exist_ok=True)
        for attempt in range(1, MAX_PORT_TRIES + 1):
            self.port = free_port()
            try:
                await self._launch()
            except StreamUnavailable as error:
                if attempt == MAX_PORT_TRIES or "in use" not in str(error):
                    raise
            else:
                return

    async def watch(self, on_restart: Callable[[str], None]) -> None:
        """Start the server again, on the same port and data, whenever it ends; StreamUnavailable after MAX_RESTARTS."""
        while self.process is not None:
            code = await self.process.wait()
            if self.restarts >= MAX_RESTARTS:
                raise StreamUnavailable(
                    f"{self.program} ended {self.restarts + 1} times: {self._last_words()}"
                )
            self.restarts += 1
            on_restart(
                f"{self.program.product} ended with {exit_text(code)}; started again ({self.restarts})"
            )
            await self._launch()

    async def stop(self) -> None:
        """End the server and remove its data and configuration. Safe to call twice, and after a failed start."""
        process, self.process = self.process, None
        if process is not None:
            await end_process(process, grace_s=STOP_TIMEOUT_S)
        shutil.rmtree(self.run_dir.redis, ignore_errors=True)

    async def _launch(self) -> None:
        config = self.run_dir.redis / "redis.conf"
        write_secret(
            config,
            config_text(
                port=self.port,
                password=self.password,
                directory=self.run_dir.redis,
                max_memory_bytes=memory_for_server(),
            ),
        )
        with self.log_file.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *tether.command([self.program.path, str(config)]),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            await self._answer()
        except StreamUnavailable:
            await self._discard()
            raise

    async def _answer(self) -> None:
        """Return once the server takes our password and is done loading; StreamUnavailable if it ends, or too late."""
        assert self.process is not None
        deadline = asyncio.get_running_loop().time() + START_TIMEOUT_S
        while self.process.returncode is None:
            if await _ping(self.port, self.password):
                return
            if asyncio.get_running_loop().time() > deadline:
                raise StreamUnavailable(
                    f"{self.program} did not answer within {START_TIMEOUT_S:.0f} s; its last words: {self._last_words()}"
                )
            await asyncio.sleep(0.02)
        raise StreamUnavailable(
            f"{self.program} did not start ({exit_text(self.process.returncode)}); its last words: {self._last_words()}"
        )

    async def _discard(self) -> None:
        process, self.process = self.process, None
        if process is not None:
            await end_process(process, grace_s=0)

    def _last_words(self) -> str:
        try:
            lines = self.log_file.read_text(errors="replace").splitlines()
        except OSError:
            return "none"
        shown = [line for line in lines if line.strip()][-LAST_WORDS_LINES:]
        return "\n" + "\n".join(f"  {line}" for line in shown) if shown else "none"


def free_port(host: str = HOST) -> int:
    """A TCP port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


async def _ping(port: int, password: str) -> bool:
    """Whether the server answers a PING after our password; False while it is not there or still loading."""
    try:
        reader, writer = await asyncio.open_connection(HOST, port)
    except OSError:
        return False
    try:
        writer.write(f"*2\r\n$4\r\nAUTH\r\n${len(password)}\r\n{password}\r\n*1\r\n$4\r\nPING\r\n".encode())
        async with asyncio.timeout(1.0):
            return await reader.readline() == b"+OK\r\n" and await reader.readline() == b"+PONG\r\n"
    except (OSError, TimeoutError):
        return False
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
