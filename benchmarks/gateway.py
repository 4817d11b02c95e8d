"""How many status reads a second one gateway answers, and how many event streams it holds.

    python -m benchmarks.gateway [--short] [--out FILE]

The gateway runs in a process of its own over a local job and an embedded server; the load comes from this one, over plain
sockets. `healthz` beside it is what the framework answers without doing anything. Prints reads a second, latencies, the
gateway's memory and processor time, and how often the server was read while so many clients listened.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import resource
import statistics
import sys
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import uvloop

from benchmarks.stream import server
from rollout_contract.messages import Heartbeat
from rollout_contract.spec import parse_manifest

TOKEN = "benchmark-token-0123456789"  # noqa: S105 - of a server that lives for seconds
PATH = "/v1/namespaces/default/rolloutjobs/cartpole"
WORKERS = 8


@dataclass(frozen=True, slots=True)
class Plan:
    """How much load, and for how long."""

    readers: int
    listeners: int
    seconds: float


FULL = Plan(readers=64, listeners=1000, seconds=10.0)
SHORT = Plan(readers=32, listeners=200, seconds=3.0)


async def serve(directory: Path, port: int) -> None:
    """The gateway over a job with workers, until its standard input ends. Says its address on standard output."""
    from rollout_api.app import create_app
    from rollout_api.auth import TokenAuth
    from rollout_api.serve import bind, serving
    from rollout_cli.local.job_file import JobFile
    from rollout_cli.local.job_store import LocalStore
    from rollout_stream.aio import AsyncSession, Control
    from rollout_stream.calls import JobCalls
    from rollout_stream.settings import JobSettings

    document = {
        "apiVersion": "rolloutjob.dev/v1alpha1",
        "kind": "RolloutJob",
        "metadata": {"name": "cartpole"},
        "spec": {
            "env": {"entrypoint": "envs:make"},
            "policy": {"entrypoint": "policies:make"},
            "collector": {"framesPerBatch": 64, "totalFrames": 1_000_000},
            "replicas": WORKERS,
        },
    }
    file = JobFile(directory)
    job = parse_manifest(file.create(parse_manifest(document).to_document(), uid=str(uuid.uuid4())))
    async with AsyncSession.connect(f"redis://127.0.0.1:{port}") as session:
        control = Control(session, job.ref)
        await control.open_job(JobSettings(uid=job.ref.uid, seed=7, total_frames=1_000_000))
        for index in range(WORKERS):
            beat = Heartbeat("default", index, 0, "Collecting", started=time.time())
            await session.run(JobCalls(control._keys).heartbeat(beat))
        app = create_app(store=LocalStore(file), stream=session, auth=TokenAuth(TOKEN))
        async with serving(app, bind("127.0.0.1", 0)) as url:
            print(url, flush=True)
            await asyncio.to_thread(sys.stdin.read)


@dataclass
class Gateway:
    """The process that is measured."""

    process: asyncio.subprocess.Process
    port: int

    def cpu_seconds(self) -> float:
        """Processor time so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory_mib(self) -> float:
        """Resident memory."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", text)[1]) / 1024  # type: ignore[index]  # Linux always says it


@asynccontextmanager
async def gateway(directory: Path, redis_port: int) -> AsyncIterator[Gateway]:
    """A gateway, ended in order."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.gateway", "--serve", str(directory), str(redis_port),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        async with asyncio.timeout(30):
            url = (await process.stdout.readline()).decode().strip()
        yield Gateway(process, int(url.rpartition(":")[2]))
    finally:
        process.stdin.close()
        async with asyncio.timeout(30):
            await process.wait()


def request(path: str) -> bytes:
    """A request that keeps its connection."""
    return f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode()


async def answer(reader: asyncio.StreamReader) -> bytes:
    """The body of an answer with a length."""
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200"), head
    found = re.search(rb"content-length: (\d+)", head)
    assert found is not None
    return await reader.readexactly(int(found[1]))


async def read_for(port: int, path: str, until: float, took: list[float]) -> None:
    """One client that asks again and again."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    asked = request(path)
    try:
        while time.perf_counter() < until:
            started = time.perf_counter()
            writer.write(asked)
            await answer(reader)
            took.append(time.perf_counter() - started)
    finally:
        writer.close()


async def reads(found: Gateway, path: str, plan: Plan) -> dict[str, float]:
    """Reads a second of one path by many clients."""
    took: list[float] = []
    cpu, started = found.cpu_seconds(), time.perf_counter()
    until = started + plan.seconds
    await asyncio.gather(*(read_for(found.port, path, until, took) for _ in range(plan.readers)))
    elapsed = time.perf_counter() - started
    took.sort()
    return {
        "per_second": len(took) / elapsed,
        "p50_ms": 1000 * statistics.median(took),
        "p99_ms": 1000 * took[int(0.99 * len(took))],
        "gateway_cores": (found.cpu_seconds() - cpu) / elapsed,
    }


async def listen(port: int, seen: list[int], index: int, is_ready: asyncio.Semaphore) -> None:
    """One client of the events; counts the progress that it is told."""
    async with is_ready:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request(PATH + "/events"))
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
    try:
        while line := await reader.readline():
            seen[index] += line.startswith(b"event: progress")
    finally:
        writer.close()


async def live_reads(port: int) -> float:
    """How often the gateway has read a job's numbers from the server."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request("/metrics"))
    text = (await answer(reader)).decode()
    writer.close()
    return float(re.search(r'rollout_gateway_live_reads_total\{result="ok"\} ([\d.]+)', text)[1])  # type: ignore[index]


async def streams(found: Gateway, plan: Plan) -> dict[str, float]:
    """Many clients of one job's events at once."""
    seen = [0] * plan.listeners
    memory = found.memory_mib()
    connecting = asyncio.Semaphore(50)
    tasks = [asyncio.create_task(listen(found.port, seen, i, connecting)) for i in range(plan.listeners)]
    async with asyncio.timeout(60):
        while not all(seen):  # noqa: ASYNC110 - a thousand events would measure themselves
            await asyncio.sleep(0.05)
    before, cpu, asked, started = (
        list(seen),
        found.cpu_seconds(),
        await live_reads(found.port),
        time.perf_counter(),
    )
    await asyncio.sleep(plan.seconds)
    elapsed = time.perf_counter() - started
    counts = [after - first for after, first in zip(seen, before, strict=True)]
    result = {
        "clients": float(plan.listeners),
        "events_per_client_and_second": statistics.mean(counts) / elapsed,
        "least_events": float(min(counts)),
        "redis_reads_per_second": (await live_reads(found.port) - asked) / elapsed,
        "gateway_cores": (found.cpu_seconds() - cpu) / elapsed,
        "kib_per_client": 1024 * (found.memory_mib() - memory) / plan.listeners,
    }
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return result


async def measure(plan: Plan) -> dict[str, Any]:
    """Every figure."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(8192, hard) if hard > 0 else 8192, hard))
    async with AsyncExitStack() as stack:
        redis_port = stack.enter_context(server())
        directory = Path(stack.enter_context(TemporaryDirectory()))
        found = await stack.enter_async_context(gateway(directory, redis_port))
        return {
            "healthz": await reads(found, "/healthz", plan),
            "status": await reads(found, PATH + "/status", plan),
            "job": await reads(found, PATH, plan),
            "events": await streams(found, plan),
        }


def main() -> int:
    """Print the figures as a table, and write them where `--out` says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--short", action="store_true", help="fewer clients, a few seconds")
    parser.add_argument("--out", type=Path, help="also write the figures as JSON")
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        uvloop.run(serve(Path(options.serve[0]), int(options.serve[1])))
        return 0
    figures = asyncio.run(measure(SHORT if options.short else FULL))
    for name, values in figures.items():
        print(f"{name:8}", *(f"{key}={value:.2f}" for key, value in values.items()), sep="  ")
    if options.out:
        options.out.write_text(json.dumps(figures, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
