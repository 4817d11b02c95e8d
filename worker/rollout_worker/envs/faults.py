"""Turns what went wrong with environments into the errors a user reads.

A stepper notes a `Fault` per environment: plain text, so that it crosses processes whatever the exception
was. `error_of` makes one exception of all that failed at once. The last thing in the message is always the
user's own traceback.
"""

from __future__ import annotations

import signal
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from rollout_contract.errors import ChildLost, EntrypointError, EnvError, StepTimeout


class NotAnEnvironment(EntrypointError, TypeError):
    """A factory gave something that no adapter takes."""


class Cause(StrEnum):
    """What kind of thing went wrong, and so which error it becomes."""

    RAISED = "raised"
    ENTRYPOINT = "entrypoint"
    NOT_AN_ENV = "not an environment"
    LOST = "lost"
    TIMEOUT = "timeout"


@dataclass(frozen=True, slots=True)
class EnvFault:
    """One environment's failure: `summary` is one line, `details` the remote traceback (empty where there is none)."""

    cause: Cause
    env_index: int | None
    pid: int
    call: str
    summary: str
    details: str = ""

    def __str__(self) -> str:
        who = "the environments" if self.env_index is None else f"environment {self.env_index}"
        during = f" during {self.call}" if self.call else ""
        return f"{who} (pid {self.pid}){during}: {self.summary}"


MAX_NAMED = 16
"""At most so many failures of one call are written out."""

MAX_SUMMARY, MAX_DETAILS = 500, 20_000
"""At most so many characters of a summary and of a traceback are kept: an error is read by people."""

_ORDER = (Cause.NOT_AN_ENV, Cause.ENTRYPOINT, Cause.RAISED, Cause.LOST, Cause.TIMEOUT)


def fault_of(error: BaseException, *, env_index: int | None, pid: int, call: str) -> EnvFault:
    """The fault of an exception that user code let out. Frames of this package above the user's are left out."""
    cause = Cause.RAISED
    if isinstance(error, NotAnEnvironment):
        cause = Cause.NOT_AN_ENV
    elif isinstance(error, EntrypointError):
        cause = Cause.ENTRYPOINT
    text = _first_line(error)
    summary = type(error).__name__ + (f": {text}" if text else "")
    return EnvFault(cause, env_index, pid, call, summary, _traceback_text(error))


def _first_line(error: BaseException) -> str:
    try:
        lines = str(error).strip().splitlines()
    except Exception as failure:
        return f"(its text cannot be had: {type(failure).__name__})"
    return _shortened(lines[0], MAX_SUMMARY) if lines else ""


def _shortened(text: str, limit: int) -> str:
    """A text whose middle is left out where it is long: what happened is told at its ends."""
    if len(text) <= limit:
        return text
    kept = limit // 2
    return f"{text[:kept]} […{len(text) - 2 * kept} characters left out…] {text[-kept:]}"


def _traceback_text(error: BaseException) -> str:
    origin = error.__cause__ if isinstance(error, EntrypointError) and error.__cause__ is not None else error
    frames = origin.__traceback__
    while frames is not None and is_ours(frames.tb_frame.f_code.co_filename) and frames.tb_next is not None:
        frames = frames.tb_next
    return _shortened("".join(traceback.format_exception(type(origin), origin, frames)).rstrip(), MAX_DETAILS)


def is_ours(filename: str) -> bool:
    """Whether a frame is of this package, or of importing it: not what a user looks for."""
    return filename.startswith((__file__.rpartition("/")[0], "<frozen importlib"))


def ending_of(exitcode: int | None) -> str:
    """How a process ended, in words: exit code, or signal by name and number."""
    if exitcode is None:
        return "ended"
    if exitcode >= 0:
        return f"ended with exit code {exitcode}"
    try:
        name = signal.Signals(-exitcode).name
    except ValueError:
        name = "signal"
    hint = " (out of memory is a common cause)" if -exitcode == signal.SIGKILL else ""
    return f"was killed by {name} ({-exitcode}){hint}"


def error_of(faults: Sequence[EnvFault]) -> EnvError | EntrypointError:
    """One exception for all faults of one call, naming each; its class and attributes are the first cause's."""
    ordered = sorted(faults, key=lambda fault: (_ORDER.index(fault.cause), fault.env_index or 0))
    first = ordered[0]
    if first.cause in (Cause.NOT_AN_ENV, Cause.ENTRYPOINT):
        ordered = ordered[:1]  # every environment fails alike; once is enough
    lines = [str(fault) for fault in ordered[:MAX_NAMED]]
    if len(ordered) > MAX_NAMED:
        lines.append(f"and {len(ordered) - MAX_NAMED} more")
    message = (
        lines[0]
        if len(lines) == 1
        else f"{len(ordered)} failures:\n" + "\n".join(f"  {line}" for line in lines)
    )
    details = list(dict.fromkeys(fault.details for fault in reversed(ordered[:MAX_NAMED]) if fault.details))
    if details:
        message += "\n\n" + "\n\n".join(details)
    if first.cause in (Cause.NOT_AN_ENV, Cause.ENTRYPOINT):
        return (NotAnEnvironment if first.cause is Cause.NOT_AN_ENV else EntrypointError)(message)
    kind = {Cause.LOST: ChildLost, Cause.TIMEOUT: StepTimeout}.get(first.cause, EnvError)
    return kind(message, env_index=first.env_index, pid=first.pid, call=first.call)
