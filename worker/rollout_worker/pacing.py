"""What a worker does next: a pure decision from the job's news and the worker's own state.

Called by `loop` before every batch, with the newest answer of the stream. Knows no clock and no I/O; the order of the
questions below is the order of precedence.
"""

from __future__ import annotations

from dataclasses import dataclass

from rollout_contract.messages import Reservation, ReserveStatus, WorkerState
from rollout_contract.spec import Determinism, StartPolicy, WeightsSpec


@dataclass(frozen=True, slots=True)
class Stop:
    """The job's frames are complete: leave."""


@dataclass(frozen=True, slots=True)
class Fenced:
    """A newer attempt of this worker has written: leave without another word."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing may be made now; ask again when there is news."""

    state: WorkerState


@dataclass(frozen=True, slots=True)
class Load:
    """Fetch and load this policy version."""

    version: int


@dataclass(frozen=True, slots=True)
class Reseed:
    """Derive all seeds anew for this epoch, and reset every environment."""

    seed: int
    seed_epoch: int


@dataclass(frozen=True, slots=True)
class Collect:
    """Make a batch of so many frames, the first `random` of them with random actions."""

    frames: int
    random: int


Move = Stop | Fenced | Wait | Load | Reseed | Collect


@dataclass(frozen=True, slots=True)
class Rules:
    """What of the spec bears on the decision."""

    max_staleness: int | None
    """Of a Strict job, where it cannot be edited; else the bound comes with the news."""
    is_strict: bool
    waits_for_weights: bool

    @classmethod
    def of(cls, weights: WeightsSpec, determinism: Determinism) -> Rules:
        """The rules of a job."""
        return cls(
            max_staleness=weights.max_staleness,
            is_strict=determinism is Determinism.STRICT,
            waits_for_weights=weights.start_policy is StartPolicy.WAIT_FOR_WEIGHTS,
        )

    def exact_version(self, sequence: int) -> int | None:
        """With `determinism: Strict`, the one version that makes batch `sequence` (from 1); else None."""
        if not self.is_strict:
            return None
        return 0 if self.max_staleness is None else max(0, sequence - 1 - self.max_staleness)


@dataclass(frozen=True, slots=True)
class Standing:
    """Where the worker stands."""

    sequence: int
    """Sequence of the batch to be made next, from 1."""
    loaded_version: int
    rejected_version: int
    """Newest version that did not fit; it is not tried again."""
    seed_epoch: int
    has_open_trajectories: bool
    """Whether trajectories of this epoch run on into the next batch. They end in a batch, marked as truncated, so a new
    epoch that is heard of between two batches waits for the next append, which refuses a batch of the old one."""


def next_move(news: Reservation, standing: Standing, rules: Rules) -> Move:
    """The one thing to do now."""
    match news.status:
        case ReserveStatus.FENCED:
            return Fenced()
        case ReserveStatus.FINISHED:
            return Stop()
        case _ if news.seed_epoch != standing.seed_epoch and not standing.has_open_trajectories:
            return Reseed(news.seed, news.seed_epoch)
        case ReserveStatus.FULL:
            return Wait(WorkerState.BACKPRESSURED)
        case ReserveStatus.WAIT:
            return Wait(WorkerState.PAUSED)
        case ReserveStatus.GRANTED:
            return _weights_move(news, standing, rules) or Collect(news.granted, news.random)


def _weights_move(news: Reservation, standing: Standing, rules: Rules) -> Move | None:
    exact = rules.exact_version(standing.sequence)
    if exact is not None:
        if standing.loaded_version == exact:
            return None
        return Load(exact) if news.newest_version >= exact else Wait(WorkerState.WAITING_FOR_WEIGHTS)
    if news.newest_version > max(standing.loaded_version, standing.rejected_version):
        return Load(news.newest_version)
    if rules.waits_for_weights and standing.loaded_version == 0:
        return Wait(WorkerState.WAITING_FOR_WEIGHTS)
    if news.max_own_unacked is not None and news.own_unacked_batches > news.max_own_unacked:
        return Wait(WorkerState.PAUSED)
    return None
