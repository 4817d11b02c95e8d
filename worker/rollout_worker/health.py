"""The worker's health endpoint: /healthz (its loop turns) and /readyz (it can make batches, and is not draining).

Served from a thread of its own; the collector loop only stores two numbers in `Vitals`.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from rollout_contract.messages import WorkerState
from rollout_contract.podenv import HealthAddress

_NOT_READY = frozenset({WorkerState.STARTING, WorkerState.DRAINING, WorkerState.FAILED})


class Vitals:
    """What the worker is doing, and when its loop last turned. Written by the loop, read by the endpoint's thread."""

    def __init__(self, *, silent_limit_s: float) -> None:
        self.state = WorkerState.STARTING
        self.silent_limit_s = silent_limit_s
        self._turned = time.monotonic()

    def turn(self, state: WorkerState) -> None:
        """Say that the loop is alive and what it does now."""
        self.state = state
        self._turned = time.monotonic()

    @property
    def silent_s(self) -> float:
        """Seconds since the loop last turned."""
        return time.monotonic() - self._turned

    @property
    def is_alive(self) -> bool:
        """Whether the loop turned within `silent_limit_s` (the environments' step time-out and some more)."""
        return self.silent_s < self.silent_limit_s

    @property
    def is_ready(self) -> bool:
        """Whether the worker takes part: started, alive, not draining."""
        return self.is_alive and self.state not in _NOT_READY


def _handler_of(vitals: Vitals) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = 5

        def do_GET(self) -> None:
            checks = {"/healthz": vitals.is_alive, "/readyz": vitals.is_ready}
            known = checks.get(self.path)
            status = 404 if known is None else 200 if known else 503
            body = json.dumps(
                {"state": str(vitals.state), "silentSeconds": round(vitals.silent_s, 1)}
            ).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class' name
            """Probes come every few seconds: no line for each."""

    return Handler


@contextmanager
def serve_health(address: HealthAddress, vitals: Vitals, *, port_file: str | None = None) -> Iterator[int]:
    """Serve until the block ends; yields the port. `port_file` learns it too (for port 0). OSError if it is taken."""
    server = ThreadingHTTPServer((address.host, address.port), _handler_of(vitals))
    server.daemon_threads = True
    port: int = server.server_address[1]
    thread = threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.2}, name="health", daemon=True
    )
    thread.start()
    try:
        if port_file:
            scratch = Path(f"{port_file}.new")
            scratch.write_text(str(port))
            scratch.replace(port_file)
        yield port
    finally:
        server.shutdown()
        server.server_close()
        thread.join(timeout=5)
