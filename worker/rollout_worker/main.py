"""The worker program: builds everything once, runs the loop, ends with a code and last words.

The only place that builds things. Order: the children start first and make their environments while this process loads
torch and the policy; what can be wrong with the job is found before the first frame.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

from rollout_contract import podenv
from rollout_contract.environ import EnvironReader
from rollout_contract.errors import ConfigurationError, SpecError
from rollout_contract.exits import ExitCode
from rollout_contract.logs import set_up_logs
from rollout_contract.podenv import WorkerDocument
from rollout_worker.entrypoints import add_code_dirs
from rollout_worker.health import Vitals, serve_health
from rollout_worker.journal import start_words
from rollout_worker.last_words import exit_code_of, leave, text_of
from rollout_worker.shutdown import StopRequest, stop_on_signals

if TYPE_CHECKING:
    from rollout_stream.writer import StreamWriter
    from rollout_worker.envs.vector import VectorEnv
    from rollout_worker.loop import WorkerLoop

log = logging.getLogger("rollout_worker")

_SILENT_EXTRA_S = 60.0
"""How much longer than one step of an environment the loop may be silent before the health endpoint says so."""
_DEFAULT_LOG = "/dev/termination-log"


def main(arguments: Sequence[str] = ()) -> int:
    """Run the worker of this process' environment; its exit code (see `exits`). Takes no arguments, and says so."""
    faulthandler.enable()
    words_path = os.environ.get(
        podenv.TERMINATION_LOG, _DEFAULT_LOG if os.path.exists(_DEFAULT_LOG) else None
    )
    secrets = (podenv.redis_password(os.environ) or "",)
    name = "?"
    try:
        _set_up_logs(os.environ)
        document = podenv.from_env(os.environ)
        name = str(document.worker)
        if arguments:
            raise ConfigurationError(
                f"the worker takes no arguments, {len(arguments)} came: all it needs is in the job's spec. "
                "Remove args from the container of the template"
            )
        _set_up_logs(os.environ, document)
        log.info("%s", start_words(document))
        return _run(document, os.environ)
    except Exception as error:
        code = exit_code_of(error)
        words = text_of(error, worker=name, secrets=secrets)
        leave(words_path, words)
        shown = "".join(traceback.format_exception(error))
        for secret in filter(None, secrets):
            shown = shown.replace(secret, "***")
        log.error("worker %s ends with code %d\n%s\n%s", name, code, shown.rstrip(), error)
        return code


def _set_up_logs(environ: Mapping[str, str], document: WorkerDocument | None = None) -> None:
    """As the operator's settings say, which it hands on; lines for people where nobody said anything. SpecError."""
    read = EnvironReader(environ)
    level, as_json = read.log_level(), read.logs_as_json(default=False)
    fields = {} if document is None else {"job": str(document.job), "worker": str(document.worker)}
    set_up_logs(level=level, as_json=as_json, quiet=_QUIET_LOGGERS, fields=fields)
    if read.faults:
        raise SpecError(read.faults)


_QUIET_LOGGERS = ("asyncio", "redis", "urllib3", "matplotlib", "numba")
"""Loggers of libraries that tell of each step of theirs at DEBUG."""


def _run(document: WorkerDocument, environ: Mapping[str, str]) -> ExitCode:
    vitals = Vitals(silent_limit_s=document.env.step_timeout_seconds + _SILENT_EXTRA_S)
    stop = StopRequest(grace_s=document.grace_seconds)
    add_code_dirs(document.code_dirs)
    with ExitStack() as stack:
        stack.enter_context(stop_on_signals(stop))
        stack.enter_context(serve_health(document.health, vitals, port_file=environ.get(podenv.HEALTH_FILE)))
        envs = stack.enter_context(_open_envs(document, environ))
        finished = _work(document, environ, envs, vitals, stop)
    return ExitCode.FINISHED if finished else ExitCode.DRAINED


def _open_envs(document: WorkerDocument, environ: Mapping[str, str]) -> VectorEnv:
    from rollout_contract.spec import EnvBackend, OnError
    from rollout_worker.env_kwargs import env_kwargs
    from rollout_worker.envs.opening import open_envs

    env = document.env
    return open_envs(
        env.entrypoint,
        kwargs=env_kwargs(document, environ),
        num_envs=env.envs_per_worker,
        num_steps=1,
        num_blocks=1,
        num_processes=0 if env.backend is EnvBackend.SERIAL else document.processes,
        max_frames_per_traj=document.collector.max_frames_per_traj,
        first_env_index=document.first_env_index,
        step_timeout_s=env.step_timeout_seconds,
        restarts=env.on_error is OnError.RESTART,
    )


def _work(
    document: WorkerDocument, environ: Mapping[str, str], envs: VectorEnv, vitals: Vitals, stop: StopRequest
) -> bool:
    """Connect, build policy and collector, run the loop. Whether the job's frames are complete."""
    from rollout_stream.writer import StreamWriter
    from rollout_worker.assembly import open_collector, open_seeder
    from rollout_worker.heartbeats import Pulse
    from rollout_worker.layouts import declare_layouts
    from rollout_worker.loop import WorkerLoop
    from rollout_worker.weights import open_loader

    redis = document.redis
    writer = StreamWriter.connect(
        redis.url,
        job=document.job,
        worker=document.worker,
        password=podenv.redis_password(environ),
        ca_file=redis.ca_file,
        stop=stop,
    )
    with writer:
        collector, policy = open_collector(document, envs, stop)
        declare_layouts(writer, envs.layout, policy)
        pulse = Pulse(document, node=environ.get(podenv.NODE_NAME, ""), writer=writer)
        loop = WorkerLoop(
            document,
            writer=writer,
            collector=collector,
            loader=open_loader(document, writer, policy),
            seeder=open_seeder(document),
            vitals=vitals,
            stop=stop,
            beat=pulse.beat,
            restarts=_restarts_of(envs),
            appended_before=_appended_before(document, writer),
        )
        with pulse.kept(lambda: loop.standing), loop.journal.kept():
            return _run_told(loop, stop)


def _run_told(loop: WorkerLoop, stop: StopRequest) -> bool:
    """Run the loop, and say in the log how it ended."""
    try:
        finished = loop.run()
    except Exception as error:
        loop.journal.ended(f"ends by {type(error).__name__}")
        raise
    number = stop.signal_number
    drained = f"drained on {signal.Signals(number).name if number is not None else 'request'}"
    loop.journal.ended("finished, the job's frames are complete" if finished else drained)
    return finished


def _restarts_of(envs: VectorEnv) -> Callable[[], int]:
    """Counts environments that were replaced; where the environments are closed by now, as many as were known before."""
    known = 0

    def count() -> int:
        nonlocal known
        with suppress(RuntimeError):
            known = sum(envs.restarts)
        return known

    return count


def _appended_before(document: WorkerDocument, writer: StreamWriter) -> int:
    """What earlier attempts have appended of this worker's share; asked for only where there are shares."""
    from rollout_stream.control import Control

    if document.strict_share is None:
        return 0
    counters = Control(writer.session, document.job).read_progress().worker_counters
    return counters[document.worker.slot].frames if document.worker.slot in counters else 0
