"""Rounds: one batch of every worker at a time, in a fixed order, for jobs that are to give the same bytes every time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Self

from rollout_contract.errors import StreamError
from rollout_contract.messages import WorkerState
from rollout_contract.names import Slot
from rollout_stream.batch import Batch
from rollout_stream.control import Control
from rollout_stream.reader import BatchReader


class Rounds(Iterator[tuple[Batch, ...]]):
    """Sorts a reader's batches into rounds. Round s holds batch s of every worker that has one.

    A worker is waited for until its batch is there, its record says that it has finished, or the job has ended.
    """

    def __init__(self, reader: BatchReader, control: Control, slots: Sequence[Slot]) -> None:
        if not slots:
            reader.close()
            raise StreamError("the job does not say who its workers are: rounds need `determinism: Strict`")
        self._reader = reader
        self._control = control
        self._slots = sorted(slots)
        self._waiting: dict[Slot, dict[int, Batch]] = {slot: {} for slot in self._slots}
        self._newest: dict[Slot, int] = {}

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> tuple[Batch, ...]:
        while not self._is_complete():
            batch = self._reader.next_within(1.0)
            if batch is not None:
                slot, sequence = batch.header.worker.slot, batch.header.sequence
                self._waiting.setdefault(slot, {})[sequence] = batch
                self._newest[slot] = max(sequence, self._newest.get(slot, 0))
        if not any(self._waiting.values()):
            raise_end = next(self._reader)  # the reader's own end: StopIteration, or why the job failed
            raise StreamError(f"a batch came after the end: {raise_end}")
        number = min(sequence for batches in self._waiting.values() for sequence in batches)
        return tuple(
            self._waiting[slot].pop(number) for slot in sorted(self._waiting) if number in self._waiting[slot]
        )

    def close(self) -> None:
        """Ends the reader."""
        self._reader.close()

    def _is_complete(self) -> bool:
        """Whether nothing more can come for the round whose turn it is."""
        missing = [slot for slot, batches in self._waiting.items() if not batches]
        if not missing or self._reader.is_over:
            return True
        if len(missing) == len(self._waiting):
            return False
        return not set(missing) - self._finished_slots()

    def _finished_slots(self) -> set[Slot]:
        """Workers that make no more, and whose last batch was read here or acked before."""
        progress = self._control.read_progress()
        finished = (Slot(w.group, w.index) for w in progress.workers if w.state == WorkerState.FINISHED)
        return {
            slot
            for slot in finished
            if self._newest.get(slot, 0) >= progress.sequences.get(slot, 0)
            or not progress.worker_counters[slot].unacked_batches
        }
