"""What a worker puts into the stream: real transitions, stamped with what made them, as many as asked for."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx2
import psutil
import pytest
import torch
from process_ends import is_gone

from rollout_contract.names import WorkerId, trajectory_base
from rollout_contract.podenv import StrictShare
from rollout_contract.seeds import seed_of
from rollout_stream import RolloutStream
from rollout_stream.batch import Batch

pytestmark = pytest.mark.timeout(400)

SOON_S = 120.0
"""A worker starts Python and torch, where others compute."""


@contextmanager
def reading(job: Any, group: str = "learner") -> Iterator[RolloutStream]:
    with RolloutStream.connect(job.server.url, job=str(job.job), password="s3cr3t-probe-42") as stream:
        yield stream


def read_all(job: Any) -> list[Batch]:
    """Every batch of a job that comes to its end, acked. Fails at once where a worker does."""
    batches = []
    with reading(job) as stream:
        reader = stream.batches("learner")
        while not reader.is_over:
            batch = reader.next_within(0.5)
            if batch is not None:
                batches.append(batch)
                batch.ack()
            failed = [code for p in job.processes if (code := p.poll())]
            assert not failed, f"a worker ended with {failed}: {job.log()}"
    return batches


def start_together(job: Any, count: int) -> list[Any]:
    """Workers that wait for weights until all are there, and then begin at once."""
    processes = [job.start(WorkerId("default", index, 0)) for index in range(count)]
    wait_until(
        lambda: [w.state for w in job.control.read_progress().workers] == ["WaitingForWeights"] * count
    )
    with reading(job) as stream:
        stream.weights.publish({"weight": torch.zeros(1)})
    return processes


@pytest.mark.probe("P-12")
@pytest.mark.probe("P-32")
@pytest.mark.parametrize("processes", [1, 2])
def test_every_frame_is_a_real_transition(rig: Callable[..., Any], processes: int) -> None:
    env = {"entrypoint": "worker_toys:Count", "kwargs": {"k": 4, "start": 100}, "envsPerWorker": 3}
    job = rig(
        env={**env, "processes": processes},
        collector={"framesPerBatch": 30, "totalFrames": 90},
        groups=("learner",),
    )
    process = job.start()
    batches = read_all(job)
    assert process.wait(SOON_S) == 0
    data = torch.cat([b.data for b in batches], dim=1)
    steps = torch.arange(30) % 4
    assert data.shape == (3, 30)
    assert data["observation"].squeeze(-1).tolist() == [(100 + steps).tolist()] * 3
    assert data["next", "observation"].squeeze(-1).tolist() == [(101 + steps).tolist()] * 3
    done = (steps == 3).tolist()
    assert data["next", "done"].squeeze(-1).tolist() == [done] * 3
    assert data["next", "terminated"].squeeze(-1).tolist() == [done] * 3
    assert not data["next", "truncated"].any()
    assert not data["done"].any()
    assert data["next", "reward"].dtype is torch.float32
    assert [b.header.sequence for b in batches] == [1, 2, 3]
    assert sum(b.header.episodes.count for b in batches) == 3 * 7
    assert {length for b in batches for _, length in b.header.episodes.newest} == {4}


@pytest.mark.probe("P-14")
@pytest.mark.parametrize(
    ("total", "shapes"),
    [
        pytest.param(60, [[4, 5]] * 3, id="whole-batches"),
        pytest.param(64, [[4, 5]] * 3 + [[4, 1]], id="a-shorter-last-batch"),
        pytest.param(50, [[4, 5]] * 2 + [[4, 2], [2, 1]], id="a-rest-of-two-environments"),
        pytest.param(3, [[3, 1]], id="less-than-one-step"),
    ],
)
def test_exactly_the_frames_asked_for(rig: Callable[..., Any], total: int, shapes: list[list[int]]) -> None:
    job = rig(collector={"framesPerBatch": 20, "totalFrames": total}, groups=("learner",))
    process = job.start()
    batches = read_all(job)
    assert process.wait(SOON_S) == 0
    assert [list(b.header.shape) for b in batches] == shapes
    assert sum(b.header.frames for b in batches) == total
    assert sum(b.data.numel() for b in batches) == total
    assert job.control.read_progress().counters.frames == total


@pytest.mark.probe("P-15")
def test_trajectory_ids_are_unique_over_workers(rig: Callable[..., Any]) -> None:
    job = rig(
        env={"entrypoint": "worker_toys:Count", "kwargs": {"k": 4}, "envsPerWorker": 2},
        collector={"framesPerBatch": 12, "totalFrames": 1200},
        weights={"startPolicy": "WaitForWeights", "maxStaleness": 0},
        max_unacked_frames=24,
        groups=("learner",),
    )
    workers = start_together(job, 2)
    # With a batch that is not acked none of them makes another: the second is the other's.
    wait_until(lambda: job.control.read_progress().counters.frames == 24)
    batches = read_all(job)
    assert [p.wait(SOON_S) for p in workers] == [0, 0]
    for index in range(2):
        own = [b for b in batches if b.header.worker.index == index]
        ids = torch.cat([b.data["collector", "traj_ids"] for b in own], dim=1)
        assert ids.dtype is torch.int64
        steps = ids.shape[1]
        base = trajectory_base(0, index, 0)
        for env in range(2):
            expected = [env if t < 4 else 2 + 2 * (t // 4 - 1) + env for t in range(steps)]
            assert (ids[env] - base).tolist() == expected


@pytest.mark.probe("P-16")
@pytest.mark.parametrize("random", [0, 25, 60])
def test_random_frames_are_counted_over_the_job(rig: Callable[..., Any], random: int) -> None:
    collector = {"framesPerBatch": 12, "totalFrames": 60, "initRandomFrames": random}
    job = rig(
        policy={"entrypoint": "worker_toys:make_marked"},
        collector=collector,
        weights={"startPolicy": "WaitForWeights"},
        max_unacked_frames=24,
        groups=("learner",),
    )
    workers = start_together(job, 2)
    batches = read_all(job)
    assert [p.wait(SOON_S) for p in workers] == [0, 0]
    marks = torch.cat([b.data["mark"].flatten() for b in batches])
    assert (marks == 0).sum() == random
    assert (marks == 1).sum() == 60 - random


@pytest.mark.probe("P-28")
def test_the_version_on_a_batch_is_the_one_that_acted(rig: Callable[..., Any]) -> None:
    job = rig(
        collector={"framesPerBatch": 16, "totalFrames": 800},
        weights={"maxStaleness": 0},
        groups=("learner",),
    )
    process = job.start()
    seen = []
    with reading(job) as stream:
        for batch in stream.batches("learner"):
            first, last = batch.header.policy_version
            values = set(batch.data["version"].flatten().tolist())
            assert first == last
            assert values == {float(first)}
            seen.append(first)
            if len(seen) % 3 == 0:
                version = stream.weights.latest()
                number = version.version + 1 if version else 1
                stream.weights.publish({"weight": torch.full((1,), float(number))})
            batch.ack()
    assert process.wait(SOON_S) == 0
    assert seen == [n // 3 for n in range(50)]


@pytest.mark.probe("P-27")
def test_a_version_that_does_not_fit_is_reported_and_not_loaded(rig: Callable[..., Any]) -> None:
    job = rig(
        collector={"framesPerBatch": 16, "totalFrames": 320}, weights={"maxStaleness": 0}, groups=("learner",)
    )
    process = job.start()
    versions = []
    with reading(job) as stream:
        for number, batch in enumerate(stream.batches("learner")):
            versions.append(batch.header.policy_version[0])
            if number == 2:
                stream.weights.publish({"weight": torch.tensor([float("nan")])}, allow_nonfinite=True)
            if number == 5:
                stream.weights.publish({"weight": torch.ones(1)})
            if number == 4:
                (worker,) = job.control.read_progress().workers
                assert worker.rejected_version == 1
                assert "weight" in worker.last_error
            batch.ack()
    assert process.wait(SOON_S) == 0
    assert versions == [0] * 6 + [2] * 14


@pytest.mark.probe("P-24")
@pytest.mark.probe("P-25")
def test_a_new_seed_ends_trajectories_and_reseeds(rig: Callable[..., Any]) -> None:
    job = rig(
        env={"entrypoint": "worker_toys:Rng", "envsPerWorker": 2},
        collector={"framesPerBatch": 14, "totalFrames": 1400},
        max_unacked_frames=28,
        groups=("learner",),
    )
    process = job.start()
    batches = []
    with reading(job) as stream:
        for number, batch in enumerate(stream.batches("learner", prefetch=1)):
            batches.append(batch)
            if number == 3:
                job.control.set_seed(11)
            batch.ack()
    assert process.wait(SOON_S) == 0
    epochs = [b.header.seed_epoch for b in batches]
    border = epochs.index(1)
    assert epochs == [0] * border + [1] * (len(epochs) - border)
    assert all(b.header.sequence == n + 1 for n, b in enumerate(batches))
    last, first = batches[border - 1].data, batches[border].data
    assert last["next", "done"][:, -1].all()
    running = ~last["next", "terminated"][:, -1]
    assert (last["next", "truncated"][:, -1] == running).all()
    assert not any(b.data["next", "truncated"].any() for b in batches[: border - 1])
    expected = [
        torch.tensor(_first_draw(seed_of(11, 1, "default", env, 0)), dtype=torch.float64) for env in range(2)
    ]
    assert torch.equal(first["observation"][:, 0], torch.stack(expected))
    ids_before = set(
        torch.cat([b.data["collector", "traj_ids"].flatten() for b in batches[:border]]).tolist()
    )
    ids_after = set(torch.cat([b.data["collector", "traj_ids"].flatten() for b in batches[border:]]).tolist())
    assert not ids_before & ids_after


def _first_draw(seed: int) -> list[float]:
    """What `Rng` draws at the reset with this seed."""
    from gymnasium.utils.seeding import np_random

    draws: list[float] = np_random(seed)[0].random(2).tolist()
    return draws


@pytest.mark.probe("P-13")
def test_a_frame_limit_truncates(rig: Callable[..., Any]) -> None:
    job = rig(
        env={"entrypoint": "worker_toys:Count", "kwargs": {"k": 1000}, "envsPerWorker": 2},
        collector={"framesPerBatch": 16, "totalFrames": 16, "maxFramesPerTraj": 3},
        groups=("learner",),
    )
    process = job.start()
    (batch,) = read_all(job)
    assert process.wait(SOON_S) == 0
    ends = [[False, False, True] * 3][0][:8]
    assert batch.data["next", "truncated"].squeeze(-1).tolist() == [ends] * 2
    assert batch.data["next", "done"].squeeze(-1).tolist() == [ends] * 2
    assert not batch.data["next", "terminated"].any()


@pytest.mark.probe("P-33")
def test_back_pressure_holds_the_worker_and_loses_nothing(rig: Callable[..., Any]) -> None:
    env = {"entrypoint": "worker_toys:Count", "kwargs": {"k": 10**9}, "envsPerWorker": 2}
    collector = {"framesPerBatch": 20, "totalFrames": 400}
    job = rig(env=env, collector=collector, max_unacked_frames=100, groups=("learner",))
    process = job.start()
    wait_until(lambda: job.control.read_progress().is_full)
    wait_until(lambda: job.control.read_progress().workers[0].state == "Backpressured")
    assert job.control.read_progress().counters.unacked_frames <= 120
    batches = read_all(job)
    assert process.wait(SOON_S) == 0
    assert [b.header.sequence for b in batches] == list(range(1, 21))
    roots = torch.cat([b.data["observation"][0].flatten() for b in batches])
    assert roots.tolist() == list(range(200))


def wait_until(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + SOON_S
    while not condition():
        assert time.monotonic() < until, "the condition did not come true"
        time.sleep(0.02)


@pytest.mark.probe("P-47")
def test_sigterm_drains(rig: Callable[..., Any]) -> None:
    job = rig(collector={"framesPerBatch": 20}, groups=("learner",))
    process = job.start()
    wait_until(lambda: job.control.read_progress().counters.batches > 3)
    children = psutil.Process(process.pid).children(recursive=True)
    assert children
    port = job.health_port(WorkerId("default", 0, 0))
    for path, code in (("readyz", 200), ("healthz", 200), ("other", 404)):
        assert httpx2.get(f"http://127.0.0.1:{port}/{path}", timeout=SOON_S).status_code == code
    process.send_signal(signal.SIGTERM)
    assert process.wait(SOON_S) == 143
    wait_until(lambda: all(is_gone(child.pid) for child in children))
    progress = job.control.read_progress()
    assert progress.workers[0].state == "Draining"
    assert progress.counters.frames == 20 * progress.counters.batches


@pytest.mark.probe("P-47")
def test_kill_leaves_no_child(rig: Callable[..., Any]) -> None:
    job = rig(collector={"framesPerBatch": 20}, groups=("learner",))
    process = job.start()
    wait_until(lambda: job.control.read_progress().counters.batches > 3)
    children = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    assert process.wait(SOON_S) == -9
    wait_until(lambda: all(is_gone(child.pid) for child in children))


@pytest.mark.probe("P-38")
def test_another_layout_stops_at_the_border(rig: Callable[..., Any]) -> None:
    job = rig(collector={"framesPerBatch": 20}, max_unacked_frames=40, groups=("learner",))
    job.start()
    wait_until(lambda: job.control.read_progress().counters.batches > 0)
    other = job.spec.spec.env.model_copy(update={"entrypoint": "worker_toys:Rng"})
    worker = WorkerId("default", 1, 0)
    assert job.start(worker, env=other).wait(SOON_S) == 64
    words = job.words(worker)
    assert words.startswith("LayoutMismatch")
    assert "observation: expected int64[1], found float64[2]" in words
    assert {b.index for b in job.control.read_progress().workers if b.frames} == {0}


def test_a_replacement_goes_on_with_its_slots_share(rig: Callable[..., Any]) -> None:
    """With `determinism: Strict` a worker appends its share exactly, whoever of its attempts made it."""
    job = rig(collector={"framesPerBatch": 20, "totalFrames": 200}, determinism="Strict", groups=("learner",))
    share = StrictShare(total_frames=100, init_random_frames=0)
    first = job.start(strict_share=share)
    wait_until(lambda: job.control.read_progress().counters.frames >= 40)
    first.kill()
    first.wait(SOON_S)
    second = job.start(WorkerId("default", 0, 1), strict_share=share)
    wait_until(lambda: job.control.read_progress().workers[0].state == "Finished")
    assert job.control.read_progress().counters.frames == 100
    assert second.poll() is None, "it waits for the others, whose frames are still missing"


def test_an_environment_that_raises_is_replaced_where_the_job_wants_that(rig: Callable[..., Any]) -> None:
    job = rig(
        env={
            "entrypoint": "worker_toys:Fault",
            "kwargs": {"how": "raise", "at": 3, "env": 1},
            "envsPerWorker": 2,
            "onError": "Restart",
        },
        collector={"framesPerBatch": 12, "totalFrames": 12},
        groups=("learner",),
    )
    process = job.start()
    (batch,) = read_all(job)
    assert process.wait(SOON_S) == 0
    valid = batch.data["next", "valid"].squeeze(-1).tolist()
    assert valid == [[True] * 6, [True, True, False] * 2]
    assert batch.data["next", "truncated"].squeeze(-1).tolist()[1] == [False, False, True] * 2
    assert len(set(batch.data["collector", "traj_ids"][1].tolist())) == 2
    assert batch.header.episodes.count == 0
    assert "environment 1 was replaced" in job.log()
