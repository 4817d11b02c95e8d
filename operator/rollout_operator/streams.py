"""What the reconcile loop needs of the data plane: the port, which tests fake. `redis_streams` implements it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from rollout_contract.messages import EndMarker
from rollout_contract.names import WorkerId
from rollout_contract.spec import RolloutJob
from rollout_operator.cluster import JobKey
from rollout_operator.observed import StreamFacts, StreamTrouble


class Streams(Protocol):
    """The streams of all jobs. All but `look` raise StreamError and its kinds when the stream does not do it.

    Every call is bounded in time and may be repeated.
    """

    async def look(self, job: RolloutJob) -> StreamFacts | StreamTrouble:
        """The job's facts, read in one round trip; keeps its keys alive. Never raises StreamError."""

    async def open(self, job: RolloutJob) -> None:
        """Make the job's keys, or find them as they are."""

    async def tune(self, job: RolloutJob) -> None:
        """Bring limits, total and random frames, and groups in line with the spec."""

    async def finish(self, job: RolloutJob, marker: EndMarker) -> None:
        """End the stream for readers and writers; `suspended` can be taken back. An ended one stays as it is."""

    async def reopen(self, job: RolloutJob) -> None:
        """Take a `suspended` end back."""

    async def release(self, job: RolloutJob, worker: WorkerId) -> None:
        """Free the open reservation of the worker's slot, and refuse what this attempt may still send."""

    async def announce(self, job: RolloutJob, workers: Sequence[WorkerId]) -> None:
        """Mark attempts as given, before their pods are created: their numbers are never given again.

        Older attempts of the same slots are fenced by it.
        """

    def withdraw(self, job: RolloutJob, workers: Sequence[WorkerId]) -> None:
        """These were announced, and none of them is known to exist: the next look gives their numbers again.

        So a creation of unknown end is repeated under its name, and finds what it made. Kept in memory only.
        """

    def confirm(self, job: RolloutJob, workers: Iterable[WorkerId]) -> None:
        """These exist: what was withdrawn of them is not given again."""

    async def forget(self, key: JobKey) -> None:
        """The job is gone: tell the readers of a stream that goes on, and drop what is held in memory for it."""

    async def close(self) -> None:
        """Close every connection."""
