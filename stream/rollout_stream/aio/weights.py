"""A job's weights, with asyncio: the twin of `rollout_stream.weights` for bytes that are never whole in memory."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import AsyncIterator
from contextlib import suppress
from types import TracebackType
from typing import Self

from rollout_contract.errors import StreamError
from rollout_contract.keys import JobKeys
from rollout_contract.messages import Layout, WeightsRecord
from rollout_contract.names import JobRef
from rollout_stream import publishing
from rollout_stream.aio.session import AsyncSession
from rollout_stream.calls import JobCalls
from rollout_stream.packing import Pieces
from rollout_stream.publishing import LEASE_S, Chunker


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
