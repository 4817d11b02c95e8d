"""Every Redis key of a job. All but one share the hash tag `{<namespace>/<name>/<uid8>}`: one Cluster slot, one Lua call."""

from __future__ import annotations

from dataclasses import dataclass

from rollout_contract.names import JobRef


def current(namespace: str, name: str) -> str:
    """String: the uid8 of the job that has this name now. The one key outside of the job's own prefix."""
    return f"rollout:current:{{{namespace}/{name}}}"


@dataclass(frozen=True, slots=True)
class JobKeys:
    """The keys of one job (shard 0, where the budget and all control state live)."""

    prefix: str

    @classmethod
    def of(cls, job: JobRef) -> JobKeys:
        """The keys of a job."""
        return cls(f"rollout:{{{job.namespace}/{job.name}/{job.uid8}}}")

    @property
    def batches(self) -> str:
        """Stream: one entry per batch, field `b` = frame; end markers have the field `e`."""
        return f"{self.prefix}:batches"

    @property
    def counters(self) -> str:
        """Hash: frames, batches, bytes, episodes, acked, dropped, duplicates, unacked frames and bytes…"""
        return f"{self.prefix}:counters"

    @property
    def budget(self) -> str:
        """Hash: `total`, `reserved`, and one open reservation per (group, index, sequence)."""
        return f"{self.prefix}:budget"

    @property
    def workers(self) -> str:
        """Hash: one heartbeat (JSON) per `<group>/<index>`."""
        return f"{self.prefix}:workers"

    @property
    def writers(self) -> str:
        """Hash: newest attempt and last sequence per `<group>/<index>`: how repeats and zombies are recognised."""
        return f"{self.prefix}:writers"

    @property
    def pending(self) -> str:
        """Hash: per entry id, its frames, bytes and which registered groups have not acked it."""
        return f"{self.prefix}:pending"

    @property
    def groups(self) -> str:
        """Set: registered consumer groups."""
        return f"{self.prefix}:groups"

    @property
    def weights(self) -> str:
        """Hash: `newest`, and per version its JSON record (size, digest, chunks, time, publisher)."""
        return f"{self.prefix}:weights"

    def weights_chunk(self, version: int, chunk: int) -> str:
        """String: one chunk of at most 8 MiB of a version's bytes."""
        return f"{self.prefix}:weights:{version}:{chunk}"

    def upload_chunk(self, upload: str, chunk: int) -> str:
        """String: one chunk of an upload that has no version yet; expires by itself."""
        return f"{self.prefix}:upload:{upload}:{chunk}"

    @property
    def layout(self) -> str:
        """Hash: `data` and `weights` as JSON (keys, shapes, dtypes); the first worker sets it."""
        return f"{self.prefix}:layout"

    @property
    def control(self) -> str:
        """Hash: seed, seed epoch, command epoch, paused, draining, limits: live-tunable."""
        return f"{self.prefix}:control"

    @property
    def episodes(self) -> str:
        """List: the newest finished episodes (JSON: return, length, policy version, frames so far), bounded."""
        return f"{self.prefix}:episodes"

    @property
    def bad(self) -> str:
        """Stream, bounded: entries that were no frames, with the reason."""
        return f"{self.prefix}:bad"

    @property
    def news(self) -> str:
        """Pub/sub channel: a wake-up only, never the only carrier of a fact."""
        return f"{self.prefix}:news"
