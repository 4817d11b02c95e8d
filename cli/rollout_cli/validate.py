"""`rolloutctl validate`: says everything that is wrong with manifests, before anything is started.

Called by `main`. Prints what is valid on stdout and every fault on stderr.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from rollout_cli.errors import Exit, UsageError
from rollout_cli.manifest import ManifestError, load_job
from rollout_contract.errors import Fault, RolloutError
from rollout_contract.spec import RolloutJob, not_built

IMPORT_TIMEOUT_S = 120.0
"""Importing torch from a cold disk takes tens of seconds; a module that takes longer would miss the startup deadline."""

_IMPORT_CHECK = """
import sys
from rollout_contract.errors import EntrypointError
from rollout_worker.entrypoints import add_code_dirs, resolve
add_code_dirs([sys.argv[1]])
try:
    resolve(sys.argv[2], field=sys.argv[3])
except EntrypointError as error:
    sys.exit(str(error))
"""


def command(arguments: argparse.Namespace) -> int:
    """Check every file; 0 if all are right, otherwise 2."""
    result = Exit.OK
    for path in arguments.manifest:
        try:
            job = check(path, imports=arguments.imports)
        except RolloutError as error:
            print(f"rolloutctl: {error}", file=sys.stderr)
            result = Exit.USAGE
        else:
            print(f"{path}: {job.kind} {job.metadata.name} is valid")
    return result


def check(path: Path, *, imports: bool = False) -> RolloutJob:
    """The job of a manifest that this version can run. ManifestError with every fault."""
    job = load_job(path)
    faults = list(not_built(job.spec))
    if imports:
        faults += import_faults(job, path.resolve().parent)
    if faults:
        raise ManifestError(str(path), faults)
    return job


def import_faults(job: RolloutJob, directory: Path) -> list[Fault]:
    """What is wrong with the job's entrypoints, each imported in a fresh interpreter with `directory` on the path."""
    entrypoints = {
        "spec.env.entrypoint": job.spec.env.entrypoint,
        "spec.policy.entrypoint": job.spec.policy.entrypoint,
    }
    found = []
    for path, entrypoint in entrypoints.items():
        problem = _import_problem(path, entrypoint, directory)
        if problem:
            found.append(Fault(path, entrypoint, problem))
    return found


def _import_problem(field: str, entrypoint: str, directory: Path) -> str | None:
    try:
        done = subprocess.run(
            [sys.executable, "-c", _IMPORT_CHECK, str(directory), entrypoint, field],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=IMPORT_TIMEOUT_S,
            check=False,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        )
    except subprocess.TimeoutExpired:
        return f"the import did not end within {IMPORT_TIMEOUT_S:.0f} s"
    except OSError as error:
        raise UsageError(f"cannot start {sys.executable}: {error.strerror or error}") from error
    if done.returncode == 0:
        return None
    lines = done.stderr.rstrip().splitlines() or [f"the import ended with exit code {done.returncode}"]
    return "\n      ".join(lines)
