"""The spec of a RolloutJob in one import: models, the parser, and what every program asks of a spec.

Everyone reads specs through this module; the pieces behind it are `spec_models` (fields and bounds), `spec_enums`,
`pod_template`, `metadata`; `spec_parse` (manifests), `spec_rules` (what ties fields together), `mutability` (edits),
`unbuilt` (what does not run yet).
"""

from __future__ import annotations

from rollout_contract.errors import Fault, SpecError
from rollout_contract.metadata import ObjectMeta
from rollout_contract.mutability import faults_of_update
from rollout_contract.pod_template import (
    Container,
    EnvVar,
    PodSpec,
    PodTemplate,
    Resources,
    SchedulingGate,
    TemplateMeta,
    gpu_limits,
    limits_of,
    worker_container,
)
from rollout_contract.spec_enums import (
    ApplyAt,
    CleanupPolicy,
    CollectorMode,
    Compression,
    Coordination,
    Determinism,
    Device,
    EnvBackend,
    ExitCodeOperator,
    Exploration,
    FailureAction,
    OnError,
    OnFull,
    OnStale,
    RateLimitType,
    StartPolicy,
    UpdateType,
)
from rollout_contract.spec_models import (
    CodeSpec,
    CollectorSpec,
    EnvSpec,
    EnvTask,
    FailurePolicy,
    FailureRule,
    KeyRef,
    KwargsSource,
    ObjectRef,
    OnExitCodes,
    OnPodCondition,
    PodRetention,
    PolicySpec,
    RateLimit,
    RedisSpec,
    RedisTls,
    RolloutJob,
    RolloutJobSpec,
    StreamSpec,
    UpdateStrategy,
    WeightsSpec,
    WorkerGroup,
    desired_replicas,
)
from rollout_contract.spec_parse import parse_manifest
from rollout_contract.unbuilt import not_built

__all__ = [
    "BATCHES_IN_FLIGHT",
    "ApplyAt",
    "CleanupPolicy",
    "CodeSpec",
    "CollectorMode",
    "CollectorSpec",
    "Compression",
    "Container",
    "Coordination",
    "Determinism",
    "Device",
    "EnvBackend",
    "EnvSpec",
    "EnvTask",
    "EnvVar",
    "ExitCodeOperator",
    "Exploration",
    "FailureAction",
    "FailurePolicy",
    "FailureRule",
    "Fault",
    "KeyRef",
    "KwargsSource",
    "ObjectMeta",
    "ObjectRef",
    "OnError",
    "OnExitCodes",
    "OnFull",
    "OnPodCondition",
    "OnStale",
    "PodRetention",
    "PodSpec",
    "PodTemplate",
    "PolicySpec",
    "RateLimit",
    "RateLimitType",
    "RedisSpec",
    "RedisTls",
    "Resources",
    "RolloutJob",
    "RolloutJobSpec",
    "SchedulingGate",
    "SpecError",
    "StartPolicy",
    "StreamSpec",
    "TemplateMeta",
    "UpdateStrategy",
    "UpdateType",
    "WeightsSpec",
    "WorkerGroup",
    "default_max_unacked_frames",
    "desired_replicas",
    "device_of",
    "elastic_group",
    "faults_of_update",
    "gpu_limits",
    "group_numbers",
    "groups_of",
    "is_clamped",
    "limits_of",
    "max_unacked_frames",
    "not_built",
    "parse_manifest",
    "total_replicas",
    "worker_container",
]


BATCHES_IN_FLIGHT = 8
"""Unacked batches of every worker that the default high watermark allows."""


def groups_of(spec: RolloutJobSpec) -> tuple[WorkerGroup, ...]:
    """The worker groups as they are written; the one elastic group `default` if none are."""
    return spec.worker_groups


def elastic_group(spec: RolloutJobSpec) -> WorkerGroup | None:
    """The group whose number of workers is `spec.replicas`, if there is one."""
    return next((group for group in spec.worker_groups if group.elastic), None)


def group_numbers(spec: RolloutJobSpec) -> dict[str, int]:
    """Each group's number in trajectory ids: its position in the sorted list of names."""
    return {name: number for number, name in enumerate(sorted(group.name for group in spec.worker_groups))}


def total_replicas(spec: RolloutJobSpec) -> int:
    """Workers of all groups while the job runs."""
    return sum(desired_replicas(spec, group) for group in spec.worker_groups)


def is_clamped(spec: RolloutJobSpec, group: WorkerGroup) -> bool:
    """Whether the wanted number of workers lies outside of the group's bounds, so that another one is used."""
    wanted = spec.replicas if group.elastic else group.replicas
    return wanted is not None and wanted != desired_replicas(spec, group)


def device_of(group: WorkerGroup) -> Device:
    """`Cpu` or `Cuda`: what `device` says, and with `Auto` whether the template has a GPU limit."""
    if group.device is not Device.AUTO:
        return group.device
    return Device.CUDA if any(gpu_limits(group.template)) else Device.CPU


def default_max_unacked_frames(spec: RolloutJobSpec) -> int:
    """The high watermark where the spec leaves it unset: 8 batches of every worker, and of one where there is none."""
    return BATCHES_IN_FLIGHT * spec.collector.frames_per_batch * max(1, total_replicas(spec))


def max_unacked_frames(spec: RolloutJobSpec) -> int:
    """The high watermark in force, in frames."""
    limit = spec.stream.max_unacked_frames
    return default_max_unacked_frames(spec) if limit is None else limit
