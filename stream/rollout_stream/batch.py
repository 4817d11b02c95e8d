"""One batch in a learner's hands."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rollout_contract.wire import BatchHeader, Frame
from rollout_stream.leaves import Contents

if TYPE_CHECKING:
    from tensordict import TensorDict


class Batch:
    """A batch: `data` is a TensorDict `[num_envs, num_steps]`, `header` says where it comes from.

    It stays this reader's until it is acked. Acked means done with: it never comes again. As a context manager it is
    acked at the end of the block, unless an error leaves it: then it comes again.
    """

    __slots__ = ("_ack", "_contents", "_data", "_frame", "deliveries", "entry_id", "is_acked")

    def __init__(
        self,
        frame: Frame,
        contents: Contents,
        *,
        entry_id: str,
        deliveries: int,
        ack: Callable[[Batch], None],
    ) -> None:
        self._frame = frame
        self._contents = contents
        self._ack = ack
        self._data: TensorDict | None = None
        self.entry_id = entry_id
        """The entry's id in the stream."""
        self.deliveries = deliveries
        """How often it was given to a reader of this group, this time included."""
        self.is_acked = False

    def __repr__(self) -> str:
        h = self.header
        return f"Batch({h.worker}, sequence {h.sequence}, {list(h.shape)}, {'re' if self.redelivered else ''}delivered)"

    @property
    def header(self) -> BatchHeader:
        """Worker, sequence, shape, policy version, seed epoch, episodes."""
        return self._frame.header

    @property
    def frame(self) -> Frame:
        """The checked bytes, for readers without torch."""
        return self._frame

    @property
    def redelivered(self) -> bool:
        """Whether a reader of this group had it before and did not ack it."""
        return self.deliveries > 1

    @property
    def data(self) -> TensorDict:
        """The batch's tensors, mapped onto the bytes that were received. Built at the first use."""
        if self._data is None:
            from rollout_stream import codec

            self._data = codec.data_of(self._frame, self._contents)
        return self._data

    def ack(self) -> None:
        """Says that the batch is done with. A second ack does nothing. StreamUnavailable, StateLost."""
        if not self.is_acked:
            self._ack(self)
            self.is_acked = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.ack()
