"""What a frame holds: the header of a batch, where each leaf lies, and leaves that have no place yet."""

from __future__ import annotations

from dataclasses import dataclass, field

from rollout_contract.messages import EpisodeSummary, Layout
from rollout_contract.names import WorkerId
from rollout_contract.wire.format import FORMAT_VERSION, BytesLike


@dataclass(frozen=True, slots=True)
class BufferSpec:
    """Where one leaf lies in the body, and what it is.

    `offset` counts from the body's start, `length` are the bytes stored, `raw_length` those after decompression.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    length: int
    raw_length: int
    compression: str = "none"


@dataclass(frozen=True, slots=True)
class BatchHeader:
    """What a frame says about its batch. `shape` is `[num_envs, num_steps]`, `frames` their product.

    `policy_version` is (first, last) version that acted inside the batch; `part` is (number, count) where a batch was
    split along its environments.
    """

    job: str
    worker: WorkerId
    sequence: int
    shape: tuple[int, ...]
    frames: int
    policy_version: tuple[int, int] = (0, 0)
    seed_epoch: int = 0
    episodes: EpisodeSummary = field(default_factory=EpisodeSummary)
    buffers: tuple[BufferSpec, ...] = ()
    part: tuple[int, int] = (0, 1)
    version: int = FORMAT_VERSION


@dataclass(frozen=True, slots=True)
class Frame:
    """A checked frame: its header, and its body as a view on the bytes it came from."""

    header: BatchHeader
    body: memoryview

    def buffer(self, spec: BufferSpec) -> memoryview:
        """The stored bytes of one leaf (compressed, if its spec says so), without a copy."""
        return self.body[spec.offset : spec.offset + spec.length]


@dataclass(frozen=True, slots=True)
class Leaf:
    """One leaf before it has a place: its name, what it is, and its stored bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: BytesLike
    compression: str = "none"
    raw_length: int | None = None
    """Bytes before compression; None where `data` is not compressed."""

    @property
    def length(self) -> int:
        """Bytes stored."""
        return self.data.nbytes if isinstance(self.data, memoryview) else len(self.data)


def layout_of(header: BatchHeader) -> Layout:
    """What one frame of a batch looks like: per leaf its dtype, and its shape without the batch's dimensions.

    Both sides compare this: a worker declares it before its first batch, a reader checks every batch against it.
    """
    dims = len(header.shape)
    return Layout({b.name: {"dtype": b.dtype, "shape": list(b.shape[dims:])} for b in header.buffers})
