"""The batches of one reader on their way from its thread to the learner, and the entries that it holds claims of."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection

from rollout_stream.batch import Batch


class Shelf:
    """Holds at most `size` batches that are read and not handed out. The thread puts, the learner takes; either may wait
    for the other. Once it has ended, nothing more is put.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._changed = threading.Condition()
        self._batches: deque[Batch] = deque()
        self._held: dict[str, None] = {}  # in the order in which they came; handed out or not
        self._has_ended = False
        self._outcome: BaseException | None = None

    # --- the learner's side

    def take(self, timeout_s: float) -> Batch | None:
        """The next batch; None if there is none within the time, or at the end. Its entry stays held."""
        with self._changed:
            self._changed.wait_for(lambda: self._batches or self._has_ended, timeout_s)
            if not self._batches:
                return None
            batch = self._batches.popleft()
            self._changed.notify_all()
            return batch

    @property
    def is_over(self) -> bool:
        """Whether nothing more can be taken."""
        with self._changed:
            return self._has_ended and not self._batches

    @property
    def outcome(self) -> BaseException | None:
        """The error that reading ended with; None where it just ended."""
        return self._outcome

    def forget(self, entry: str) -> None:
        """An entry went away: it was acked, or dropped."""
        with self._changed:
            self._held.pop(entry, None)
            self._changed.notify_all()

    def clear(self) -> tuple[list[str], list[str]]:
        """Give up everything: the entries that nobody has had, and those that were handed out."""
        with self._changed:
            unread = [batch.entry_id for batch in self._batches]
            self._batches.clear()
            handed_out = [entry for entry in self._held if entry not in set(unread)]
            self._held.clear()
            return unread, handed_out

    # --- the thread's side

    @property
    def room(self) -> int:
        """How many more batches it takes."""
        return self._size - len(self._batches)

    @property
    def has_ended(self) -> bool:
        """Whether it takes nothing more."""
        return self._has_ended

    def wait_for_room(self, timeout_s: float) -> None:
        """Return when a batch was taken, at the end, or when the time is over."""
        with self._changed:
            self._changed.wait_for(lambda: self.room > 0 or self._has_ended, timeout_s)

    def put(self, batch: Batch) -> None:
        """Hold a batch's entry, and offer it."""
        with self._changed:
            self._held[batch.entry_id] = None
            self._batches.append(batch)
            self._changed.notify_all()

    def held(self) -> list[str]:
        """The entries that are held, handed out or not."""
        with self._changed:
            return list(self._held)

    def lose(self, entries: Collection[str]) -> None:
        """Another reader has these now: what is not handed out yet is its."""
        with self._changed:
            for entry in entries:
                self._held.pop(entry, None)
            kept = [batch for batch in self._batches if batch.entry_id not in entries]
            self._batches.clear()
            self._batches.extend(kept)

    def is_settled(self, pending: int, own_pending: int, wait_s: float) -> bool:
        """Whether all that was delivered is dealt with: of the entries that are `pending` in the group none is another
        reader's, and none of our own is neither held nor handed out. Where not, waits for a change, so long at most.
        """
        with self._changed:
            if self._batches or pending > own_pending or own_pending > len(self._held):
                self._changed.wait(wait_s)
                return False
            return True

    def end(self) -> None:
        """Nothing more comes."""
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """Nothing more comes, because of an error, which the learner is to see."""
        self._outcome = error
        self.end()
