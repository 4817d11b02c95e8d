"""`rolloutctl get | weights | seed | suspend | resume | complete`: thin over the gateway's REST interface.

Called by `main`. Each command is one or two requests and a text for people; `get -o json` gives the gateway's own answer.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rollout_cli.client import CHUNK_BYTES, quoted
from rollout_cli.connection import Connection, connect
from rollout_cli.errors import Exit, UsageError

Row = Sequence[object]
PAGE_SIZE = 500


def get(arguments: argparse.Namespace) -> int:
    """List jobs, or show one with its workers."""
    connection = connect(arguments, os.environ)
    if arguments.name is None:
        jobs = _all_jobs(connection, everywhere=arguments.all_namespaces)
        _show(jobs, arguments.output, text=lambda: _table(_JOB_HEADINGS, map(_job_row, jobs)))
        return Exit.OK
    path = connection.job_path(arguments.name)
    if arguments.output != "text":
        _show(connection.client.get(path), arguments.output, text=str)
        return Exit.OK
    status, workers = connection.client.get(f"{path}/status"), connection.client.get(f"{path}/workers")
    print(_status_text(status))
    print(_table(_WORKER_HEADINGS, map(_worker_row, workers["items"])))
    return Exit.OK


def weights(arguments: argparse.Namespace) -> int:
    """List the policy's versions, download one, or upload one."""
    connection = connect(arguments, os.environ)
    path = f"{connection.job_path(arguments.name)}/weights"
    if arguments.get is not None:
        return _download(connection, path, arguments)
    if arguments.put is not None:
        return _upload(connection, path, arguments.put)
    answer = connection.client.get(path)
    rows = [
        (v["policyVersion"], v["sizeBytes"], v["digest"][:12], v["publishedAt"], v["publisher"], v["workers"])
        for v in answer["items"]
    ]
    print(_table(("VERSION", "BYTES", "SHA-256", "PUBLISHED", "BY", "WORKERS"), rows))
    return Exit.OK


def seed(arguments: argparse.Namespace) -> int:
    """Show the seed and its epoch, or set the seed."""
    connection = connect(arguments, os.environ)
    path = f"{connection.job_path(arguments.name)}/seed"
    client = connection.client
    answer = client.get(path) if arguments.seed is None else client.put(path, {"seed": arguments.seed})
    print(f"seed {answer['seed']}, epoch {answer['epoch']}")
    return Exit.OK


def suspend(arguments: argparse.Namespace) -> int:
    """Stop the workers, keep the job."""
    return _act(arguments, "suspend", "is being suspended")


def resume(arguments: argparse.Namespace) -> int:
    """Start the workers of a suspended job again."""
    return _act(arguments, "resume", "is being resumed")


def complete(arguments: argparse.Namespace) -> int:
    """End the job as Complete with the frames that it has."""
    return _act(arguments, "complete", "is being completed")


def _act(arguments: argparse.Namespace, action: str, words: str) -> int:
    connection = connect(arguments, os.environ)
    connection.client.post(f"{connection.job_path(arguments.name)}/{action}")
    print(f"{arguments.name} {words}")
    return Exit.OK


def _all_jobs(connection: Connection, *, everywhere: bool) -> list[dict[str, Any]]:
    path = "/v1/rolloutjobs"
    if not everywhere:
        path = f"/v1/namespaces/{quoted(connection.require_namespace())}/rolloutjobs"
    jobs: list[dict[str, Any]] = []
    token = ""
    while True:
        query: dict[str, str | int] = {"limit": PAGE_SIZE} | ({"continue": token} if token else {})
        page = connection.client.get(path, **query)
        jobs += page["items"]
        token = page["metadata"].get("continue") or ""
        if not token:
            return jobs


def _download(connection: Connection, path: str, arguments: argparse.Namespace) -> int:
    version = arguments.get
    target: Path = arguments.file or Path(f"{arguments.name}-{version}.safetensors")
    partial = target.with_name(f".{target.name}.part")
    try:
        with partial.open("wb") as file:
            connection.client.download(f"{path}/{quoted(version)}", file)
        partial.replace(target)
    except OSError as error:
        raise UsageError(f"cannot write {target}: {error.strerror or error}") from error
    finally:
        partial.unlink(missing_ok=True)
    print(f"{target}: version {version}, {target.stat().st_size} bytes")
    return Exit.OK


def _upload(connection: Connection, path: str, file_path: Path) -> int:
    try:
        with file_path.open("rb") as file:
            digest, size = hashlib.sha256(), 0
            while chunk := file.read(CHUNK_BYTES):
                digest.update(chunk)
                size += len(chunk)
            file.seek(0)
            headers = {
                "Content-Type": "application/octet-stream",
                "X-Checksum-Sha256": digest.hexdigest(),
            }
            answer = connection.client.upload(path, file, size, headers=headers)
    except OSError as error:
        raise UsageError(f"cannot read {file_path}: {error.strerror or error}") from error
    print(f"published version {answer['policyVersion']} ({answer['sizeBytes']} bytes)")
    return Exit.OK


_JOB_HEADINGS = ("NAMESPACE", "NAME", "STATE", "WORKERS", "FRAMES", "PERCENT", "FRAMES/S", "VERSION")
_WORKER_HEADINGS = ("WORKER", "ATTEMPT", "STATE", "FRAMES", "FRAMES/S", "VERSION", "SEEN", "LAST ERROR")


def _job_row(job: Mapping[str, Any]) -> Row:
    status = job.get("status") or {}
    progress = status.get("progress") or {}
    return (
        job["metadata"].get("namespace", ""),
        job["metadata"]["name"],
        status.get("state", "Pending"),
        status.get("readyWorkers", ""),
        progress.get("frames", 0),
        progress.get("percent", ""),
        progress.get("framesPerSecond", ""),
        (status.get("weights") or {}).get("latestVersion", ""),
    )


def _worker_row(worker: Mapping[str, Any]) -> Row:
    return (
        f"{worker['group']}-{worker['index']}",
        worker["attempt"],
        "Lost" if worker["isLost"] else worker["state"],
        worker["frames"],
        round(worker["framesPerSecond"]),
        worker["policyVersion"],
        f"{worker['lastSeenSeconds']:.0f} s ago",
        worker["lastError"].splitlines()[0] if worker["lastError"] else "",
    )


def _status_text(status: Mapping[str, Any]) -> str:
    lines = [f"{status['namespace']}/{status['name']}: {status.get('state') or 'Pending'}"]
    live = status.get("live")
    if live is None:
        lines.append(f"  no live numbers: {(status.get('liveError') or {}).get('detail', 'unknown')}")
    else:
        progress, versions = live["progress"], live["weights"]
        total = f" of {progress['totalFrames']}" if progress.get("totalFrames") else ""
        lines.append(
            f"  frames {progress['frames']}{total}, {progress['framesPerSecond']:.0f} frames per second"
        )
        if live.get("recentReturn") is not None:
            lines.append(f"  return {live['recentReturn']:.2f} (mean of the last 100 episodes)")
        lines.append(f"  policy version {versions['latestVersion']}, slowest worker {versions['lag']} behind")
    rows = [(c["type"], c["status"], c["reason"], c.get("message", "")) for c in status["conditions"]]
    return "\n".join(lines) + "\n" + _table(("CONDITION", "STATUS", "REASON", "MESSAGE"), rows)


def _show(answer: object, output: str, *, text: Any) -> None:
    match output:
        case "json":
            print(json.dumps(answer, indent=2))
        case "yaml":
            import yaml

            print(yaml.safe_dump(answer, sort_keys=False), end="")
        case _:
            print(text())


def _table(headings: Row, rows: Any) -> str:
    cells = [tuple(map(_cell, row)) for row in (headings, *rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(headings))]
    return "\n".join(
        "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in cells
    )


def _cell(value: object) -> str:
    return "" if value is None else str(value)
