"""Weights as versions: published by learners, fetched by workers. Synchronous; the gateway's twin is in `aio`.

A version is opaque bytes with a digest until somebody loads it. What needs torch is in `codec` and is imported when a
module or a state dict is given; bytes pass through without it.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from rollout_contract.errors import StreamError
from rollout_contract.keys import JobKeys
from rollout_contract.messages import Layout, WeightsRecord
from rollout_contract.names import JobRef
from rollout_contract.wire import BytesLike
from rollout_stream import publishing
from rollout_stream.calls import JobCalls
from rollout_stream.publishing import LEASE_S, Chunker
from rollout_stream.session import Session

if TYPE_CHECKING:
    import torch

Publishable: TypeAlias = "torch.nn.Module | Mapping[str, torch.Tensor] | bytes | bytearray | memoryview"


@dataclass(frozen=True, slots=True)
class FetchedWeights:
    """A version's bytes (safetensors), checked against its digest."""

    record: WeightsRecord
    data: bytearray


class WeightsReader:
    """Fetches versions. A version that is being fetched is not removed. For workers and learners alike."""

    def __init__(self, session: Session, job: JobRef, *, reader: str = "") -> None:
        self.session = session
        self._keys = JobKeys.of(job)
        self._calls = JobCalls(self._keys)
        self._reader = reader or uuid.uuid4().hex

    def versions(self) -> tuple[WeightsRecord, ...]:
        """Every version that can be fetched, oldest first."""
        return self.session.run(publishing.versions_commands(self._keys))

    def latest(self) -> WeightsRecord | None:
        """The newest version's record; None before the first one."""
        versions = self.versions()
        return versions[-1] if versions else None

    def layout(self) -> Layout | None:
        """What the job's weights look like; None as long as no worker has said it."""
        return self.session.run(self._calls.layout("weights"))

    def fetch(self, version: int = 0) -> FetchedWeights:
        """The bytes of a version (0: the newest), whole and checked.

        WeightsError if it is not there, WeightsRejected if the bytes are not those that were published.
        """
        found = self.session.run(self._calls.lease(self._reader, version, LEASE_S))
        if found is None:
            raise publishing.gone(version)
        try:
            record = WeightsRecord.from_json(found)
            data = bytearray(record.size)
            for read in publishing.chunk_reads(record, 0, record.size):
                self._receive(record, read, memoryview(data))
                self.session.run(self._calls.lease(self._reader, record.version, LEASE_S))
            publishing.check_digest(record, data)
            return FetchedWeights(record, data)
        finally:
            with suppress(
                StreamError
            ):  # a lease ends by itself; the error that matters is on its way already
                self.session.run(self._calls.lease(self._reader, None, 0))

    def _receive(self, record: WeightsRecord, read: publishing.ChunkRead, data: memoryview) -> None:
        """Puts one chunk in its place. WeightsError if it is not there any more."""
        base = read.chunk * publishing.CHUNK_BYTES
        target = data[base + read.first : base + read.last + 1]
        command = ("GET", self._keys.weights_chunk(record.version, read.chunk))
        if self.session.receive_into(f"reading version {record.version}", command, target) != len(target):
            raise publishing.gone(record.version)


class Weights(WeightsReader):
    """A learner's weights: publish, and look at what is there."""

    def publish(
        self,
        weights: Publishable,
        *,
        expected_version: int | None = None,
        allow_nonfinite: bool = False,
        idempotency_key: str = "",
        publisher: str = "",
    ) -> int:
        """Makes a module's state, a state dict, or safetensors bytes the next version. Its number.

        Nothing is visible before all of it is stored. WeightsRejected, with every problem, for what does not fit the
        workers' layout or is not finite; VersionConflict if `expected_version` is not the newest. The same
        `idempotency_key` again answers the version that it made the first time.
        """
        pieces = pieces_of(weights, allow_nonfinite=allow_nonfinite)
        upload = uuid.uuid4().hex
        chunker = Chunker(self.session.run(publishing.terms_commands(self._keys)))
        try:
            for piece in pieces:
                for chunk in chunker.feed(piece):
                    self._store(upload, chunker, chunk)
            for chunk in chunker.end():
                self._store(upload, chunker, chunk)
            call = self._calls.publish(
                upload,
                expected=expected_version,
                # Without a key of the caller's the upload's own name makes a repeated call harmless.
                idempotency_key=idempotency_key or upload,
                chunks=chunker.chunks,
                record=publishing.record_text(chunker, publisher or f"pid {os.getpid()}"),
            )
            answer = self.session.run(call)
            return publishing.published(answer, expected_version).version
        finally:
            if chunker.chunks:
                with suppress(StreamError):  # chunks expire by themselves
                    self.session.run(publishing.discard_chunks(self._keys, upload, chunker.chunks))

    def get(self, version: int = 0) -> dict[str, torch.Tensor]:
        """The state dict of a version (0: the newest), mapped onto the bytes that were fetched. Needs torch."""
        from rollout_stream import codec

        return codec.state_of(self.fetch(version).data)

    def _store(self, upload: str, chunker: Chunker, chunk: Any) -> None:
        self.session.run(publishing.store_chunk(self._keys, upload, chunker.chunks - 1, chunk))


def pieces_of(weights: Publishable, *, allow_nonfinite: bool) -> Iterable[BytesLike]:
    """The bytes of weights as buffers, one after the other. WeightsRejected if they cannot be sent."""
    if isinstance(weights, bytes | bytearray | memoryview):
        if not allow_nonfinite:
            try:
                from rollout_stream import codec
            except ImportError:  # no torch here: the workers check it when they load
                return [weights]
            codec.check_finite(codec.state_of(weights))
        return [weights]
    from rollout_stream import codec

    return codec.state_pieces(weights, allow_nonfinite=allow_nonfinite)
