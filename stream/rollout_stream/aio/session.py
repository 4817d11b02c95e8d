"""A server, asked with asyncio: the twin of `rollout_stream.session`."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any, Self, TypeVar

from redis import exceptions as driver

from rollout_stream.calls import Call, Commands, ScriptCall
from rollout_stream.connection import ServerAddress, translated
from rollout_stream.session import Backoff, Retry, checked_answers

T = TypeVar("T")

PATIENCE_S = 5.0
"""How long a call waits for a server that is away: short, because its callers have other jobs to look after."""


class AsyncSession:
    """A server and how patiently it is asked. One for many jobs; belongs to one event loop."""

    def __init__(
        self, address: ServerAddress, *, backoff: Backoff | None = None, max_connections: int = 32
    ) -> None:
        self.address = address
        self.backoff = backoff or Backoff(PATIENCE_S)
        self.client: Any = address.connect_async(max_connections=max_connections)

    @classmethod
    def connect(
        cls,
        url: str,
        *,
        password: str | None = None,
        ca_file: str | None = None,
        patience_s: float = PATIENCE_S,
    ) -> AsyncSession:
        """A session for an address; opens no connection yet."""
        return cls(ServerAddress.of(url, password=password, ca_file=ca_file), backoff=Backoff(patience_s))

    def __repr__(self) -> str:
        return f"AsyncSession({self.address})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes every connection."""
        await self.client.aclose()
        await self.client.connection_pool.disconnect()

    async def run(self, call: Call[T]) -> T:
        """The call's answer. StreamUnavailable, StateLost, StreamFull or StreamError, never the driver's errors."""
        retry = Retry(self.backoff, None)
        while True:
            try:
                return await self._once(call)
            except (driver.RedisError, OSError) as error:
                wait = retry.next_wait(error) if call.is_repeatable else None
                if wait is None:
                    raise translated(error, self.address, call.doing) from error
                await asyncio.sleep(wait)

    async def _once(self, call: Call[T]) -> T:
        task = asyncio.current_task()
        assert task is not None
        cancellations = task.cancelling()
        try:
            return await self._asked(call)
        finally:
            # The driver sends by `asyncio.wait_for`, which in Python 3.11 loses a cancellation that comes when all is sent.
            # Whoever cancelled us does it once and waits: a task that went on would never end.
            if task.cancelling() > cancellations:
                raise asyncio.CancelledError

    async def _asked(self, call: Call[T]) -> T:
        match call:
            case ScriptCall():
                return call.parse(await self._run_script(call))
            case Commands():
                return call.parse(await self._run_commands(call))

    async def _run_script(self, call: ScriptCall[Any]) -> Any:
        command = (call.script.sha, len(call.keys), *call.keys, *call.args)
        try:
            return await self.client.execute_command("EVALSHA", *command)
        except driver.NoScriptError:
            await self.client.execute_command("SCRIPT LOAD", call.script.text)
            return await self.client.execute_command("EVALSHA", *command)

    async def _run_commands(self, call: Commands[Any]) -> list[Any]:
        async with self.client.pipeline(transaction=False) as pipeline:
            for command in call.commands:
                pipeline.execute_command(*command)
            answers: list[Any] = await pipeline.execute(raise_on_error=False)
        return checked_answers(call, answers)
