"""The spec of a RolloutJob in one import: models, the parser, and what every program asks of a spec.

Everyone reads specs through this module; the pieces behind it are `spec_models` (fields and bounds), `spec_enums`,
`pod_template`, `metadata`.
"""

from __future__ import annotations

from pydantic import ValidationError

from rollout_contract.errors import Fault, SpecError
from rollout_contract.metadata import ObjectMeta
from rollout_contract.pod_template import (
    Container,
    EnvVar,
    PodSpec,
    PodTemplate,
    Resources,
    SchedulingGate,
    TemplateMeta,
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
)

__all__ = [
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
    "StartPolicy",
    "StreamSpec",
    "TemplateMeta",
    "UpdateStrategy",
    "UpdateType",
    "WeightsSpec",
    "WorkerGroup",
    "groups_of",
    "parse_manifest",
    "worker_container",
]


def parse_manifest(document: object) -> RolloutJob:
    """The job that a manifest describes. SpecError with every fault."""
    try:
        return RolloutJob.model_validate(document, by_alias=True, by_name=False)
    except ValidationError as error:
        raise SpecError(
            Fault(path=".".join(map(str, e["loc"])), value=e["input"], message=e["msg"])
            for e in error.errors()
        ) from error


def groups_of(spec: RolloutJobSpec) -> tuple[WorkerGroup, ...]:
    """The worker groups, in the order in which they are written."""
    return spec.worker_groups
