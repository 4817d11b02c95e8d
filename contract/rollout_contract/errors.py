"""The one tree of errors; callers catch by situation.

RolloutError
├── SpecError (ValueError)            the manifest is wrong: every fault with its path
├── ConfigurationError                the user's code or image does not fit the job: exit code 64
│   ├── EntrypointError               module or attribute missing, syntax error, not callable
│   └── LayoutMismatch                data or weights layout differs from what the job's stream holds
├── EnvError (RuntimeError)           an environment raised, or returned what its spec does not allow
│   ├── ChildLost                     the process that steps it ended
│   └── StepTimeout (TimeoutError)    it did not answer in time
├── PolicyError (RuntimeError)        the policy raised, or returned what its spec does not allow
├── StreamError (RuntimeError)        the data plane
│   ├── StreamUnavailable             the server cannot be reached, refuses us, or does not fit
│   ├── StateLost                     the server lost the job's keys
│   ├── StreamFull (TimeoutError)     back-pressure lasted longer than the caller would wait
│   ├── WriterFenced                  a newer attempt of this worker has written
│   ├── JobNotFound                   no such job in this server
│   ├── RolloutFailed                 the job failed: what a reader raises at its end
│   └── FrameError (ValueError)       bytes that are no frame
└── WeightsError (RuntimeError)       weights
    ├── WeightsRejected (ValueError)  they do not fit, are not finite, or were damaged: every problem named
    └── VersionConflict               the newest version is not the one the caller named
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


class RolloutError(Exception):
    """Base of every error that RolloutJob raises on purpose."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong with a document.

    `path` is in the document's spelling (`spec.workerGroups[0].name`), `value` what stood there (None where nothing
    did), `message` says what is allowed or what to write instead.
    """

    path: str
    value: object
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


class SpecError(RolloutError, ValueError):
    """A manifest is wrong. `faults` holds everything that is, not only the first."""

    def __init__(self, faults: Iterable[Fault]) -> None:
        self.faults: tuple[Fault, ...] = tuple(faults)
        super().__init__("\n".join(str(fault) for fault in self.faults))


class ConfigurationError(RolloutError):
    """The user's code or image does not fit the job; no retry can help. A worker ends with exit code 64."""


class EntrypointError(ConfigurationError):
    """An entrypoint cannot be imported, found or called."""


class LayoutMismatch(ConfigurationError, ValueError):
    """Data or weights look different from what the job's stream holds. `differences` names each."""

    def __init__(self, what: str, differences: Sequence[str]) -> None:
        self.what = what
        self.differences = tuple(differences)
        super().__init__(
            f"the {what} layout differs from the job's:\n" + "\n".join(f"  {d}" for d in differences)
        )


class EnvError(RolloutError, RuntimeError):
    """An environment raised, or returned what its spec does not allow.

    `env_index` counts over the worker's environments (None: all of the process), `pid` is the process that stepped it,
    `call` is what it was asked for (`constructor`, `reset`, `step`, `close`). The user's own traceback ends the message.
    """

    def __init__(
        self, message: str, *, env_index: int | None = None, pid: int | None = None, call: str = ""
    ) -> None:
        super().__init__(message)
        self.env_index = env_index
        self.pid = pid
        self.call = call


class ChildLost(EnvError):
    """The process that steps some environments ended by itself, or was killed."""


class StepTimeout(EnvError, TimeoutError):
    """An environment did not answer within `stepTimeoutSeconds`."""


class PolicyError(RolloutError, RuntimeError):
    """The policy raised, or returned what the action spec does not allow. Its own traceback ends the message."""


class StreamError(RolloutError, RuntimeError):
    """The data plane cannot do what was asked."""


class StreamUnavailable(StreamError):
    """The server cannot be reached, refuses the credentials, or is set up so that data would vanish."""


class StateLost(StreamError):
    """The server is there but the job's keys are gone: never a reason to start again from zero."""


class StreamFull(StreamError, TimeoutError):
    """Unacked frames or bytes stayed above the watermark for longer than the caller would wait."""


class WriterFenced(StreamError):
    """A newer attempt of this worker has written; this one must not add data."""


class JobNotFound(StreamError, LookupError):
    """The server knows no job of that name."""


class EpochConflict(StreamError):
    """The seed was changed meanwhile. `seed` and `epoch` are the current ones."""

    def __init__(self, *, expected: int, seed: int, epoch: int) -> None:
        self.expected = expected
        self.seed = seed
        self.epoch = epoch
        super().__init__(f"the seed epoch is {epoch}, not {expected}: read the seed and set it again")


class RolloutFailed(StreamError):
    """The job failed; what a reader raises once everything that was appended is read. `reason` is the job's."""

    def __init__(self, message: str, *, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason


class FrameError(StreamError, ValueError):
    """Bytes that are no frame of this format: damaged, truncated, or of another version."""


class WeightsError(RolloutError, RuntimeError):
    """Weights cannot be published or loaded."""


class WeightsRejected(WeightsError, ValueError):
    """Weights that do not fit, hold non-finite values, or were damaged. `problems` names every one."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("the weights were rejected:\n" + "\n".join(f"  {p}" for p in problems))


class VersionConflict(WeightsError):
    """Another version was published meanwhile. `newest` is the current one."""

    def __init__(self, *, expected: int, newest: int) -> None:
        self.expected = expected
        self.newest = newest
        super().__init__(f"the newest policy version is {newest}, not {expected}: fetch it and publish again")
