"""`python -m benchmarks.pipeline`: the collector alone, and the collector → Redis → reader with decoded TensorDicts.

The reader is a process of its own, as a learner is; both share the machine, so the figure includes what reading costs.
"""

from __future__ import annotations

import multiprocessing
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from benchmarks import ours
from benchmarks.harness import Case, Table, Work, run
from benchmarks.stream import server
from rollout_contract import wire
from rollout_contract.messages import EndKind
from rollout_contract.names import JobRef, WorkerId
from rollout_stream import Control, JobSettings, RolloutStream, StreamLimits, StreamWriter

CARTPOLE = "CartPole-v1"
WORKER = WorkerId("default", 0, 0)


def _read(url: str, job: str) -> None:
    """Decode and ack every batch, until the job ends."""
    import torch

    torch.set_num_threads(1)
    with RolloutStream.connect(url, job=job) as stream:
        for batch in stream.batches("reader"):
            assert batch.data["next", "reward"].shape[:2] == batch.data.shape
            batch.ack()


@contextmanager
def through_redis(
    env_name: str, num_envs: int, *, num_processes: int, frames_per_batch: int
) -> Iterator[Work]:
    """Collect, append, and count what the reader has acked."""
    with ExitStack() as stack:
        url = f"redis://127.0.0.1:{stack.enter_context(server())}"
        job = JobRef("default", f"bench-{uuid.uuid4().hex[:6]}", str(uuid.uuid4()))
        control = stack.enter_context(Control.connect(url, job=job))
        limits = StreamLimits(max_unacked_frames=8 * frames_per_batch)
        control.open_job(JobSettings(uid=job.uid, seed=0, groups=("reader",), limits=limits))
        reader = multiprocessing.get_context("spawn").Process(target=_read, args=(url, str(job)), daemon=True)
        reader.start()
        writer = stack.enter_context(StreamWriter.connect(url, job=job, worker=WORKER))
        making = ours.made_collector(env_name, num_envs, num_processes, frames_per_batch, with_policy=False)
        collector = stack.enter_context(making)
        _await_first_ack(control, writer, collector)

        def work() -> int:
            _append(writer, collector, job.uid)
            return frames_per_batch

        try:
            yield work
        finally:
            control.finish(EndKind.FINISHED)
            reader.join(20)
            reader.kill()


def _await_first_ack(control: Control, writer: StreamWriter, collector: Any) -> None:
    """The reader is up once it has acked something."""
    _append(writer, collector, control.job.uid)
    until = time.monotonic() + 30
    while control.read_progress().counters.acked_batches < 1 and time.monotonic() < until:
        time.sleep(0.02)


def _append(writer: StreamWriter, collector: Any, uid: str) -> None:
    while writer.reserve(collector.frames_per_batch).granted == 0:
        time.sleep(0.001)
    batch = collector.collect(collector.frames_per_batch)
    header = wire.BatchHeader(
        job=uid, worker=WORKER, sequence=writer.next_sequence, shape=batch.shape, frames=batch.frames
    )
    leaves = [
        wire.Leaf(wire.join_key(leaf.key), leaf.dtype, leaf.array.shape, leaf.array.data.cast("B"))
        for leaf in batch.leaves
    ]
    writer.append(header, wire.gather(header, leaves))


def tables() -> Iterator[Table]:
    """CartPole with the random policy: the most batches per second, so the most that the stream can cost."""
    sizes: dict[str, Any] = {"num_processes": 2, "frames_per_batch": 4096}
    yield Table(
        f"{CARTPOLE}, 32 environments, random policy, batches of 4,096 frames",
        "frames",
        "collector → Redis → reader",
        [
            Case("collector → Redis → reader", partial(through_redis, CARTPOLE, 32, **sizes)),
            Case("collector alone", partial(ours.collector, CARTPOLE, 32, with_policy=False, **sizes)),
        ],
    )


if __name__ == "__main__":
    run("The whole way of a batch, beside the collector alone.", tables)
