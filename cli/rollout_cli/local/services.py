"""Everything that a local run starts, in order, and takes down again in the reverse: Redis, job, gateway, reconcile loop.

Called by `run`. Whatever fails on the way up takes down what was started before it. The learner is not among them: it
comes last and is `run`'s own.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import socket
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollout_api.app import create_app
from rollout_api.auth import Auth, NoAuth, TokenAuth, create_token_file
from rollout_api.serve import bind, serving
from rollout_api.settings import ApiSettings
from rollout_cli.errors import UsageError
from rollout_cli.local.cluster import REDIS_SECRET, LocalCluster
from rollout_cli.local.job_file import LOCK_NAME, JobFile
from rollout_cli.local.job_store import LocalStore
from rollout_cli.local.redis import EmbeddedRedis
from rollout_cli.local.redis_program import find_server
from rollout_cli.local.request import RunRequest
from rollout_cli.local.run_dir import GatewayRecord, RunDir, write_gateway, write_secret
from rollout_cli.local.watch import LOST_AFTER_S
from rollout_contract import podenv
from rollout_contract.errors import JobNotFound, StateLost, StreamUnavailable
from rollout_contract.podenv import HealthAddress, StreamAddress
from rollout_contract.spec import RedisSpec, RolloutJob, parse_manifest
from rollout_operator import reconcile
from rollout_operator.redis_streams import RedisStreams
from rollout_operator.settings import OperatorSettings
from rollout_stream.aio import AsyncSession, Control, check_server, find_job
from rollout_stream.connection import ServerAddress

OBSERVE_EVERY_S = 1.0
"""One job on one machine may be looked at more often than a cluster's thousands."""
WORKER_GRACE_S = 10
"""From SIGTERM to SIGKILL, for a worker of a local run."""
GATEWAY_GRACE_S = 2.0


@dataclass(frozen=True, slots=True)
class Services:
    """What runs. `tasks` end only by failing; a run that sees one end is over."""

    run_dir: RunDir
    job: RolloutJob
    job_file: JobFile
    address: ServerAddress
    control: Control
    url: str
    token: str | None
    server: str
    """The data plane's server, for people."""
    tasks: tuple[asyncio.Task[None], ...]


@asynccontextmanager
async def open_services(
    request: RunRequest, run_dir: RunDir, *, tell: Callable[[str], None]
) -> AsyncIterator[Services]:
    """Start everything; on the way out everything is gone. UsageError or StreamUnavailable if something does not start."""
    async with AsyncExitStack() as stack:
        sock = _bind(request.host, request.port)
        stack.callback(sock.close)
        address, server, embedded = await _open_redis(stack, request, run_dir)
        session = await stack.enter_async_context(AsyncSession(address))
        await _check(session, server)
        if embedded is None:
            await _check_alone(session, request.job)
        job_file, job = _create_job(stack, request, run_dir)
        url, token = await _serve(stack, sock, request, run_dir, job_file, session)
        write_gateway(run_dir, GatewayRecord(url, job.metadata.namespace, job.metadata.name, os.getpid()))
        stack.callback(run_dir.gateway_file.unlink, missing_ok=True)
        loop = await _reconcile(stack, request, run_dir, job_file, address, url)
        watch = [_task(stack, embedded.watch(tell), "redis")] if embedded else []
        services = Services(
            run_dir=run_dir,
            job=job,
            job_file=job_file,
            address=address,
            control=Control(session, job.ref),
            url=url,
            token=token,
            server=server,
            tasks=(loop, *watch),
        )
        variables = learner_environment(services)
        write_secret(run_dir.stream_file, "".join(f"{k}={shlex.quote(v)}\n" for k, v in variables.items()))
        stack.callback(run_dir.stream_file.unlink, missing_ok=True)
        yield services


def _bind(host: str, port: int) -> socket.socket:
    """The gateway's socket, before anything is started: a port in use costs nothing then."""
    try:
        return bind(host, port)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(
            f"the gateway cannot listen on {host}:{port}: {reason}; choose another --port"
        ) from error


async def _open_redis(
    stack: AsyncExitStack, request: RunRequest, run_dir: RunDir
) -> tuple[ServerAddress, str, EmbeddedRedis | None]:
    """The server's address, what it is, and the embedded one (None: it is somebody else's)."""
    if request.redis is not None:
        return request.redis, f"Redis at {request.redis}", None
    program = find_server()
    embedded = EmbeddedRedis(program, run_dir)
    stack.push_async_callback(embedded.stop)
    await embedded.start()
    return ServerAddress.of(embedded.url, password=embedded.password), str(program), embedded


async def _check(session: AsyncSession, server: str) -> None:
    info = await check_server(session)
    if info.problems:
        raise StreamUnavailable(f"{server} cannot hold a job's data: {'; '.join(info.problems)}")


async def _check_alone(session: AsyncSession, job: RolloutJob) -> None:
    """UsageError if somebody runs a job of this name on this server now: a learner would find that one, or this."""
    try:
        found = await find_job(session, job.metadata.namespace, job.metadata.name)
        progress = await Control(session, found).read_progress()
    except (JobNotFound, StateLost):
        return
    ages = [progress.time - worker.seen for worker in progress.workers]
    if not progress.control.ended and min(ages, default=LOST_AFTER_S) < LOST_AFTER_S:
        raise UsageError(
            f"job {found} is running on {session.address} already: a worker of it was seen {min(ages):.0f} s ago; "
            "stop it, or give this job another name"
        )


def _create_job(stack: AsyncExitStack, request: RunRequest, run_dir: RunDir) -> tuple[JobFile, RolloutJob]:
    """Store the job as the gateway and the reconcile loop will find it."""
    job_file = JobFile(run_dir.path)
    stored = job_file.create(for_local_run(request.job).to_document())
    stack.callback(_tidy, run_dir)
    return job_file, parse_manifest(stored)


def _tidy(run_dir: RunDir) -> None:
    """What only a living run needs."""
    (run_dir.path / LOCK_NAME).unlink(missing_ok=True)
    with suppress(OSError):  # not there, or something that a worker left is in it
        (run_dir.path / "pods").rmdir()


def for_local_run(job: RolloutJob) -> RolloutJob:
    """The job without the address of its cluster's server: a local run has its own, or the one of `--redis`."""
    redis = job.spec.redis
    own = RedisSpec(
        key_ttl_seconds_after_finished=redis.key_ttl_seconds_after_finished,
        cleanup_policy=redis.cleanup_policy,
    )
    return job.model_copy(update={"spec": job.spec.model_copy(update={"redis": own})})


async def _serve(
    stack: AsyncExitStack,
    sock: socket.socket,
    request: RunRequest,
    run_dir: RunDir,
    job_file: JobFile,
    session: AsyncSession,
) -> tuple[str, str | None]:
    """Start the gateway; its URL and token."""
    auth: Auth = NoAuth()
    token = None
    if request.has_auth:
        token = create_token_file(run_dir.token_file)
        stack.callback(run_dir.token_file.unlink, missing_ok=True)
        auth = TokenAuth(token)
    app = create_app(
        store=LocalStore(job_file), stream=session, auth=auth, settings=ApiSettings(host=request.host)
    )
    url = await stack.enter_async_context(serving(app, sock, grace_s=GATEWAY_GRACE_S))
    return url, token


async def _reconcile(
    stack: AsyncExitStack,
    request: RunRequest,
    run_dir: RunDir,
    job_file: JobFile,
    address: ServerAddress,
    url: str,
) -> asyncio.Task[None]:
    """Start the operator over processes."""
    settings = OperatorSettings(
        redis=_public(address),
        redis_secret=REDIS_SECRET if address.password else None,
        worker_command=(sys.executable, "-m", "rollout_worker"),
        code_dirs=(str(request.code_dir),),
        default_cpus=os.cpu_count() or 1,
        health=HealthAddress(host="127.0.0.1", port=0),
        grace_s=WORKER_GRACE_S,
        gateway_url=url,
        observe_interval_s=OBSERVE_EVERY_S,
        progress_interval_s=OBSERVE_EVERY_S,
        trust_unknown_eviction=True,
    )
    cluster = LocalCluster(job_file, run_dir.path, password=address.password, work_dir=Path.cwd())
    stack.push_async_callback(cluster.close)
    streams = RedisStreams(settings, reach=lambda _: address)
    stack.push_async_callback(streams.close)
    reconciler = reconcile.Reconciler(cluster, streams, settings)
    return _task(stack, reconcile.run(reconciler), "reconcile")


def _task(stack: AsyncExitStack, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
    """A task that is cancelled and awaited on the way out."""
    task = asyncio.create_task(work, name=name)

    async def end() -> None:
        task.cancel()
        with suppress(asyncio.CancelledError, Exception):  # whoever watches the task has seen its error
            await task

    stack.push_async_callback(end)
    return task


def learner_environment(services: Services) -> dict[str, str]:
    """The variables by which a learner finds its stream, its job, the gateway and its directory."""
    found = {
        podenv.STREAM_URL: _public(services.address).url,
        podenv.JOB: str(services.job.ref),
        podenv.GATEWAY_URL: services.url,
        podenv.RUN_DIR: str(services.run_dir.path),
    }
    if services.address.password:
        found[podenv.REDIS_PASSWORD] = services.address.password
    if services.token:
        found[podenv.TOKEN] = services.token
    return found


def _public(address: ServerAddress) -> StreamAddress:
    """The address as workers and learners get it: the password comes apart."""
    return StreamAddress(host=address.host, port=address.port, username=address.username, tls=address.tls)
