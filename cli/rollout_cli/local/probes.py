"""Asks a worker's health endpoint as the kubelet would: is it ready, does it live?

Used by the local cluster, one watcher per pod. A pod without a readiness probe is ready once it runs.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

STARTUP_PERIOD_S = 0.1
"""Until a pod is ready for the first time it is asked this often, so that a local run starts quickly."""
HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Probe:
    """One probe of a container; times in seconds."""

    path: str
    port: int
    """0: what the worker writes into its health file."""
    initial_delay_s: float
    period_s: float
    timeout_s: float
    failure_threshold: int

    @classmethod
    def of(cls, container: Mapping[str, Any], name: str) -> Probe | None:
        """The container's probe of that name (`readinessProbe`), None without one that asks over HTTP."""
        probe = container.get(name) or {}
        http = probe.get("httpGet")
        if http is None:
            return None
        return cls(
            path=http.get("path", "/"),
            port=int(http["port"]),
            initial_delay_s=float(probe.get("initialDelaySeconds", 0)),
            period_s=float(probe.get("periodSeconds", 10)),
            timeout_s=float(probe.get("timeoutSeconds", 1)),
            failure_threshold=int(probe.get("failureThreshold", 3)),
        )


async def watch_readiness(probe: Probe, health_file: Path, *, changed: Callable[[bool], None]) -> None:
    """Call `changed` whenever the answer changes. Runs until cancelled."""
    is_ready, failures = False, 0
    await asyncio.sleep(probe.initial_delay_s)
    while True:
        answer = await ask(probe, health_file)
        failures = 0 if answer else failures + 1
        # One bad answer is no news, as for the kubelet; a good one is.
        now = answer or (is_ready and failures < probe.failure_threshold)
        if now != is_ready:
            is_ready = now
            changed(now)
        await asyncio.sleep(probe.period_s if is_ready else min(STARTUP_PERIOD_S, probe.period_s))


async def wait_for_death(probe: Probe, health_file: Path) -> None:
    """Returns when the worker has not answered `failure_threshold` times in a row."""
    failures = 0
    await asyncio.sleep(probe.initial_delay_s)
    while failures < probe.failure_threshold:
        failures = 0 if await ask(probe, health_file) else failures + 1
        await asyncio.sleep(probe.period_s)


async def ask(probe: Probe, health_file: Path) -> bool:
    """Whether the endpoint answers with 200 to 399 in time."""
    port = probe.port or read_port(health_file)
    if not port:
        return False
    try:
        async with asyncio.timeout(probe.timeout_s):
            return await _get(port, probe.path)
    except (OSError, TimeoutError, ValueError, asyncio.IncompleteReadError):
        return False


def read_port(health_file: Path) -> int:
    """The port that the worker chose; 0 as long as it has not."""
    try:
        text = health_file.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return 0
    return int(text) if text.isdecimal() and int(text) < 65536 else 0


async def _get(port: int, path: str) -> bool:
    reader, writer = await asyncio.open_connection(HOST, port)
    try:
        request = f"GET {path} HTTP/1.1\r\nHost: {HOST}:{port}\r\nConnection: close\r\n\r\n"
        writer.write(request.encode("ascii"))
        await writer.drain()
        line = await reader.readuntil(b"\r\n")
        return 200 <= int(line.split()[1]) < 400
    except (IndexError, asyncio.LimitOverrunError):
        return False
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
