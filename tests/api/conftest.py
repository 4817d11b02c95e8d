"""A gateway over a real Valkey server and a real job file: in process (`client`), and on a socket (`base_url`)."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import struct
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx2
import pytest
from data_servers import DataServer
from fastapi import FastAPI

from rollout_api import readiness
from rollout_api.app import create_app
from rollout_api.auth import TokenAuth
from rollout_api.serve import bind, serving
from rollout_api.settings import ApiSettings, Limits
from rollout_cli.local.job_file import JobFile
from rollout_cli.local.job_store import LocalStore
from rollout_contract.messages import Heartbeat, Layout
from rollout_contract.spec import RolloutJob, parse_manifest
from rollout_stream.aio import AsyncSession, Control
from rollout_stream.calls import JobCalls
from rollout_stream.settings import JobSettings

TOKEN = "test-token-0123456789abcdef"
REDIS_PASSWORD = "s3cr3t-probe-42"


async def until(is_so: Callable[[], Any], *, deadline_s: float = 60.0) -> None:
    """Wait for a condition (or for one that is awaited) with a deadline."""
    async with asyncio.timeout(deadline_s):
        while True:
            found = is_so()
            if await found if inspect.isawaitable(found) else found:
                return
            await asyncio.sleep(0.01)


@pytest.fixture(name="until")
def until_fixture() -> Any:
    return until


@contextlib.contextmanager
def running_redis() -> Iterator[DataServer]:
    with DataServer("--maxmemory-policy", "noeviction", password=REDIS_PASSWORD) as server:
        yield server


@pytest.fixture(scope="session")
def redis_server() -> Iterator[DataServer]:
    """One server for all tests; each test has a job, and so a prefix, of its own."""
    with running_redis() as server:
        yield server


@pytest.fixture
def own_redis() -> Iterator[DataServer]:
    """A server that the test may stop."""
    with running_redis() as server:
        yield server


@pytest.fixture
async def stream(redis_server: DataServer) -> AsyncIterator[AsyncSession]:
    async with AsyncSession.connect(
        redis_server.url, password=redis_server.password, patience_s=1.0
    ) as session:
        yield session


MANIFEST: dict[str, Any] = {
    "apiVersion": "rolloutjob.dev/v1alpha1",
    "kind": "RolloutJob",
    "metadata": {"name": "cartpole", "labels": {"team": "rl"}},
    "spec": {
        "env": {
            "entrypoint": "rollout_worker.envs:GymEnv",
            "kwargs": {"env_name": "CartPole-v1"},
            "envsPerWorker": 4,
        },
        "policy": {"entrypoint": "policy:make_policy"},
        "collector": {"framesPerBatch": 64, "totalFrames": 100000},
        "replicas": 2,
    },
}


def with_spec(**changes: Any) -> dict[str, Any]:
    """The manifest with other values in its spec; a value that is a mapping is merged."""
    document: dict[str, Any] = json.loads(json.dumps(MANIFEST))
    for key, value in changes.items():
        if isinstance(value, Mapping):
            document["spec"][key] = {**document["spec"].get(key, {}), **value}
        else:
            document["spec"][key] = value
    return document


@pytest.fixture
def make_manifest() -> Any:
    return with_spec


@pytest.fixture
def job_file(tmp_path: Path) -> JobFile:
    return JobFile(tmp_path)


@pytest.fixture
def store(job_file: JobFile) -> LocalStore:
    return LocalStore(job_file)


@pytest.fixture
def manifest() -> dict[str, Any]:
    """What the test's job is; tests override it to have another."""
    return with_spec()


@pytest.fixture
def job(job_file: JobFile, manifest: dict[str, Any]) -> RolloutJob:
    """A job in the store."""
    return parse_manifest(job_file.create(parse_manifest(manifest).to_document(), uid=str(uuid.uuid4())))


@pytest.fixture
async def control(stream: AsyncSession, job: RolloutJob) -> AsyncIterator[Control]:
    """The job's stream, opened as the reconcile loop does it."""
    control = Control(stream, job.ref)
    await control.open_job(JobSettings(uid=job.ref.uid, seed=7, total_frames=100_000, groups=("learner",)))
    yield control
    await control.delete()


@pytest.fixture
def limits() -> Limits:
    """Limits of the gateway, none of which this machine reaches by standing still; tests override them."""
    return Limits(live_timeout_s=60.0, request_s=60.0)


@pytest.fixture(autouse=True)
def patient_readiness(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check of a Redis that is there never takes too long, however busy this machine is."""
    monkeypatch.setattr(readiness, "CHECK_S", 60.0)


@pytest.fixture
def app(store: LocalStore, stream: AsyncSession, limits: Limits) -> FastAPI:
    return create_app(store=store, stream=stream, auth=TokenAuth(TOKEN), settings=ApiSettings(limits=limits))


@contextlib.asynccontextmanager
async def client_of(app: FastAPI, *, token: str | None = TOKEN) -> AsyncIterator[httpx2.AsyncClient]:
    headers = {"authorization": f"Bearer {token}"} if token else {}
    transport = httpx2.ASGITransport(app=app, raise_app_exceptions=False)
    async with (
        app.router.lifespan_context(app),
        httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000", headers=headers) as client,
    ):
        yield client


@pytest.fixture
async def client(app: FastAPI) -> AsyncIterator[httpx2.AsyncClient]:
    """A caller with the token, in process."""
    async with client_of(app) as client:
        yield client


@pytest.fixture
async def stranger(app: FastAPI) -> AsyncIterator[httpx2.AsyncClient]:
    """A caller without a token, in process."""
    async with client_of(app, token=None) as client:
        yield client


@pytest.fixture
async def base_url(app: FastAPI) -> AsyncIterator[str]:
    """The gateway on a socket."""
    async with serving(app, bind("127.0.0.1", 0), grace_s=2.0) as url:
        yield url


@pytest.fixture
def token() -> str:
    return TOKEN


@pytest.fixture
def path(job: RolloutJob) -> str:
    """The job's path in the interface."""
    return f"/v1/namespaces/default/rolloutjobs/{job.metadata.name}"


WEIGHTS = {"net.0.weight": ("F32", [4, 2]), "net.0.bias": ("F32", [2]), "count": ("I64", [])}
LAYOUT = Layout(
    {
        "net.0.weight": {"dtype": "float32", "shape": [4, 2]},
        "net.0.bias": {"dtype": "float32", "shape": [2]},
        "count": {"dtype": "int64", "shape": []},
    }
)
_SIZES = {"F32": 4, "I64": 8, "F64": 8, "BOOL": 1, "BF16": 2, "U8": 1}


def safetensors(tensors: Mapping[str, tuple[str, list[int]]], *, fill: int = 0, **extra: Any) -> bytes:
    """A safetensors file with these tensors; `extra` goes into the header as it is."""
    header: dict[str, Any] = dict(extra)
    body = b""
    for name, (dtype, shape) in tensors.items():
        size = _SIZES[dtype]
        for length in shape:
            size *= length
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(body), len(body) + size]}
        body += bytes([fill]) * size
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


@pytest.fixture
def make_weights() -> Any:
    """Makes a file that fits the job; `fill` tells files apart, `tensors` replaces what is in it."""

    def make(*, fill: int = 0, tensors: Mapping[str, tuple[str, list[int]]] = WEIGHTS, **extra: Any) -> bytes:
        return safetensors(tensors, fill=fill, **extra)

    return make


@pytest.fixture
async def declared(control: Control) -> Control:
    """The job's stream, after its first worker has said what weights look like."""
    await control.session.run(JobCalls(control._keys).declare("weights", LAYOUT))
    return control


async def beat(control: Control, **fields: Any) -> None:
    """A worker's heartbeat."""
    record = Heartbeat(
        **{
            "group": "default",
            "index": 0,
            "attempt": 0,
            "state": "Collecting",
            "started": time.time(),
            **fields,
        }
    )
    await control.session.run(JobCalls(control._keys).heartbeat(record))


@pytest.fixture
def send_beat() -> Any:
    return beat
