"""Runs calls on a server: sends, reads, repeats what may be repeated, and translates what the driver raises.

Everything synchronous in this package goes through a `Session`; `aio.py` has the asyncio twin. The waits between tries
grow up to a bound and end with a deadline, or at once when the owner stops.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from redis import exceptions as driver

from rollout_stream.bulk import receive_into
from rollout_stream.calls import Call, Command, Commands, ScriptCall
from rollout_stream.connection import ServerAddress, is_transient, translated

T = TypeVar("T")


class Stop(Protocol):
    """Whatever ends a wait early: a `threading.Event` does."""

    def is_set(self) -> bool: ...

    def wait(self, timeout: float) -> bool: ...


@dataclass(frozen=True, slots=True)
class Backoff:
    """Waits between tries: doubled from `first_s` up to `most_s`, a little random, `patience_s` in all."""

    patience_s: float = 30.0
    first_s: float = 0.05
    most_s: float = 1.0

    def waits(self) -> Iterator[float]:
        """The waits, without their end: the caller keeps the deadline."""
        wait = self.first_s
        while True:
            yield wait * random.uniform(0.75, 1.0)
            wait = min(2 * wait, self.most_s)


class Retry:
    """One call's tries: after each transient error says whether to go on, and waits."""

    def __init__(self, backoff: Backoff, stop: Stop | None) -> None:
        self._waits = backoff.waits()
        self._until = time.monotonic() + backoff.patience_s
        self._stop = stop

    def next_wait(self, error: Exception) -> float | None:
        """Seconds to wait before the next try; None where there is none."""
        if not is_transient(error) or (self._stop is not None and self._stop.is_set()):
            return None
        wait = next(self._waits)
        return wait if time.monotonic() + wait < self._until else None

    def wait(self, error: Exception) -> bool:
        """Waits for the next try. False where there is none."""
        wait = self.next_wait(error)
        if wait is None:
            return False
        if self._stop is not None:
            return not self._stop.wait(wait)
        time.sleep(wait)
        return True


class Session:
    """A server and how patiently it is asked. Safe to use from several threads."""

    def __init__(
        self,
        address: ServerAddress,
        *,
        backoff: Backoff | None = None,
        stop: Stop | None = None,
        max_connections: int = 16,
    ) -> None:
        self.address = address
        self.backoff = backoff or Backoff()
        self.stop = stop
        self.client: Any = address.connect(max_connections=max_connections)
        """The driver's client (`redis.Redis`), whose methods carry no types."""
        self._closed = threading.Event()

    def __repr__(self) -> str:
        return f"Session({self.address})"

    def close(self) -> None:
        """Closes every connection. Allowed at any time, more than once."""
        self._closed.set()
        self.client.close()
        self.client.connection_pool.disconnect()

    def run(self, call: Call[T]) -> T:
        """The call's answer. StreamUnavailable, StateLost, StreamFull or StreamError, never the driver's errors."""
        retry = Retry(self.backoff, self.stop)
        while True:
            try:
                return self._once(call)
            except (driver.RedisError, OSError) as error:
                if not call.is_repeatable or self._closed.is_set() or not retry.wait(error):
                    raise translated(error, self.address, call.doing) from error

    def receive_into(self, doing: str, command: Command, target: memoryview) -> int:
        """Puts the string that a command answers into `target`; its length. Repeated like any other call."""
        retry = Retry(self.backoff, self.stop)
        while True:
            try:
                return receive_into(self.client, command, target)
            except (driver.RedisError, OSError) as error:
                if self._closed.is_set() or not retry.wait(error):
                    raise translated(error, self.address, doing) from error

    def _once(self, call: Call[T]) -> T:
        match call:
            case ScriptCall():
                return call.parse(self._run_script(call))
            case Commands():
                return call.parse(self._run_commands(call))

    def _run_script(self, call: ScriptCall[Any]) -> Any:
        command = (call.script.sha, len(call.keys), *call.keys, *call.args)
        try:
            return self.client.execute_command("EVALSHA", *command)
        except driver.NoScriptError:
            self.client.execute_command("SCRIPT LOAD", call.script.text)
            return self.client.execute_command("EVALSHA", *command)

    def _run_commands(self, call: Commands[Any]) -> list[Any]:
        with self.client.pipeline(transaction=False) as pipeline:
            for command in call.commands:
                pipeline.execute_command(*command)
            answers: list[Any] = pipeline.execute(raise_on_error=False)
        return checked_answers(call, answers)


def checked_answers(call: Commands[Any], answers: list[Any]) -> list[Any]:
    """The answers, or the first error among them raised, unless the call takes errors."""
    for answer in answers:
        if isinstance(answer, Exception) and (not call.takes_errors or is_transient(answer)):
            raise answer
    return answers
