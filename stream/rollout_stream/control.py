"""A job's control plane in the server, synchronously: opening, seeds, commands, limits, progress, the end.

Used by the local run, by learners (`stream.control`) and by tools; the operator and the gateway use the asyncio twin in
`aio.py`, which has the same names. Everything said and understood is in `calls` and `progress`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from rollout_contract.errors import EpochConflict
from rollout_contract.keys import JobKeys, current
from rollout_contract.messages import EndKind, EndMarker, Layout
from rollout_contract.names import JobRef, Slot, WorkerId
from rollout_stream.calls import Commands, JobCalls, SeedState
from rollout_stream.connection import ServerAddress
from rollout_stream.progress import ControlState, Progress
from rollout_stream.progress_calls import control_commands, progress_commands
from rollout_stream.server_check import ServerInfo, server_commands
from rollout_stream.session import Backoff, Session
from rollout_stream.settings import JobSettings, StreamLimits


def check_server(session: Session) -> ServerInfo:
    """What the server is, and whether it is fit (`problems`). StreamUnavailable if it is away or refuses us."""
    return session.run(server_commands())


class Control:
    """The control plane of one job. All methods: StreamUnavailable, StateLost, StreamError."""

    def __init__(self, session: Session, job: JobRef) -> None:
        self.session = session
        self.job = job
        self._keys = JobKeys.of(job)
        self._calls = JobCalls(self._keys)

    @classmethod
    def connect(
        cls,
        url: str,
        *,
        job: JobRef,
        password: str | None = None,
        ca_file: str | None = None,
        patience_s: float = 10.0,
    ) -> Control:
        """A control with connections of its own, given back by `close`."""
        address = ServerAddress.of(url, password=password, ca_file=ca_file)
        return cls(Session(address, backoff=Backoff(patience_s)), job)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the session's connections."""
        self.session.close()

    def open_job(self, settings: JobSettings) -> bool:
        """Makes the job's keys, or finds them as they are. Whether it made them.

        Found keys are only renewed: budget, seed and limits stay as they have become. StreamFull if the server has no
        memory, StreamError if another job of the same eight digits has the keys.
        """
        created = self.session.run(self._calls.open_job(settings))
        self.session.run(name_job(self.job, settings.ttl_s))
        return created

    def check_server(self) -> ServerInfo:
        """See the function of the same name."""
        return check_server(self.session)

    def read_progress(self, *, episodes: int = 0) -> Progress:
        """Everything live about the job, in one round trip, with the newest so many episodes."""
        return self.session.run(progress_commands(self._keys, episodes=episodes))

    def read_control(self) -> ControlState:
        """Seed, epochs, commands, limits and end."""
        return self.session.run(control_commands(self._keys))

    def seed(self) -> SeedState:
        """The seed and its epoch."""
        state = self.read_control()
        return SeedState(state.seed, state.seed_epoch)

    def set_seed(self, seed: int, *, expected_epoch: int | None = None) -> SeedState:
        """Sets the seed and raises the epoch. EpochConflict if it is not the expected one."""
        return checked_seed(self.session.run(self._calls.set_seed(seed, expected_epoch)), expected_epoch)

    def command(self, *, paused: bool | None = None, draining: bool | None = None) -> int:
        """Sets what is given; the command epoch, raised if that changed anything."""
        return self.session.run(self._calls.command(flags_of(paused=paused, draining=draining)))

    def set_limits(self, limits: StreamLimits) -> None:
        """Replaces the limits; they hold from the next call of each worker."""
        self.session.run(self._calls.set_limits(limits, ""))

    def set_total(self, total_frames: int | None) -> None:
        """Changes the job's total (None: endless). The stream ends at once if so many are appended already."""
        self.session.run(self._calls.set_limits(None, "-" if total_frames is None else str(total_frames)))

    def set_random(self, frames: int) -> None:
        """Changes how many frames of the whole job are random; what was made of them already counts."""
        self.session.run(self._calls.set_random(frames))

    def set_groups(self, groups: Sequence[str]) -> None:
        """Changes which groups the job has from its start: entries wait for new ones, and for those left out no longer.

        Groups that readers brought themselves stay.
        """
        known = self.read_control().groups
        for call in self._calls.set_groups(known, groups):
            self.session.run(call)

    def finish(self, kind: EndKind, *, reason: str = "", message: str = "") -> bool:
        """Ends the stream for readers and writers. False if it had ended before: `finished` and `failed` are for good."""
        return self.session.run(self._calls.finish(EndMarker(kind.value, reason, message)))

    def reopen(self) -> bool:
        """Takes a `suspended` end back when the job resumes."""
        return self.session.run(self._calls.reopen())

    def notify(self, text: str) -> None:
        """Tells the readers that wait, such as that the job stands still; empty: all is well again."""
        self.session.run(self._calls.notice(text))

    def release(self, worker: WorkerId) -> int:
        """Frees the reservation of a worker that is removed or given up, and refuses what it may still send."""
        return self.session.run(self._calls.release(worker.slot, worker.attempt))

    def announce(self, workers: Sequence[WorkerId]) -> int:
        """Marks attempts as given before their processes exist: none is given twice, and older ones are fenced.

        How many of them are newer than what was known of their slots.
        """
        return self.session.run(self._calls.announce(workers))

    def next_attempt(self, slot: Slot) -> int:
        """1 + the highest attempt that ever joined or was announced; 0 if none was."""
        return self.session.run(self._calls.next_attempt(slot))

    def layout(self, what: str) -> Layout | None:
        """What `data` or `weights` look like; None as long as no worker has said it."""
        return self.session.run(self._calls.layout(what))

    def remove_group(self, group: str) -> bool:
        """Entries wait for the group no longer. False if it was not registered."""
        return self.session.run(self._calls.unregister(group))

    def touch(self) -> None:
        """Renews every key's time to live."""
        self.session.run(renew_name(self.job, self.session.run(self._calls.touch())))

    def expire(self, ttl_s: float) -> None:
        """From now on keys live for so many seconds after the last call: the end of a job."""
        self.session.run(renew_name(self.job, self.session.run(self._calls.touch(ttl_s))))

    def delete(self) -> None:
        """Removes every key of the job. No error if they are gone."""
        self.session.run(self._calls.delete())
        self.session.run(forget_name(self.job))


def flags_of(**flags: bool | None) -> dict[str, bool]:
    """Those flags that were given."""
    return {name: value for name, value in flags.items() if value is not None}


def checked_seed(state: SeedState, expected_epoch: int | None) -> SeedState:
    """The state, or EpochConflict."""
    if not state.was_set:
        raise EpochConflict(expected=expected_epoch or 0, seed=state.seed, epoch=state.epoch)
    return state


def name_job(job: JobRef, ttl_s: float) -> Commands[Any]:
    """Points the job's name at it, so that a learner that knows only the name finds the keys.

    The pointer has a slot of its own in a cluster, so it cannot be part of the job's scripts.
    """
    key = current(job.namespace, job.name)
    return Commands(
        "naming the job", (("SET", key, job.uid8, "PX", max(1, int(ttl_s * 1000))),), lambda a: a[0]
    )


_RENEW = """local found = redis.call('GET', KEYS[1])
if found and found ~= ARGV[1] then return 0 end
return redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])"""
_FORGET = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"


def renew_name(job: JobRef, ttl_ms: int) -> Commands[Any]:
    """Renews the pointer, unless a later job has the name."""
    key = current(job.namespace, job.name)
    return Commands("renewing the job's name", (("EVAL", _RENEW, 1, key, job.uid8, ttl_ms),), lambda a: a[0])


def forget_name(job: JobRef) -> Commands[Any]:
    """Takes the pointer away, unless a later job has the name."""
    key = current(job.namespace, job.name)
    return Commands("forgetting the job's name", (("EVAL", _FORGET, 1, key, job.uid8),), lambda a: a[0])
