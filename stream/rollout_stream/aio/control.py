"""A job's control plane, with asyncio: the twin of `rollout_stream.control`, method by method."""

from __future__ import annotations

from collections.abc import Sequence

from rollout_contract.errors import JobNotFound
from rollout_contract.keys import JobKeys, current
from rollout_contract.messages import EndKind, EndMarker, Layout
from rollout_contract.names import JobRef, Slot, WorkerId
from rollout_stream.aio.session import AsyncSession
from rollout_stream.calls import Commands, JobCalls, SeedState
from rollout_stream.control import checked_seed, flags_of, forget_name, name_job, renew_name
from rollout_stream.progress import ControlState, Progress
from rollout_stream.progress_calls import control_commands, progress_commands
from rollout_stream.server_check import ServerInfo, server_commands
from rollout_stream.settings import JobSettings, StreamLimits


async def check_server(session: AsyncSession) -> ServerInfo:
    """What the server is, and whether it is fit (`problems`). StreamUnavailable if it is away or refuses us."""
    return await session.run(server_commands())


async def find_job(session: AsyncSession, namespace: str, name: str) -> JobRef:
    """The job that has the name now; its `uid` holds the first eight digits only. JobNotFound if there is none."""
    key = current(namespace, name)
    found = await session.run(Commands("looking for the job", (("GET", key),), lambda a: a[0]))
    if not found:
        raise JobNotFound(f"Redis at {session.address} knows no job {namespace}/{name}")
    return JobRef(namespace, name, found.decode())


class Control:
    """The control plane of one job; see `rollout_stream.control.Control` for what each method does."""

    def __init__(self, session: AsyncSession, job: JobRef) -> None:
        self.session = session
        self.job = job
        self._keys = JobKeys.of(job)
        self._calls = JobCalls(self._keys)

    async def open_job(self, settings: JobSettings) -> bool:
        """Makes the job's keys, or finds them as they are. Whether it made them."""
        created = await self.session.run(self._calls.open_job(settings))
        await self.session.run(name_job(self.job, settings.ttl_s))
        return created

    async def check_server(self) -> ServerInfo:
        """See the function of the same name."""
        return await check_server(self.session)

    async def read_progress(self, *, episodes: int = 0) -> Progress:
        """Everything live about the job, in one round trip, with the newest so many episodes."""
        return await self.session.run(progress_commands(self._keys, episodes=episodes))

    async def read_control(self) -> ControlState:
        """Seed, epochs, commands, limits and end."""
        return await self.session.run(control_commands(self._keys))

    async def seed(self) -> SeedState:
        """The seed and its epoch."""
        state = await self.read_control()
        return SeedState(state.seed, state.seed_epoch)

    async def set_seed(self, seed: int, *, expected_epoch: int | None = None) -> SeedState:
        """Sets the seed and raises the epoch. EpochConflict if it is not the expected one."""
        return checked_seed(
            await self.session.run(self._calls.set_seed(seed, expected_epoch)), expected_epoch
        )

    async def command(self, *, paused: bool | None = None, draining: bool | None = None) -> int:
        """Sets what is given; the command epoch, raised if that changed anything."""
        return await self.session.run(self._calls.command(flags_of(paused=paused, draining=draining)))

    async def set_limits(self, limits: StreamLimits) -> None:
        """Replaces the limits; they hold from the next call of each worker."""
        await self.session.run(self._calls.set_limits(limits, ""))

    async def set_total(self, total_frames: int | None) -> None:
        """Changes the job's total (None: endless). The stream ends at once if so many are appended already."""
        await self.session.run(
            self._calls.set_limits(None, "-" if total_frames is None else str(total_frames))
        )

    async def set_random(self, frames: int) -> None:
        """Changes how many frames of the whole job are random; what was made of them already counts."""
        await self.session.run(self._calls.set_random(frames))

    async def set_groups(self, groups: Sequence[str]) -> None:
        """Changes which groups the job has from its start: entries wait for new ones, and for those left out no longer.

        Groups that readers brought themselves stay.
        """
        known = (await self.read_control()).groups
        for call in self._calls.set_groups(known, groups):
            await self.session.run(call)

    async def finish(self, kind: EndKind, *, reason: str = "", message: str = "") -> bool:
        """Ends the stream for readers and writers. False if it had ended before."""
        return await self.session.run(self._calls.finish(EndMarker(kind.value, reason, message)))

    async def reopen(self) -> bool:
        """Takes a `suspended` end back when the job resumes."""
        return await self.session.run(self._calls.reopen())

    async def notify(self, text: str) -> None:
        """Tells the readers that wait, such as that the job stands still; empty: all is well again."""
        await self.session.run(self._calls.notice(text))

    async def release(self, worker: WorkerId) -> int:
        """Frees the reservation of a worker that is removed or given up, and refuses what it may still send."""
        return await self.session.run(self._calls.release(worker.slot, worker.attempt))

    async def announce(self, workers: Sequence[WorkerId]) -> int:
        """Marks attempts as given before their processes exist: none is given twice, and older ones are fenced."""
        return await self.session.run(self._calls.announce(workers))

    async def next_attempt(self, slot: Slot) -> int:
        """1 + the highest attempt that ever joined or was announced; 0 if none was."""
        return await self.session.run(self._calls.next_attempt(slot))

    async def layout(self, what: str) -> Layout | None:
        """What `data` or `weights` look like; None as long as no worker has said it."""
        return await self.session.run(self._calls.layout(what))

    async def remove_group(self, group: str) -> bool:
        """Entries wait for the group no longer. False if it was not registered."""
        return await self.session.run(self._calls.unregister(group))

    async def touch(self) -> None:
        """Renews every key's time to live."""
        await self.session.run(renew_name(self.job, await self.session.run(self._calls.touch())))

    async def expire(self, ttl_s: float) -> None:
        """From now on keys live for so many seconds after the last call: the end of a job."""
        await self.session.run(renew_name(self.job, await self.session.run(self._calls.touch(ttl_s))))

    async def delete(self) -> None:
        """Removes every key of the job. No error if they are gone."""
        await self.session.run(self._calls.delete())
        await self.session.run(forget_name(self.job))
