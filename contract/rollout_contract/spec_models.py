"""The spec of a RolloutJob: every field of v1alpha1 with its meaning, default and bounds.

Read through `rollout_contract.spec`. Here each field is checked by itself; what ties fields together is in `spec_rules`,
what may be edited in `mutability`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, model_validator

from rollout_contract import fields as f
from rollout_contract import names
from rollout_contract import spec_enums as e
from rollout_contract.fields import Items, Model
from rollout_contract.metadata import ObjectMeta
from rollout_contract.pod_template import PodTemplate
from rollout_contract.status import RolloutJobStatus

DEFAULT_GROUP = "default"

Choice = TypeVar("Choice", bound=StrEnum)
OneOf = Annotated[Choice, Field(strict=False)]
"""A closed set, given as its text."""


class ObjectRef(Model):
    """An object of a known kind in the job's namespace."""

    name: f.Name


class KeyRef(Model):
    """One key of a Secret or ConfigMap in the job's namespace."""

    name: f.Name
    key: Annotated[str, Field(pattern=f.DATA_KEY, max_length=253)]


class KwargsSource(Model):
    """Where keyword arguments are read from: text keeps `1.0` a float, which the API server does not."""

    config_map_key_ref: KeyRef


class EnvTask(Model):
    """Some of a worker's environments, with arguments of their own."""

    name: f.LabelName
    count: Annotated[int, Field(ge=1, le=f.MAX_ENVS_PER_WORKER)]
    """Environments of this task in each worker."""
    kwargs: f.Kwargs | None = None
    """Merged over the environment's `kwargs`."""


class EnvSpec(Model):
    """The environments of one worker."""

    entrypoint: f.Entrypoint
    """`module:attribute`, called as `make_env(**kwargs)` once per environment, in the process that steps it."""
    kwargs: f.Kwargs | None = None
    """A JSON object; not together with `kwargsFrom`."""
    kwargs_from: KwargsSource | None = None
    tasks: Annotated[Items[EnvTask], Field(min_length=1, max_length=f.MAX_TASKS)] | None = None
    """Different environments in one worker; the counts sum to `envsPerWorker`."""
    envs_per_worker: Annotated[int, Field(ge=1, le=f.MAX_ENVS_PER_WORKER)] = 1
    """All environments of one worker, split evenly over its collectors."""
    backend: OneOf[e.EnvBackend] = e.EnvBackend.PROCESS
    processes: Annotated[int, Field(ge=1, le=f.MAX_PROCESSES)] | None = None
    """Child processes of a worker that step them; unset: the CPU limit, at most `envsPerWorker`."""
    step_timeout_seconds: f.WaitSeconds = 60
    """An environment that does not answer for so long is treated as dead."""
    on_error: OneOf[e.OnError] = e.OnError.FAIL
    """What an environment that raises, and a process that is lost or does not answer, leads to: the worker fails; or
    (`Restart`) a new one takes its place, running trajectories end as truncated, and the frame of the failure is False in
    the leaf `next.valid`. Where new ones fail again and again, the worker fails."""


class PolicySpec(Model):
    """The policy that acts in the environments."""

    entrypoint: f.Entrypoint
    """`module:attribute`, called as `make_policy(observation_spec, action_spec, **kwargs)` once per collector."""
    kwargs: f.Kwargs | None = None
    exploration: OneOf[e.Exploration] = e.Exploration.RANDOM


class CodeSpec(Model):
    """Python files that are put on the worker's path; in a local run the manifest's directory is there instead."""

    config_map_ref: ObjectRef


class CollectorSpec(Model):
    """How steps become batches."""

    mode: OneOf[e.CollectorMode] = e.CollectorMode.SYNC
    collectors_per_worker: Annotated[int, Field(ge=1, le=f.MAX_COLLECTORS)] = 1
    coordination: OneOf[e.Coordination] = e.Coordination.INDEPENDENT
    frames_per_batch: Annotated[int, Field(ge=1, le=f.MAX_FRAMES_PER_BATCH)]
    """Frames of one stream entry: a multiple of the environments that make it."""
    total_frames: f.Frames | None = None
    """Frames appended by the whole job, met exactly; unset: until stopped."""
    max_frames_per_traj: f.Frames | None = None
    """A longer trajectory is truncated (not terminated); unset: the environment decides."""
    init_random_frames: Annotated[int, Field(ge=0, le=f.MAX_FRAMES)] = 0
    """First frames of the job whose actions are random."""
    preemption_threshold_percent: Annotated[int, Field(ge=1, le=100)] | None = None
    """A joint batch closes once so many percent of its makers are done; unset: when all are."""
    reset_at_each_batch: bool = False


class WorkerGroup(Model):
    """Workers of one pod template."""

    name: f.GroupName
    elastic: bool = False
    """The one group whose number of workers is `spec.replicas`."""
    replicas: Annotated[int, Field(ge=0, le=f.MAX_REPLICAS)] | None = None
    """Workers of a fixed group, 1 unless written; an elastic group has none of its own."""
    min_replicas: Annotated[int, Field(ge=0, le=f.MAX_REPLICAS)] = 0
    max_replicas: Annotated[int, Field(ge=0, le=f.MAX_REPLICAS)] | None = None
    min_available: Annotated[int, Field(ge=0, le=f.MAX_REPLICAS)] = 0
    """With fewer ready workers the job is degraded."""
    device: OneOf[e.Device] = e.Device.AUTO
    shared_memory: f.SharedMemorySize | None = None
    """Size of a memory-backed `/dev/shm`; unset: the operator computes it."""
    template: PodTemplate | None = None
    """Unset: the operator's worker image with its default resources."""

    @model_validator(mode="before")
    @classmethod
    def _fixed_group_has_one_worker(cls, data: Any) -> Any:
        is_fixed = isinstance(data, dict) and data.get("elastic", False) is False
        if is_fixed and data.get("replicas") is None:
            return {**data, "replicas": 1}
        return data


class UpdateStrategy(Model):
    """How an edited template reaches running workers."""

    type: OneOf[e.UpdateType] = e.UpdateType.ROLLING_REPLACE
    max_unavailable: Annotated[int, Field(ge=1, le=f.MAX_REPLICAS)] = 1


class RedisTls(Model):
    """An encrypted connection to Redis."""

    enabled: bool
    ca_secret_ref: KeyRef | None = None
    """The authority that signed the server's certificate; unset: the image's own list."""


class RedisSpec(Model):
    """The server that holds the job's streams; without `host` the operator's default server."""

    host: Annotated[str, Field(pattern=f.HOST, max_length=253)] | None = None
    port: Annotated[int, Field(ge=1, le=65535)] = 6379
    tls: RedisTls | None = None
    auth_secret_ref: KeyRef | None = None
    """The password, by reference only."""
    key_ttl_seconds_after_finished: Annotated[f.Seconds, Field(alias="keyTTLSecondsAfterFinished")] = 86_400
    cleanup_policy: OneOf[e.CleanupPolicy] = e.CleanupPolicy.EXPIRE


class RateLimit(Model):
    """Ties reading to writing; which fields a type takes is in `spec_rules`."""

    type: OneOf[e.RateLimitType]
    samples_per_insert: f.Ratio | None = None
    min_frames: f.Frames | None = None
    error_buffer_frames: f.Frames | None = None


class StreamSpec(Model):
    """The data plane and its limits."""

    shards: Annotated[int, Field(ge=1, le=f.MAX_SHARDS)] = 1
    max_unacked_frames: f.Frames | None = None
    """High watermark (the low one is 80 %); unset: 8 batches of every worker, recorded in status."""
    max_bytes: f.Size = "4Gi"
    """Unacked bytes of the whole job."""
    on_full: OneOf[e.OnFull] = e.OnFull.BLOCK
    compression: OneOf[e.Compression] = e.Compression.NONE
    max_frame_bytes: f.FrameSize = "256Mi"
    """A larger batch is split along environments."""
    groups: (
        Annotated[
            Items[Annotated[str, Field(pattern=f.CONSUMER_GROUP, max_length=63)]],
            Field(min_length=1, max_length=f.MAX_CONSUMER_GROUPS),
        ]
        | None
    ) = None
    """Consumer groups that exist before the first worker starts; unset: a group begins when its first reader asks."""
    claim_idle_seconds: f.WaitSeconds = 30
    """A batch that is not acked for so long goes to another reader of its group."""
    rate_limit: RateLimit | None = None


class WeightsSpec(Model):
    """How the policy is kept fresh."""

    start_policy: OneOf[e.StartPolicy] = e.StartPolicy.IMMEDIATE
    max_staleness: Annotated[int, Field(ge=0, le=f.MAX_VERSIONS)] | None = None
    """Weight versions a batch may lag behind; 0: the newest before every batch; unset: no bound."""
    on_stale: OneOf[e.OnStale] = e.OnStale.PACE
    apply_at: OneOf[e.ApplyAt] = e.ApplyAt.BATCH
    fetch_timeout_seconds: f.WaitSeconds = 60
    keep_versions: Annotated[int, Field(ge=2, le=f.MAX_KEPT_VERSIONS)] = 3
    max_bytes: f.Size = "4Gi"
    """A larger upload is refused before it is read."""


class OnExitCodes(Model):
    """Matches the exit code of a worker that failed."""

    operator: OneOf[e.ExitCodeOperator]
    values: Annotated[
        Items[Annotated[int, Field(ge=1, le=255)]], Field(min_length=1, max_length=f.MAX_RULE_VALUES)
    ]


class OnPodCondition(Model):
    """Matches a condition of the pod that failed."""

    type: Annotated[str, Field(pattern=f.CONDITION_TYPE, max_length=316)]
    status: OneOf[e.ConditionStatus]


class FailureRule(Model):
    """What to do with a failed worker that matches all that is written; the first rule that matches wins."""

    name: f.LabelName
    action: OneOf[e.FailureAction]
    on_exit_codes: OnExitCodes | None = None
    on_pod_conditions: (
        Annotated[Items[OnPodCondition], Field(min_length=1, max_length=f.MAX_RULE_ITEMS)] | None
    ) = None
    on_reasons: (
        Annotated[
            Items[Annotated[str, Field(pattern=f.CAMEL_CASE, max_length=128)]],
            Field(min_length=1, max_length=f.MAX_RULE_ITEMS),
        ]
        | None
    ) = None
    worker_groups: Annotated[Items[f.GroupName], Field(min_length=1, max_length=f.MAX_GROUPS)] | None = None


class FailurePolicy(Model):
    """How many failures a job survives, and what each leads to."""

    backoff_limit: Annotated[int, Field(ge=0, le=f.MAX_FAILURES)] = 6
    backoff_limit_per_worker: Annotated[int, Field(ge=0, le=f.MAX_ATTEMPTS)] | None = None
    """A worker over it stays down; unset: no limit of its own."""
    backoff_seconds: Annotated[int, Field(ge=0, le=f.MAX_BACKOFF_SECONDS)] = 10
    """First wait before a replacement, doubled to at most 300, back to the first after 10 minutes of health."""
    rules: Annotated[Items[FailureRule], Field(max_length=f.MAX_RULES)] | None = None


class PodRetention(Model):
    """Ended pods that are kept for their logs."""

    failed: Annotated[int, Field(ge=0, le=100)] = 1
    """Newest failed pods of each group."""


class RolloutJobSpec(Model):
    """What is wanted: environments, a policy, and how their experience reaches the learner."""

    suspend: bool = False
    """Drain and delete the workers, keep everything else."""
    managed_by: Annotated[str, Field(pattern=f.MANAGER, max_length=63)] | None = None
    """Anything but our own name means hands off."""
    env: EnvSpec
    policy: PolicySpec
    code: CodeSpec | None = None
    collector: CollectorSpec
    seed: Annotated[int, Field(ge=0, le=f.MAX_SEED)] | None = None
    """Every seed of the job is derived from it; unset: drawn once and recorded in status."""
    determinism: OneOf[e.Determinism] = e.Determinism.BEST_EFFORT
    replicas: Annotated[int, Field(ge=0, le=f.MAX_REPLICAS)] = 1
    """Workers of the elastic group; the target of `/scale`."""
    worker_groups: Annotated[Items[WorkerGroup], Field(min_length=1, max_length=f.MAX_GROUPS)] = (
        WorkerGroup(name=DEFAULT_GROUP, elastic=True),
    )
    """Unset: one elastic group `default`."""
    update_strategy: UpdateStrategy = UpdateStrategy()
    redis: RedisSpec = RedisSpec()
    stream: StreamSpec = StreamSpec()
    weights: WeightsSpec = WeightsSpec()
    failure_policy: FailurePolicy = FailurePolicy()
    startup_deadline_seconds: f.Seconds = 600
    """A job that is not ready so long after its start fails."""
    stalled_deadline_seconds: f.Seconds = 900
    """A job without a new frame for so long, while nobody holds it back, fails."""
    active_deadline_seconds: f.Seconds | None = None
    """A job fails so long after its start; unset: no limit."""
    ttl_seconds_after_finished: Annotated[int, Field(ge=0, le=f.MAX_SECONDS)] | None = None
    """A finished job is deleted after so long; unset: it stays."""
    pod_retention: PodRetention = PodRetention()


class RolloutJob(Model):
    """The custom resource: keep N workers producing batches of this environment with this policy."""

    api_version: Literal["rolloutjob.dev/v1alpha1"]
    kind: Literal["RolloutJob"]
    metadata: ObjectMeta
    spec: RolloutJobSpec
    status: Annotated[RolloutJobStatus, Field(exclude_if=lambda status: status == RolloutJobStatus())] = (
        RolloutJobStatus()
    )

    @property
    def ref(self) -> names.JobRef:
        """Namespace, name and UID. ValueError for a job that was not stored yet and so has no UID."""
        if not self.metadata.uid:
            raise ValueError(
                f"RolloutJob {self.metadata.namespace}/{self.metadata.name} has no metadata.uid yet"
            )
        return names.JobRef(namespace=self.metadata.namespace, name=self.metadata.name, uid=self.metadata.uid)


def desired_replicas(spec: RolloutJobSpec, group: WorkerGroup) -> int:
    """Workers that a group should have while the job runs: its `replicas`, or the job's if it is elastic, in its bounds."""
    wanted = spec.replicas if group.elastic else group.replicas
    wanted = 1 if wanted is None else wanted
    wanted = max(wanted, group.min_replicas)
    return wanted if group.max_replicas is None else min(wanted, group.max_replicas)
