"""Weights on their way: cut into chunks, digested, checked as soon as their header is there. Pure.

Shared by the synchronous publisher, the gateway's upload and both readers, so that a version is the same whoever wrote it.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from rollout_contract.errors import StreamError, VersionConflict, WeightsError, WeightsRejected
from rollout_contract.keys import JobKeys
from rollout_contract.messages import Layout, WeightsRecord
from rollout_contract.wire import BytesLike
from rollout_stream.calls import Commands
from rollout_stream.packing import Pieces
from rollout_stream.progress_calls import parse_control, versions_of
from rollout_stream.safetensors import WeightsHeader, header_size, parse_header, problems_of
from rollout_stream.spelling import pairs_of

CHUNK_BYTES: Final = 8 * 1024 * 1024
UPLOAD_TTL_S: Final = 3600
"""How long the chunks of an upload live that is never published."""
LEASE_S: Final = 60.0
"""How long a reader holds a version without renewing."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What a publication has to fit: the workers' layout (None: not declared yet), a size, and what is newest."""

    layout: Layout | None
    max_bytes: int | None
    newest: int


class Chunker:
    """Takes bytes as they come, gives chunks of CHUNK_BYTES, and checks on the way.

    WeightsRejected, from `feed` or `end`, for bytes that are no safetensors file, do not fit the terms' layout (every
    problem is listed), or are too many or too few.
    """

    def __init__(self, terms: Terms) -> None:
        self._terms = terms
        self._sha256 = hashlib.sha256()
        self._waiting: list[memoryview] = []
        self._waiting_bytes = 0
        self._head = bytearray()
        self.header: WeightsHeader | None = None
        self.size = 0
        self.chunks = 0

    @property
    def digest(self) -> str:
        """SHA-256 of what was fed, in hexadecimal."""
        return self._sha256.hexdigest()

    def feed(self, data: BytesLike) -> Iterator[Pieces]:
        """The chunks that are complete with these bytes. The memory of `data` is kept until its chunk is given out."""
        view = memoryview(data).cast("B") if len(data) else memoryview(b"")
        self.size += len(view)
        self._check_size()
        self._sha256.update(view)
        self._check_header(view)
        while len(view):
            part = view[: CHUNK_BYTES - self._waiting_bytes]
            self._waiting.append(part)
            self._waiting_bytes += len(part)
            view = view[len(part) :]
            if self._waiting_bytes == CHUNK_BYTES:
                yield self._chunk()

    def end(self) -> Iterator[Pieces]:
        """The last chunk."""
        if self.header is None or self.size != self.header.size:
            expected = f" of {self.header.size}" if self.header else ""
            raise WeightsRejected([f"the weights end after {self.size}{expected} bytes: they were cut off"])
        if self._waiting_bytes:
            yield self._chunk()

    def _chunk(self) -> Pieces:
        chunk = Pieces(self._waiting)
        self._waiting, self._waiting_bytes = [], 0
        self.chunks += 1
        return chunk

    def _check_size(self) -> None:
        limit = self._terms.max_bytes
        if limit is not None and self.size > limit:
            raise WeightsRejected(
                [f"the weights have more than {limit} bytes, the most that weights.maxBytes allows"]
            )
        if self.header is not None and self.size > self.header.size:
            raise WeightsRejected(
                [f"the weights have {self.size} bytes, their header says {self.header.size}"]
            )

    def _check_header(self, view: memoryview) -> None:
        if self.header is not None:
            return
        size = header_size(self._head)
        take = 8 - len(self._head) if size is None else size - len(self._head)
        self._head += view[:take]
        rest = view[take:]
        if size is None and header_size(self._head) is not None:
            return self._check_header(rest)
        if size is None or len(self._head) < size:
            return None
        self.header = parse_header(self._head)
        self._head = bytearray()
        if problems := problems_of(self.header, self._terms.layout):
            raise WeightsRejected(problems)
        return self._check_size()


def record_text(chunker: Chunker, publisher: str) -> str:
    """A version's record as JSON, open at its end: the script adds version and time."""
    document = {
        "size": chunker.size,
        "digest": chunker.digest,
        "chunks": chunker.chunks,
        "publisher": publisher,
    }
    return json.dumps(document, separators=(",", ":"))[:-1]


def published(answer: Sequence[Any], expected: int | None) -> WeightsRecord:
    """The record behind the publish script's answer. VersionConflict, WeightsError."""
    match answer[0]:
        case b"ok" | b"repeated":
            return WeightsRecord.from_json(answer[1])
        case b"conflict":
            raise VersionConflict(expected=expected or 0, newest=int(answer[1]))
        case b"incomplete":
            raise WeightsError(f"chunk {int(answer[1])} of the upload is gone: publish again")
        case other:
            raise StreamError(f"the publish script answered {other!r}")


def terms_commands(keys: JobKeys) -> Commands[Terms]:
    """What a publication has to fit."""
    commands = (("HGET", keys.layout, "weights"), ("HGETALL", keys.control), ("HGET", keys.weights, "newest"))

    def parse(answers: list[Any]) -> Terms:
        layout = Layout.from_json(answers[0]) if answers[0] else None
        fields = pairs_of(answers[1])
        limit = parse_control(fields).limits.max_weights_bytes if fields else None
        return Terms(layout, limit, int(answers[2] or 0))

    return Commands("reading what weights have to fit", commands, parse)


def store_chunk(keys: JobKeys, upload: str, number: int, chunk: Pieces | bytes) -> Commands[None]:
    """Stores one chunk of an upload; it expires by itself."""
    key = keys.upload_chunk(upload, number)
    return Commands("storing weights", (("SET", key, chunk, "EX", UPLOAD_TTL_S),), lambda _: None)


def discard_chunks(keys: JobKeys, upload: str, chunks: int) -> Commands[None]:
    """Removes what an upload has stored and not published."""
    names = [keys.upload_chunk(upload, n) for n in range(chunks)]
    return Commands("discarding weights", (("UNLINK", *names),), lambda _: None)


def versions_commands(keys: JobKeys) -> Commands[tuple[WeightsRecord, ...]]:
    """Every version that can be fetched, oldest first."""
    return Commands(
        "reading the versions", (("HGETALL", keys.weights),), lambda a: versions_of(pairs_of(a[0]))
    )


class ChunkRead(NamedTuple):
    """Some bytes of one chunk: first and last are positions inside of it."""

    chunk: int
    first: int
    last: int


def chunk_reads(record: WeightsRecord, start: int, stop: int) -> list[ChunkRead]:
    """Which parts of which chunks make the bytes from `start` up to, and without, `stop`."""
    reads = []
    for chunk in range(start // CHUNK_BYTES, math.ceil(stop / CHUNK_BYTES)):
        base = chunk * CHUNK_BYTES
        first, last = max(start, base) - base, min(stop, base + CHUNK_BYTES, record.size) - base
        if last > first:
            reads.append(ChunkRead(chunk, first, last - 1))
    return reads


def read_chunk(keys: JobKeys, record: WeightsRecord, read: ChunkRead) -> Commands[bytes]:
    """Some bytes of one chunk. WeightsError if they are not there any more."""
    chunk, first, last = read
    command = ("GETRANGE", keys.weights_chunk(record.version, chunk), first, last)

    def parse(answers: list[Any]) -> bytes:
        data: bytes = answers[0]
        if len(data) != last - first + 1:
            raise gone(record.version)
        return data

    return Commands(f"reading version {record.version}", (command,), parse)


def gone(version: int) -> WeightsError:
    """The error for a version that is not kept."""
    return WeightsError(
        f"policy version {version} is not kept any more, or never was: ask for the newest one"
    )


def check_digest(record: WeightsRecord, data: BytesLike) -> None:
    """WeightsRejected if the bytes are not those that were published."""
    found = hashlib.sha256(data).hexdigest()
    if len(data) != record.size or found != record.digest:
        raise WeightsRejected(
            [
                f"version {record.version}: digest {found} of {len(data)} bytes instead of {record.digest} of {record.size}"
            ]
        )
