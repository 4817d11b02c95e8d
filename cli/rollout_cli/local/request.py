"""What `rolloutctl run` was asked for, checked as far as that is possible before anything is started.

Called by `run`. Reads files and looks at nothing else: everything that is wrong here costs a second and leaves nothing.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from rollout_api.auth import NoAuth
from rollout_api.settings import ApiSettings
from rollout_cli.errors import UsageError
from rollout_cli.local.learner import check_program
from rollout_cli.manifest import ManifestError, load_job, parse_change
from rollout_contract.errors import Fault
from rollout_contract.spec import RolloutJob, not_built
from rollout_stream.connection import ServerAddress

MAX_PORT = 65_535


@dataclass(frozen=True, slots=True)
class RunRequest:
    """A run that may be started. Paths are absolute."""

    job: RolloutJob
    code_dir: Path
    """The manifest's directory: on the workers' import path."""
    learner: Path | None
    run_dir: Path | None
    host: str
    port: int
    """0: any that is free."""
    redis: ServerAddress | None
    """None: an embedded server."""
    has_auth: bool


def request_of(arguments: argparse.Namespace) -> RunRequest:
    """The request that a command line means. UsageError (`ManifestError` with every fault) for what cannot be run."""
    changes = [parse_change(text) for text in arguments.set]
    if arguments.seed is not None:
        changes.append(("spec.seed", arguments.seed))
    job = load_job(arguments.manifest, changes)
    if faults := [*not_built(job.spec), *_not_local(job)]:
        raise ManifestError(str(arguments.manifest), faults)
    if arguments.learner is not None:
        check_program(arguments.learner)
    if not 0 <= arguments.port <= MAX_PORT:
        raise UsageError(f"--port {arguments.port}: a port is 1 to {MAX_PORT}, or 0 for any that is free")
    if arguments.no_auth:
        NoAuth().check(ApiSettings(host=arguments.host))
    return RunRequest(
        job=job,
        code_dir=arguments.manifest.resolve().parent,
        learner=arguments.learner.resolve() if arguments.learner else None,
        run_dir=arguments.run_dir,
        host=arguments.host,
        port=arguments.port,
        redis=_server_of(arguments.redis) if arguments.redis else None,
        has_auth=not arguments.no_auth,
    )


def _server_of(url: str) -> ServerAddress:
    try:
        address = ServerAddress.of(url)
    except ValueError as error:
        raise UsageError(f"--redis: {error}") from error
    if address.socket_path or address.database:
        raise UsageError(
            "--redis: workers are given a host and a port; a socket or a database of its own cannot be used"
        )
    return address


def _not_local(job: RolloutJob) -> list[Fault]:
    """What only a cluster has."""
    if job.spec.env.kwargs_from is None:
        return []
    return [
        Fault("spec.env.kwargsFrom", None, "a local run has no ConfigMaps: write the arguments to kwargs")
    ]
