"""The asyncio twin of what the operator and the gateway need: sessions, control, progress, weights.

The same names and the same behaviour as in `session`, `control` and `weights`; what is said to the server and how its
answers are read is shared (`calls`, `progress`, `publishing`). No torch, as everywhere but in `codec`.
"""

from __future__ import annotations

import asyncio
import hashlib
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, TypeVar

from redis import exceptions as driver

from rollout_contract.errors import JobNotFound, StreamError
from rollout_contract.keys import JobKeys, current
from rollout_contract.messages import EndKind, EndMarker, Layout, WeightsRecord
from rollout_contract.names import JobRef, Slot, WorkerId
from rollout_stream import publishing
from rollout_stream.calls import Call, Commands, JobCalls, ScriptCall, SeedState
from rollout_stream.connection import ServerAddress, translated
from rollout_stream.control import checked_seed, flags_of, forget_name, name_job, renew_name
from rollout_stream.packing import Pieces
from rollout_stream.progress import ControlState, Progress, control_commands, progress_commands
from rollout_stream.publishing import LEASE_S, Chunker
from rollout_stream.server_check import ServerInfo, server_commands
from rollout_stream.session import Backoff, Retry, checked_answers
from rollout_stream.settings import JobSettings, StreamLimits

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


async def check_server(session: AsyncSession) -> ServerInfo:
    """What the server is, and whether it is fit (`problems`). StreamUnavailable if it is away or refuses us."""
    return await session.run(server_commands())


async def find_job(session: AsyncSession, namespace: str, name: str) -> JobRef:
    """The job that has the name now; its `uid` holds the first eight digits only. JobNotFound if there is none."""
    key = current(namespace, name)
    found = await session.run(Commands("looking for the job", (("GET", key),), lambda a: a[0]))
    if not found:
        raise JobNotFound(f"Redis at {session.address} knows no job {namespace}/{name}")
    return JobRef(namespace, name, found.decode())


class Control:
    """The control plane of one job; see `rollout_stream.control.Control` for what each method does."""

    def __init__(self, session: AsyncSession, job: JobRef) -> None:
        self.session = session
        self.job = job
        self._keys = JobKeys.of(job)
        self._calls = JobCalls(self._keys)

    async def open_job(self, settings: JobSettings) -> bool:
        """Makes the job's keys, or finds them as they are. Whether it made them."""
        created = await self.session.run(self._calls.open_job(settings))
        await self.session.run(name_job(self.job, settings.ttl_s))
        return created

    async def check_server(self) -> ServerInfo:
        """See the function of the same name."""
        return await check_server(self.session)

    async def read_progress(self, *, episodes: int = 0) -> Progress:
        """Everything live about the job, in one round trip, with the newest so many episodes."""
        return await self.session.run(progress_commands(self._keys, episodes=episodes))

    async def read_control(self) -> ControlState:
        """Seed, epochs, commands, limits and end."""
        return await self.session.run(control_commands(self._keys))

    async def seed(self) -> SeedState:
        """The seed and its epoch."""
        state = await self.read_control()
        return SeedState(state.seed, state.seed_epoch)

    async def set_seed(self, seed: int, *, expected_epoch: int | None = None) -> SeedState:
        """Sets the seed and raises the epoch. EpochConflict if it is not the expected one."""
        return checked_seed(
            await self.session.run(self._calls.set_seed(seed, expected_epoch)), expected_epoch
        )

    async def command(self, *, paused: bool | None = None, draining: bool | None = None) -> int:
        """Sets what is given; the command epoch, raised if that changed anything."""
        return await self.session.run(self._calls.command(flags_of(paused=paused, draining=draining)))

    async def set_limits(self, limits: StreamLimits) -> None:
        """Replaces the limits; they hold from the next call of each worker."""
        await self.session.run(self._calls.set_limits(limits, ""))

    async def set_total(self, total_frames: int | None) -> None:
        """Changes the job's total (None: endless). The stream ends at once if so many are appended already."""
        await self.session.run(
            self._calls.set_limits(None, "-" if total_frames is None else str(total_frames))
        )

    async def finish(self, kind: EndKind, *, reason: str = "", message: str = "") -> bool:
        """Ends the stream for readers and writers. False if it had ended before."""
        return await self.session.run(self._calls.finish(EndMarker(kind.value, reason, message)))

    async def reopen(self) -> bool:
        """Takes a `suspended` end back when the job resumes."""
        return await self.session.run(self._calls.reopen())

    async def notify(self, text: str) -> None:
        """Tells the readers that wait, such as that the job stands still; empty: all is well again."""
        await self.session.run(self._calls.notice(text))

    async def release(self, worker: WorkerId) -> int:
        """Frees the reservation of a worker that is removed or given up, and refuses what it may still send."""
        return await self.session.run(self._calls.release(worker.slot, worker.attempt))

    async def announce(self, workers: Sequence[WorkerId]) -> int:
        """Marks attempts as given before their processes exist: none is given twice, and older ones are fenced."""
        return await self.session.run(self._calls.announce(workers))

    async def next_attempt(self, slot: Slot) -> int:
        """1 + the highest attempt that ever joined or was announced; 0 if none was."""
        return await self.session.run(self._calls.next_attempt(slot))

    async def layout(self, what: str) -> Layout | None:
        """What `data` or `weights` look like; None as long as no worker has said it."""
        return await self.session.run(self._calls.layout(what))

    async def remove_group(self, group: str) -> bool:
        """Entries wait for the group no longer. False if it was not registered."""
        return await self.session.run(self._calls.unregister(group))

    async def touch(self) -> None:
        """Renews every key's time to live."""
        await self.session.run(renew_name(self.job, await self.session.run(self._calls.touch())))

    async def expire(self, ttl_s: float) -> None:
        """From now on keys live for so many seconds after the last call: the end of a job."""
        await self.session.run(renew_name(self.job, await self.session.run(self._calls.touch(ttl_s))))

    async def delete(self) -> None:
        """Removes every key of the job. No error if they are gone."""
        await self.session.run(self._calls.delete())
        await self.session.run(forget_name(self.job))


class WeightsUpload:
    """Bytes on their way to become a version: never whole in memory, invisible until `publish`.

    Refused as soon as it is known that they do not fit: WeightsRejected, with every problem. Whatever happens, `discard`
    (or the end of an `async with`) leaves nothing behind.
    """

    def __init__(self, session: AsyncSession, job: JobRef) -> None:
        self._session = session
        self._keys = JobKeys.of(job)
        self._calls = JobCalls(self._keys)
        self._name = uuid.uuid4().hex
        self._chunker: Chunker | None = None
        self._is_published = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.discard()

    @property
    def digest(self) -> str:
        """SHA-256 of what was written, in hexadecimal."""
        return self._chunker.digest if self._chunker else hashlib.sha256().hexdigest()

    @property
    def size(self) -> int:
        """Bytes written."""
        return self._chunker.size if self._chunker else 0

    async def write(self, data: bytes) -> None:
        """Takes the next bytes, and stores each chunk that they complete."""
        chunker = await self._open()
        for chunk in chunker.feed(data):
            await self._store(chunker, chunk)

    async def publish(
        self, *, expected: int | None = None, idempotency_key: str | None = None, publisher: str = ""
    ) -> WeightsRecord:
        """Makes all that was written the next version. WeightsRejected if it is not whole, VersionConflict.

        With a key that has published before: that version again, whatever was written.
        """
        chunker = await self._open()
        for chunk in chunker.end():
            await self._store(chunker, chunk)
        call = self._calls.publish(
            self._name,
            expected=expected,
            idempotency_key=idempotency_key or self._name,
            chunks=chunker.chunks,
            record=publishing.record_text(chunker, publisher),
        )
        answer = await self._session.run(call)
        record = publishing.published(answer, expected)
        self._is_published = record.digest == chunker.digest and not idempotency_key
        return record

    async def discard(self) -> None:
        """Removes what was written, unless it was published. Allowed at any time, more than once."""
        if self._chunker is None or self._is_published or not self._chunker.chunks:
            return
        call = publishing.discard_chunks(self._keys, self._name, self._chunker.chunks)
        with suppress(StreamError):  # chunks expire by themselves
            await self._session.run(call)

    async def _open(self) -> Chunker:
        if self._chunker is None:
            self._chunker = Chunker(await self._session.run(publishing.terms_commands(self._keys)))
        return self._chunker

    async def _store(self, chunker: Chunker, chunk: Pieces) -> None:
        await self._session.run(
            publishing.store_chunk(self._keys, self._name, chunker.chunks - 1, chunk.joined())
        )


class Weights:
    """A job's versions: look, download in parts, upload."""

    def __init__(self, session: AsyncSession, job: JobRef) -> None:
        self.session = session
        self.job = job
        self._keys = JobKeys.of(job)
        self._calls = JobCalls(self._keys)

    async def versions(self) -> tuple[WeightsRecord, ...]:
        """Every version that can be fetched, oldest first."""
        return await self.session.run(publishing.versions_commands(self._keys))

    async def latest(self) -> WeightsRecord | None:
        """The newest version's record; None before the first one."""
        versions = await self.versions()
        return versions[-1] if versions else None

    async def layout(self) -> Layout | None:
        """What the job's weights look like; None as long as no worker has said it."""
        return await self.session.run(self._calls.layout("weights"))

    def upload(self) -> WeightsUpload:
        """A new upload."""
        return WeightsUpload(self.session, self.job)

    async def read(
        self, record: WeightsRecord, start: int = 0, stop: int | None = None
    ) -> AsyncIterator[bytes]:
        """The bytes of a version from `start` up to `stop`, in parts of at most 8 MiB. WeightsError if it is gone.

        The version is not removed while this goes on.
        """
        reader = uuid.uuid4().hex
        try:
            for read in publishing.chunk_reads(
                record, start, record.size if stop is None else min(stop, record.size)
            ):
                if await self.session.run(self._calls.lease(reader, record.version, LEASE_S)) is None:
                    raise publishing.gone(record.version)
                yield await self.session.run(publishing.read_chunk(self._keys, record, read))
        finally:
            with suppress(StreamError):
                await self.session.run(self._calls.lease(reader, None, 0))
