"""A worker under test: the real program in a process of its own, over a real server, with toy environments."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from data_servers import DataServer

from rollout_contract import podenv
from rollout_contract.names import JobRef, WorkerId
from rollout_contract.podenv import HealthAddress, StreamAddress, WorkerDocument
from rollout_contract.spec import Device, RolloutJob, parse_manifest
from rollout_stream.control import Control
from rollout_stream.settings import JobSettings, StreamLimits

CODE = Path(__file__).parent / "code"
PASSWORD = "s3cr3t-probe-42"


@pytest.fixture(scope="session")
def server() -> Iterator[DataServer]:
    """One server for all tests; each has a job of its own."""
    with DataServer("--maxmemory-policy", "noeviction", password=PASSWORD) as started:
        yield started


def manifest(**spec: Any) -> RolloutJob:
    """A small job; `spec` replaces whole parts."""
    document = {
        "apiVersion": "rolloutjob.dev/v1alpha1",
        "kind": "RolloutJob",
        "metadata": {"name": "toy"},
        "spec": {
            "env": {"entrypoint": "worker_toys:Count", "envsPerWorker": 4},
            "policy": {"entrypoint": "worker_toys:make_linear"},
            "collector": {"framesPerBatch": 64, "totalFrames": 640},
            **spec,
        },
    }
    return parse_manifest(document)


@dataclass
class Rig:
    """A job in the server, and workers of it."""

    server: DataServer
    job: JobRef
    spec: RolloutJob
    directory: Path
    seed: int
    control: Control
    processes: list[subprocess.Popen[str]] = field(default_factory=list)

    def words(self, worker: WorkerId) -> str:
        """The worker's termination message."""
        return (self.directory / f"{worker}.words").read_text()

    def words_of_first(self) -> str:
        """The termination message of the first attempt of worker 0."""
        return self.words(WorkerId("default", 0, 0))

    def address(self, **changes: Any) -> StreamAddress:
        """The server's address, with changes."""
        return StreamAddress(host="127.0.0.1", port=self.server.port).model_copy(update=changes)

    def health_port(self, worker: WorkerId) -> int:
        return int((self.directory / f"{worker}.port").read_text())

    def start(self, worker: WorkerId | None = None, **changes: Any) -> subprocess.Popen[str]:
        """Start a worker's process; standard error goes to `<worker>.log`."""
        worker = worker or WorkerId("default", 0, 0)
        spec = self.spec.spec
        document = WorkerDocument(
            namespace=self.job.namespace,
            name=self.job.name,
            uid=self.job.uid,
            group=worker.group,
            group_number=0,
            index=worker.index,
            attempt=worker.attempt,
            first_env_index=worker.index * spec.env.envs_per_worker,
            seed=self.seed,
            env=spec.env,
            policy=spec.policy,
            collector=spec.collector,
            stream=spec.stream,
            weights=spec.weights,
            determinism=spec.determinism,
            device=Device.CPU,
            processes=spec.env.processes or 2,
            redis=StreamAddress(host="127.0.0.1", port=self.server.port),
            health=HealthAddress(host="127.0.0.1", port=0),
            code_dirs=(str(CODE),),
        ).model_copy(update=changes)
        env = {
            **os.environ,
            **podenv.to_env(document),
            podenv.REDIS_PASSWORD: PASSWORD,
            podenv.TERMINATION_LOG: str(self.directory / f"{worker}.words"),
            podenv.HEALTH_FILE: str(self.directory / f"{worker}.port"),
        }
        with (self.directory / f"{worker}.log").open("w") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "rollout_worker"],
                env=env,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        self.processes.append(process)
        return process

    def log(self, worker: WorkerId | None = None) -> str:
        return (self.directory / f"{worker or WorkerId('default', 0, 0)}.log").read_text()


@pytest.fixture
def rig(server: DataServer, tmp_path: Path) -> Iterator[Callable[..., Rig]]:
    """`rig(**spec, seed=…, groups=…)`: a new job, opened in the server. Workers left running are killed."""
    made: list[Rig] = []

    def make(
        *, seed: int = 7, groups: tuple[str, ...] = (), max_unacked_frames: int | None = None, **spec: Any
    ) -> Rig:
        parsed = manifest(**spec)
        job = JobRef("default", "toy", str(uuid.uuid4()))
        control = Control.connect(server.url, job=job, password=PASSWORD)
        collector = parsed.spec.collector
        settings = JobSettings(
            uid=job.uid,
            seed=seed,
            total_frames=collector.total_frames,
            init_random_frames=collector.init_random_frames,
            groups=groups,
            limits=StreamLimits(
                max_unacked_frames=max_unacked_frames,
                max_staleness=parsed.spec.weights.max_staleness,
                on_stale=parsed.spec.weights.on_stale.value,
            ),
        )
        control.open_job(settings)
        directory = tmp_path / job.uid8
        directory.mkdir()
        made.append(Rig(server, job, parsed, directory, seed, control))
        return made[-1]

    yield make
    for each in made:
        for process in each.processes:
            if process.poll() is None:
                process.kill()
            process.wait(60)
        each.control.delete()
        each.control.close()
