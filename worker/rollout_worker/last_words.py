"""What a worker leaves when it ends: an exit code, and a short text for the job's status.

The text has the exception's type and message first, then the innermost frames, because it is cut at the end
(`status.lastFailure` keeps 512 bytes, the container runtime 4 KiB).
"""

from __future__ import annotations

import traceback
from pathlib import Path

from rollout_contract.errors import (
    ConfigurationError,
    SpecError,
    StateLost,
    StreamUnavailable,
    WriterFenced,
)
from rollout_contract.exits import ExitCode

MAX_BYTES = 4096
"""What a container runtime keeps of a termination message."""
_INNERMOST_FRAMES = 8

_CODES: tuple[tuple[type[BaseException], ExitCode], ...] = (
    (ConfigurationError, ExitCode.CONFIGURATION),
    (SpecError, ExitCode.USAGE),
    (StateLost, ExitCode.STATE_LOST),
    (StreamUnavailable, ExitCode.STREAM_LOST),
    (WriterFenced, ExitCode.FENCED),
)


def exit_code_of(error: BaseException) -> ExitCode:
    """The code with which a worker ends after this error: what `exits` says of its kind."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), ExitCode.ERROR)


def text_of(error: BaseException, *, worker: str, secrets: tuple[str, ...] = ()) -> str:
    """The termination message, at most MAX_BYTES of UTF-8, without any of `secrets`."""
    frames = traceback.extract_tb(error.__traceback__)[-_INNERMOST_FRAMES:]
    where = "\n".join(f"  {f.filename}:{f.lineno} in {f.name}: {f.line or ''}" for f in reversed(frames))
    text = f"{type(error).__name__}: {error}\nworker {worker}\n{where}\n"
    for secret in secrets:
        text = text.replace(secret, "***") if secret else text
    return text.encode()[:MAX_BYTES].decode(errors="ignore")


def leave(path: str | None, text: str) -> None:
    """Write the termination message; a path that cannot be written is no reason to hide the error itself."""
    if path:
        try:
            Path(path).write_text(text)
        except OSError:
            return
