"""Environments that misbehave in the ways that real ones do: each name in `DEEDS` is something done inside a child."""

from __future__ import annotations

import asyncio
import ctypes
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import toys


class Unpicklable(Exception):
    """Holds a lock, and its constructor takes more than its message."""

    def __init__(self, code: int, place: str) -> None:
        super().__init__(f"deed-{code} at {place}")
        self.lock = threading.Lock()


class Mute(Exception):
    """Cannot be told."""

    def __str__(self) -> str:
        raise RuntimeError("no text for you")

    __repr__ = __str__


class Numeric(Exception):
    """Its text is no text."""

    def __str__(self) -> Any:
        return 7


class Ending(BaseException):
    """Not an `Exception`."""


def raise_local() -> NoReturn:
    class Local(ValueError):
        pass

    raise Local("deed-local")


def recurse(depth: int = 0) -> int:
    return recurse(depth + 1) + 1


def raise_chained() -> NoReturn:
    try:
        {}["deed-first"]
    except KeyError as error:
        raise RuntimeError("deed-second") from error


def hog() -> None:
    """Take more memory than the process may have."""
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + 2**25, resource.RLIM_INFINITY))
    bytearray(2**27)


def hog_natively() -> None:
    """The same in native code, which gives up."""
    try:
        hog()
    except MemoryError:
        os.abort()


def raised(error: BaseException) -> Callable[[], NoReturn]:
    def do() -> NoReturn:
        raise error

    return do


RAISES: dict[str, tuple[Callable[[], Any], str]] = {
    "unpicklable": (lambda: raised(Unpicklable(1, "here"))(), "Unpicklable: deed-1 at here"),
    "mute": (lambda: raised(Mute())(), "Mute"),
    "numeric": (lambda: raised(Numeric())(), "Numeric"),
    "local": (raise_local, "Local: deed-local"),
    "keyboard": (lambda: raised(KeyboardInterrupt("deed-ctrl"))(), "KeyboardInterrupt: deed-ctrl"),
    "cancelled": (lambda: raised(asyncio.CancelledError("deed-task"))(), "CancelledError: deed-task"),
    "generator": (lambda: raised(GeneratorExit("deed-gen"))(), "GeneratorExit: deed-gen"),
    "base": (lambda: raised(Ending("deed-base"))(), "Ending: deed-base"),
    "stop": (lambda: raised(StopIteration("deed-stop"))(), "StopIteration: deed-stop"),
    "sys.exit 0": (lambda: sys.exit(0), "SystemExit: 0"),
    "sys.exit text": (lambda: sys.exit("deed-exit"), "SystemExit: deed-exit"),
    "memory": (lambda: raised(MemoryError("deed-memory"))(), "MemoryError: deed-memory"),
    "hogs memory": (hog, "MemoryError"),
    "recursion": (recurse, "RecursionError: maximum recursion depth exceeded"),
    "empty": (lambda: raised(ValueError())(), "ValueError"),
    "lines": (lambda: raised(ValueError("deed-one\ndeed-two"))(), "ValueError: deed-one"),
    "surrogate": (lambda: raised(OSError("deed-\udc80\x00\N{SNOWMAN}"))(), "OSError: deed-"),
    "group": (
        lambda: raised(ExceptionGroup("deed-many", [ValueError("deed-a"), KeyError("deed-b")]))(),
        "ExceptionGroup: deed-many (2 sub-exceptions)",
    ),
    "chained": (raise_chained, "RuntimeError: deed-second"),
    "huge": (lambda: raised(ValueError("deed-huge " + "x" * 5_000_000))(), "ValueError: deed-huge x"),
    "timeout": (lambda: raised(TimeoutError("deed-late"))(), "TimeoutError: deed-late"),
    "eof": (lambda: raised(EOFError("deed-pipe"))(), "EOFError: deed-pipe"),
    "broken pipe": (lambda: raised(BrokenPipeError("deed-broken"))(), "BrokenPipeError: deed-broken"),
    "assert": (lambda: raised(AssertionError("deed-assert"))(), "AssertionError: deed-assert"),
    "import": (
        lambda: __import__("no_such_package"),
        "ModuleNotFoundError: No module named 'no_such_package'",
    ),
}
"""What raises, and how the error's summary begins."""


def self_kill(number: int) -> Callable[[], None]:
    def do() -> None:
        os.kill(os.getpid(), number)
        time.sleep(30)

    return do


ENDS: dict[str, tuple[Callable[[], Any], str]] = {
    "exit 0": (lambda: os._exit(0), "ended with exit code 0"),
    "exit 255": (lambda: os._exit(255), "ended with exit code 255"),
    "SIGKILL": (self_kill(signal.SIGKILL), "was killed by SIGKILL (9)"),
    "SIGTERM": (self_kill(signal.SIGTERM), "was killed by SIGTERM (15)"),
    "SIGSEGV": (self_kill(signal.SIGSEGV), "was killed by SIGSEGV (11)"),
    "SIGBUS": (self_kill(signal.SIGBUS), "was killed by SIGBUS (7)"),
    "SIGFPE": (self_kill(signal.SIGFPE), "was killed by SIGFPE (8)"),
    "abort": (os.abort, "was killed by SIGABRT (6)"),
    "segfault": (lambda: ctypes.string_at(0), "was killed by SIGSEGV (11)"),
    "hog": (hog_natively, "was killed by SIGABRT (6)"),
    "rt signal": (self_kill(signal.SIGRTMIN + 3), "was killed by signal (37)"),
    "from a thread": (
        lambda: (threading.Thread(target=lambda: os._exit(9)).start(), time.sleep(30)),
        "ended with exit code 9",
    ),
}
"""What ends the process, and how that is told."""


def close_stdout() -> None:
    print("deed-stdout", end="")
    sys.stdout.close()
    sys.stderr.close()
    os.close(1)
    os.close(2)


def no_stdout() -> None:
    sys.stdout = sys.stderr = None  # type: ignore[assignment]


def ignore_signals() -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())


def stay_with_a_thread() -> None:
    threading.Thread(target=time.sleep, args=(3600,)).start()


def warn_as_errors() -> None:
    import warnings

    import numpy as np

    warnings.simplefilter("error")
    np.seterr(all="raise")


def move_away() -> None:
    os.chdir("/")
    os.umask(0o777)
    os.environ.clear()


def trace_everything() -> None:
    sys.settrace(lambda *_: None)
    sys.setrecursionlimit(120)


def reap_children() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    subprocess.run(["true"], check=False)


def lower_priority() -> None:
    os.nice(5)
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


HABITS: dict[str, Callable[[], Any]] = {
    "closes stdout": close_stdout,
    "has no stdout": no_stdout,
    "ignores signals": ignore_signals,
    "leaves a thread": stay_with_a_thread,
    "warnings are errors": warn_as_errors,
    "moves away": move_away,
    "traces": trace_everything,
    "reaps children": reap_children,
    "lower priority": lower_priority,
}
"""What is done to the process and must not matter."""

DEEDS: dict[str, Callable[[], Any]] = {
    **{name: do for name, (do, _) in RAISES.items()},
    **{name: do for name, (do, _) in ENDS.items()},
    **HABITS,
    "stops": self_kill(signal.SIGSTOP),
}


class Nasty(toys.AtPlace):
    """Does one of `DEEDS`."""

    def __init__(self, deed: str, where: str | int, only: int | None = None, env_index: int = 0) -> None:
        self.do = DEEDS[deed]
        super().__init__(where, only, env_index)


class Parenting(toys.Count):
    """Starts a process of its own in the way `how`, which outlives it unless somebody ends it; tells its pid in a file.

    Where it `fails`, its step raises.
    """

    def __init__(self, how: str, path: str, fails: bool = False) -> None:
        super().__init__(1000)
        self.fails = fails
        if how == "fork":
            pid = os.fork()
            if pid == 0:
                time.sleep(60)
                os._exit(0)
        else:
            self.process = subprocess.Popen(["sleep", "60"])
            self.process.returncode, pid = 0, self.process.pid  # nobody is to be told that it still runs
        with Path(path).open("a") as file:
            file.write(f"{pid}\n")

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.fails:
            raise ValueError("boom")
        return super().step(action)


class Falsy(toys.Count):
    """Is false, has no length, equals nothing, and answers every name."""

    def __bool__(self) -> bool:
        raise ValueError("an environment is neither true nor false")

    def __len__(self) -> int:
        return 0

    def __eq__(self, other: object) -> Any:
        raise ValueError("not to be compared")

    __hash__ = None  # type: ignore[assignment]


class Answering(toys.Count):
    """Has every attribute that it is asked for."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return f"attribute {name}"


class Hungry(toys.Count):
    """Takes another 8 MiB with every step, and uses them."""

    def __init__(self) -> None:
        super().__init__(1000)
        self.taken: list[bytes] = []

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.taken.append(os.urandom(1) * 2**23)
        return super().step(action)
