"""Starts child processes through multiprocessing, with the three start methods, as cheaply as each allows.

What is special to environments' children: spawn needs neither the resource tracker's process nor, where
nothing of the user's script is needed, an import of that script; numeric libraries are told their number of
threads before they load; a script without a main guard ends with one sentence in the parent.
"""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from multiprocessing import context, popen_spawn_posix, process, reduction, spawn, util
from typing import Any

from rollout_contract.errors import ConfigurationError

START_METHODS = ("spawn", "fork", "forkserver")

PROCESS_PREFIX = "rollout-env"
"""Start of the children's process names."""

NO_MAIN_GUARD = 83
"""Exit code of a child whose import of the user's script tried to start environments of its own."""

MAIN_GUARD = (
    "this script starts environments at module level, and every child process imports the script again. "
    'Put what starts them under\n\n    if __name__ == "__main__":\n'
)

THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)

_starting = threading.Lock()


def _forget_starting() -> None:
    """A forked child is born while its parent holds the lock; it may start children of its own."""
    global _starting
    _starting = threading.Lock()


os.register_at_fork(after_in_child=_forget_starting)


class Descriptor:
    """A file descriptor among a child's arguments: inherited by fork as it is, passed on by spawn and forkserver."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __reduce__(self) -> tuple[Any, tuple[Any]]:
        return _received, (reduction.DupFd(self.fd),)


def _received(handle: Any) -> Descriptor:
    return Descriptor(handle.detach())


_util: Any = util
"""multiprocessing's helpers; the type stubs know only some of them."""


class _SpawnPopen(popen_spawn_posix.Popen):
    """A fresh interpreter, without a resource tracker; the script is imported only where the process asks for it."""

    _fds: list[int]

    def _launch(self, process_obj: Any) -> None:
        had_default = multiprocessing.get_start_method(allow_none=True) is not None
        preparation = spawn.get_preparation_data(process_obj.name)
        if not had_default:
            preparation.pop("start_method")
        if not process_obj.imports_main:
            preparation.pop("init_main_from_name", None)
            preparation.pop("init_main_from_path", None)
        payload = io.BytesIO()
        context.set_spawning_popen(self)
        try:
            reduction.dump(preparation, payload)
            reduction.dump(process_obj, payload)
        finally:
            context.set_spawning_popen(None)
        self._exec(payload.getbuffer())

    def _exec(self, payload: memoryview) -> None:
        sentinel, held_by_child = os.pipe()
        read_by_child, feed = os.pipe()
        self.sentinel = sentinel
        self.finalizer = _util.Finalize(self, _util.close_fds, (sentinel, feed))
        try:
            command = spawn.get_command_line(pipe_handle=read_by_child)
            passed = [*self._fds, read_by_child, held_by_child]
            self.pid = _util.spawnv_passfds(spawn.get_executable(), command, passed)
        finally:
            os.close(read_by_child)
            os.close(held_by_child)
        with contextlib.suppress(BrokenPipeError), open(feed, "wb", closefd=False) as stream:
            stream.write(payload)


class _SpawnProcess(context.SpawnProcess):
    imports_main = True

    @staticmethod
    def _Popen(process_obj: Any) -> Any:  # noqa: N802 (multiprocessing's name)
        return _SpawnPopen(process_obj)


class Launcher:
    """Makes and starts processes with one start method."""

    def __init__(self, start_method: str, *, imports_main: bool, daemon: bool, num_threads: int) -> None:
        self._start_method = start_method
        self._context: Any = multiprocessing.get_context(start_method)
        self._imports_main = imports_main
        self._daemon = daemon
        self._num_threads = num_threads

    @property
    def needs_lifeline(self) -> bool:
        """Whether the kernel's death signal of a child would speak of another than this process: see `orphans`."""
        return self._start_method == "forkserver" or threading.current_thread() is not threading.main_thread()

    @property
    def is_inherited(self) -> bool:
        """Whether a child holds all of this process' descriptors."""
        return self._start_method == "fork"

    def start(self, target: Callable[[Any], None], argument: Any, *, name: str) -> Any:
        """Start one process. Its sentinel, pid and exit code are multiprocessing's."""
        refuse_import_of_main()
        kwargs: dict[str, Any] = {"target": target, "args": (argument,), "name": name, "daemon": self._daemon}
        if self._start_method == "spawn":
            child: Any = _SpawnProcess(**kwargs)
            child.imports_main = self._imports_main
        else:
            child = self._context.Process(**kwargs)
        if self._start_method == "forkserver":
            _require_a_place_for_sockets()
            self._context.set_forkserver_preload(["rollout_worker.envs.child"])
        with (
            _starting,
            _threads_of_children(self._num_threads),
            _unchanged_default(),
            _as_no_daemon(),
            _real_main(),
        ):
            child.start()
        return child


def _require_a_place_for_sockets() -> None:
    """The server of forkserver listens at a socket in the temporary directory. Raises ConfigurationError for want of one."""
    try:
        tempfile.gettempdir()
    except FileNotFoundError as error:
        raise ConfigurationError(
            f"the start method 'forkserver' needs a directory that can be written to: {error.strerror}. Let the variable "
            "TMPDIR name one, or use 'spawn' or 'fork', which need none."
        ) from error


@contextlib.contextmanager
def _unchanged_default() -> Iterator[None]:
    """Starting a process makes multiprocessing settle on a default start method; that choice stays the user's."""
    before = multiprocessing.get_start_method(allow_none=True)
    try:
        yield
    finally:
        if before is None:
            multiprocessing.set_start_method(None, force=True)


@contextlib.contextmanager
def _real_main() -> Iterator[None]:
    """A script that was read from standard input has a file's name and no file: children must not look for it."""
    main = sys.modules.get("__main__")
    path = getattr(main, "__file__", None)
    if main is None or path is None or os.path.exists(path):
        yield
        return
    del main.__file__
    try:
        yield
    finally:
        main.__file__ = path


@contextlib.contextmanager
def _as_no_daemon() -> Iterator[None]:
    """multiprocessing refuses children to daemons, because nobody would end them; ours end with their parent.

    Only a daemon that `daemon=True` made of an environment's own process stays without.
    """
    current = process.current_process()
    config: dict[str, Any] = getattr(current, "_config", {})
    if not config.get("daemon") or current.name.startswith(PROCESS_PREFIX):
        yield
        return
    config["daemon"] = False
    try:
        yield
    finally:
        config["daemon"] = True


@contextlib.contextmanager
def _threads_of_children(num_threads: int) -> Iterator[None]:
    """The environment of a process that starts within: the thread variables, set in passing."""
    before = {name: os.environ.get(name) for name in THREAD_VARIABLES}
    os.environ.update(dict.fromkeys(THREAD_VARIABLES, str(num_threads)))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def refuse_import_of_main() -> None:
    """Refuse to start environments while multiprocessing imports the user's script into a child.

    A child of ours ends without a word, because its parent knows the exit code; elsewhere this is a
    RuntimeError.
    """
    current = process.current_process()
    if not getattr(current, "_inheriting", False):
        return
    if current.name.startswith(PROCESS_PREFIX):
        os._exit(NO_MAIN_GUARD)
    raise RuntimeError(MAIN_GUARD)
