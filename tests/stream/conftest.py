"""A real server for the tests of the data plane, and short ways to jobs, writers and frames on it."""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from data_servers import DataServer

from rollout_contract import wire
from rollout_contract.keys import JobKeys
from rollout_contract.messages import AppendReply, EpisodeSummary
from rollout_contract.names import JobRef, WorkerId
from rollout_stream import Control, JobSettings, RolloutStream, StreamLimits, StreamWriter


def wait_until(is_true: Callable[[], Any], *, within_s: float = 60.0, what: str = "") -> Any:
    """The first true answer. AssertionError once the time is over."""
    until = time.monotonic() + within_s
    while not (answer := is_true()):
        assert time.monotonic() < until, f"not within {within_s} s: {what or is_true}"
        time.sleep(0.01)
    return answer


class Rig:
    """One job on one server, and everything that a test opens on it."""

    def __init__(self, server: DataServer, stack: contextlib.ExitStack) -> None:
        self.server = server
        self.stack = stack
        self.job = JobRef("tests", f"t{uuid.uuid4().hex[:8]}", str(uuid.uuid4()))
        self.keys = JobKeys.of(self.job)
        self.control = stack.enter_context(
            Control.connect(server.url, job=self.job, password=server.password)
        )
        self.redis = server.client()
        stack.callback(self.redis.close)

    def open(self, total: int | None = None, **changes: Any) -> Rig:
        limits = changes.pop("limits", StreamLimits())
        assert self.control.open_job(
            JobSettings(uid=self.job.uid, seed=7, total_frames=total, limits=limits, **changes)
        )
        return self

    def writer(self, index: int = 0, attempt: int = 0, *, group: str = "cpu", **options: Any) -> StreamWriter:
        worker = WorkerId(group, index, attempt)
        options = {"patience_s": 60.0, "password": self.server.password, **options}
        return self.stack.enter_context(
            StreamWriter.connect(self.server.url, job=self.job, worker=worker, **options)
        )

    def stream(self, **options: Any) -> RolloutStream:
        options = {"patience_s": 60.0, "password": self.server.password, **options}
        return self.stack.enter_context(RolloutStream.connect(self.server.url, job=str(self.job), **options))

    def counters(self) -> Any:
        return self.control.read_progress().counters

    def entries(self) -> int:
        """Batches in the stream."""
        return sum(
            1
            for _, fields in self.redis.execute_command("XRANGE", self.keys.batches, "-", "+")
            if fields[0] == b"b"
        )


def frame_of(
    writer: StreamWriter, frames: int, *, fill: int | None = None, sequence: int | None = None, **fields: Any
) -> tuple[wire.BatchHeader, bytes]:
    """A batch `[frames, 1]` of one float32 leaf, made by a writer."""
    number = writer.next_sequence if sequence is None else sequence
    header = wire.BatchHeader(
        job=writer.job.uid, worker=writer.worker, sequence=number, shape=(frames, 1), frames=frames, **fields
    )
    value = (number if fill is None else fill) % 256
    return header, wire.encode(
        header, [wire.Leaf("observation", "uint8", (frames, 1, 8), bytes([value]) * 8 * frames)]
    )


def append(writer: StreamWriter, frames: int, *, want: int = 0, **fields: Any) -> AppendReply:
    """Appends one made-up batch."""
    returns = fields.pop("returns", None)
    if returns is not None:
        fields["episodes"] = EpisodeSummary.of(returns, [10] * len(returns))
    return writer.append(*frame_of(writer, frames, **fields), want=want)


class Proxy:
    """Passes bytes between a client and the server; drops the connection instead of the answer when told to.

    `swallow` is how many of the next answers to an append are lost after the server gave them: the transaction's own answer,
    because those to its parts come before it is done.
    """

    def __init__(self, server: DataServer) -> None:
        self._server = server
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self._listener.getsockname()[1]}"
        self.swallow = 0
        self.swallowed = 0
        self._sockets: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def close(self) -> None:
        for s in (self._listener, *self._sockets):
            with contextlib.suppress(OSError):
                s.shutdown(socket.SHUT_RDWR)
            s.close()
        self._thread.join(60)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.socket(socket.AF_UNIX)
            server.connect(self._server.socket_path)
            self._sockets += [client, server]
            state = {"append": False}
            for args in ((client, server, state, True), (server, client, state, False)):
                threading.Thread(target=self._pump, args=args, daemon=True).start()

    def _pump(
        self, source: socket.socket, target: socket.socket, state: dict[str, bool], is_request: bool
    ) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if is_request and b"XADD" in data:
                    state["append"] = True
                if not is_request and state["append"] and self.swallow > 0 and b"*2\r\n" in data:
                    self.swallow -= 1
                    self.swallowed += 1
                    break
                target.sendall(data)
        for s in (source, target):
            with contextlib.suppress(OSError):
                s.shutdown(socket.SHUT_RDWR)


@pytest.fixture(scope="session")
def server() -> Iterator[DataServer]:
    """One server for all tests of a process; tests keep apart by their jobs' names."""
    with DataServer(tcp=False) as started:
        yield started


@pytest.fixture
def make_server() -> Iterator[Callable[..., DataServer]]:
    """Servers of a test's own, with options; killed at its end."""
    with contextlib.ExitStack() as stack:

        def make(*options: str, tcp: bool = False, password: str | None = None) -> DataServer:
            return stack.enter_context(DataServer(*options, tcp=tcp, password=password))

        yield make


@pytest.fixture
def make_rig(server: DataServer) -> Iterator[Callable[..., Rig]]:
    """Jobs, on the shared server or on a given one."""
    with contextlib.ExitStack() as stack:
        yield lambda on=None: Rig(on or server, stack)


@pytest.fixture
def rig(make_rig: Callable[..., Rig]) -> Rig:
    """One job that is not open yet."""
    return make_rig()


@pytest.fixture
def make_proxy(server: DataServer) -> Iterator[Callable[..., Proxy]]:
    """Proxies in front of the shared server."""
    made: list[Proxy] = []

    def make(on: DataServer | None = None) -> Proxy:
        made.append(Proxy(on or server))
        return made[-1]

    yield make
    for proxy in made:
        proxy.close()


@pytest.fixture
def tools() -> Any:
    """The functions above, for tests (which cannot import this file)."""

    class Tools:
        append = staticmethod(append)
        frame_of = staticmethod(frame_of)
        wait_until = staticmethod(wait_until)

    return Tools


@pytest.fixture(autouse=True)
def no_descriptor_is_left() -> Iterator[None]:
    """Whatever a test opens is closed with it. Set up first, so looked at last."""
    directory = Path("/proc/self/fd")
    if not directory.exists():
        yield
        return
    before = len(os.listdir(directory))
    yield
    gc.collect()
    wait_until(lambda: len(os.listdir(directory)) <= before + 1, within_s=60, what="descriptors are closed")
