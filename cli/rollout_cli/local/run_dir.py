"""A run's directory: where it is, who owns it, and what lies in it.

Made by `run` before anything is started; found again by the commands that talk to a run. One run at a time owns a
directory, and one run of a job those directories that are counted up (`runs/<job>-<n>`): both by file locks, which end
with the process that holds them.

    runs/cartpole-1/
        run.json       when, how and with which versions it was started
        job.json       the job: spec and status (`job_file`)
        gateway.json   where the gateway listens, which job, which process
        token          the gateway's token, mode 600
        stream.env     variables by which other readers find the job's stream, mode 600
        logs/          learner.log, redis.log, one file for every worker
        result.json    what the learner wants to be shown at the end (it may write one)
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from rollout_cli.errors import UsageError

DEFAULT_BASE = Path("runs")
"""Where runs without `--run-dir` go, seen from the working directory."""
_LOCK = ".lock"


@dataclass(frozen=True, slots=True)
class RunDir:
    """The directory of one run. `path` is absolute."""

    path: Path

    @property
    def logs(self) -> Path:
        """Directory of all logs."""
        return self.path / "logs"

    @property
    def job_file(self) -> Path:
        """The job's spec and status."""
        return self.path / "job.json"

    @property
    def record_file(self) -> Path:
        """How the run was started; never written again, so its time orders the runs."""
        return self.path / "run.json"

    @property
    def has_begun(self) -> bool:
        """Whether a run was started here, now or before."""
        return self.record_file.exists()

    @property
    def token_file(self) -> Path:
        """The gateway's token, mode 600; missing with `--no-auth`."""
        return self.path / "token"

    @property
    def stream_file(self) -> Path:
        """Variables for a shell, by which other readers join (a notebook, a second group); there while the run lives."""
        return self.path / "stream.env"

    @property
    def gateway_file(self) -> Path:
        """Where the gateway listens (`GatewayRecord`); there while the run lives."""
        return self.path / "gateway.json"

    @property
    def redis(self) -> Path:
        """Configuration and data of the embedded server; gone after an orderly end."""
        return self.path / "redis"

    @property
    def result_file(self) -> Path:
        """What the learner wants to be shown at the end."""
        return self.path / "result.json"


@dataclass(frozen=True, slots=True)
class GatewayRecord:
    """How a run's gateway is found again."""

    url: str
    namespace: str
    name: str
    pid: int


@contextmanager
def open_run_dir(chosen: Path | None, job_name: str, *, base: Path = DEFAULT_BASE) -> Iterator[RunDir]:
    """A new, locked directory for a run of this job: `chosen`, or the next free `<base>/<job>-<n>`.

    UsageError if it cannot be written, holds an earlier run, or another run has it. If nothing has begun when the body
    ends (`write_record` was not called), what was made here is removed again.
    """
    with ExitStack() as stack:
        try:
            if chosen is None:
                base.mkdir(parents=True, exist_ok=True)
                stack.enter_context(
                    _locked(base / f".{job_name}{_LOCK}", f"job {job_name} is running already")
                )
                path = _next_free(base, job_name)
            else:
                path = chosen
            path = path.absolute()
            was_there = path.exists()
            path.mkdir(parents=True, exist_ok=True)
            stack.callback(_remove_unused, path, was_there)
            stack.enter_context(_locked(path / _LOCK, f"the run directory {path} is in use"))
            run = RunDir(path)
            if run.has_begun:
                raise UsageError(
                    f"{path} holds an earlier run: name another directory with --run-dir, or remove this one"
                )
            run.logs.mkdir(exist_ok=True)
        except OSError as error:
            shown = chosen or base
            raise UsageError(
                f"the run directory {shown} cannot be written: {error.strerror or error}; name another with --run-dir"
            ) from error
        yield run


def write_record(run: RunDir, record: Mapping[str, object]) -> None:
    """Keep how the run was started: from here on the directory is not removed."""
    run.record_file.write_text(json.dumps(record, indent=2) + "\n")


def write_gateway(run: RunDir, record: GatewayRecord) -> None:
    """Say where the gateway listens, for the commands that talk to this run."""
    text = json.dumps(
        {"url": record.url, "namespace": record.namespace, "name": record.name, "pid": record.pid}
    )
    temporary = run.gateway_file.with_suffix(".tmp")
    temporary.write_text(text + "\n")
    temporary.replace(run.gateway_file)


def read_gateway(run: RunDir) -> GatewayRecord:
    """What `write_gateway` wrote. UsageError if this is no run, or one whose gateway has ended."""
    try:
        record = GatewayRecord(**json.loads(run.gateway_file.read_text()))
    except FileNotFoundError as error:
        state = "has ended: its gateway is gone" if run.has_begun else "holds no run"
        raise UsageError(f"{run.path} {state}") from error
    except (OSError, ValueError, TypeError) as error:
        raise UsageError(f"{run.gateway_file} cannot be read: {error}") from error
    if not _is_alive(record.pid):
        raise UsageError(f"the run in {run.path} was killed (process {record.pid}): its gateway is gone")
    return record


def write_secret(path: Path, text: str) -> None:
    """Write a file that only this user may read (mode 600 from its first byte on)."""
    with suppress(FileNotFoundError):
        path.unlink()
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)


def newest_run(base: Path = DEFAULT_BASE, *, is_live: bool = False) -> RunDir:
    """The run under `base` that was started last (`is_live`: of those whose gateway listens). UsageError: none."""
    runs = [RunDir(p.parent.absolute()) for p in base.glob("*/run.json")]
    if is_live:
        runs = [run for run in runs if run.gateway_file.exists()]
    if not runs:
        kind = "running job" if is_live else "run"
        raise UsageError(f"there is no {kind} under {base}: name one with --run-dir, or a gateway with --url")
    return max(runs, key=lambda run: run.record_file.stat().st_mtime_ns)


def _next_free(base: Path, job_name: str) -> Path:
    pattern = re.compile(rf"{re.escape(job_name)}-(\d+)")
    taken = [int(m[1]) for p in base.iterdir() if (m := pattern.fullmatch(p.name))]
    return base / f"{job_name}-{max(taken, default=0) + 1}"


@contextmanager
def _locked(path: Path, problem: str) -> Iterator[None]:
    """Hold a file lock. The file is removed at the end, so whoever waits for it looks again at what it has locked."""
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            owner = os.pread(fd, 64, 0).decode(errors="replace").strip()
            os.close(fd)
            raise UsageError(
                f"{problem} (process {owner or 'unknown'}): stop it first, or use --run-dir"
            ) from error
        if _is_same_file(fd, path):
            break
        os.close(fd)  # its last owner removed the file between our open and our lock
    try:
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(fd)


def _is_same_file(fd: int, path: Path) -> bool:
    try:
        there = path.stat()
    except FileNotFoundError:
        return False
    ours = os.fstat(fd)
    return (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino)


def _remove_unused(path: Path, was_there: bool) -> None:
    """Remove a directory in which no run began: one that was made here whole, otherwise only what is empty."""
    run = RunDir(path)
    if run.has_begun:
        return
    for file in (run.job_file, run.token_file, run.stream_file, *run.logs.glob("*.log")):
        file.unlink(missing_ok=True)
    with suppress(OSError):  # somebody else's files are in it: they stay
        run.logs.rmdir()
        if not was_there:
            path.rmdir()


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
