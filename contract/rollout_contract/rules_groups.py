"""Rules of worker groups, their pod templates, and of the failure policy that names them. Part of `spec_rules`.

Each yields a fault at the field that a user would change, and says what to write instead.
"""

from __future__ import annotations

from collections.abc import Iterator

from rollout_contract import quantities
from rollout_contract.errors import Fault
from rollout_contract.faults import did_you_mean, duplicates, shown
from rollout_contract.pod_template import RESERVED_ENV, containers_of, gpu_limits, limits_of, worker_container
from rollout_contract.spec_enums import Device
from rollout_contract.spec_models import RolloutJobSpec, WorkerGroup


def group_names_are_unique(spec: RolloutJobSpec) -> Iterator[Fault]:
    for name in duplicates(group.name for group in spec.worker_groups):
        yield Fault(
            "spec.workerGroups",
            name,
            f"the name {shown(name)} is there more than once. Give each group its own.",
        )


def one_elastic_group(spec: RolloutJobSpec) -> Iterator[Fault]:
    elastic = [group.name for group in spec.worker_groups if group.elastic]
    if len(elastic) > 1:
        yield Fault(
            "spec.workerGroups",
            elastic,
            f"{len(elastic)} groups are elastic ({', '.join(elastic)}), at most one can be: spec.replicas is one number. "
            "Give the others replicas instead.",
        )


def replicas_have_a_group(spec: RolloutJobSpec) -> Iterator[Fault]:
    if spec.replicas != 1 and not any(group.elastic for group in spec.worker_groups):
        yield Fault(
            "spec.replicas",
            spec.replicas,
            f"{spec.replicas} has no effect: no worker group is elastic. Remove it, or set elastic: true on one group.",
        )


def elastic_group_has_no_replicas(group: WorkerGroup, path: str) -> Iterator[Fault]:
    if group.elastic and group.replicas is not None:
        yield Fault(
            f"{path}.replicas",
            group.replicas,
            f"{group.replicas} has no effect: the group is elastic, its number of workers is spec.replicas. Write it there.",
        )


def bounds_are_in_order(group: WorkerGroup, path: str) -> Iterator[Fault]:
    if group.max_replicas is None:
        return
    for name, value in (("minReplicas", group.min_replicas), ("minAvailable", group.min_available)):
        if value > group.max_replicas:
            yield Fault(
                f"{path}.{name}",
                value,
                f"{value} is more than maxReplicas ({group.max_replicas}). Use at most {group.max_replicas}.",
            )


def cuda_has_a_gpu(group: WorkerGroup, path: str) -> Iterator[Fault]:
    if group.device is Device.CUDA and not any(gpu_limits(group.template)):
        yield Fault(
            f"{path}.device",
            group.device.value,
            "Cuda needs a GPU limit of the worker's container, such as resources: {limits: {nvidia.com/gpu: 1}}. "
            "Add it, or use Auto, which follows the template.",
        )


def workers_never_restart_in_place(group: WorkerGroup, path: str) -> Iterator[Fault]:
    policy = group.template.spec.restart_policy if group.template and group.template.spec else None
    if policy not in (None, "Never"):
        yield Fault(
            f"{path}.template.spec.restartPolicy",
            policy,
            f"{shown(policy)} is not possible: a worker that ended is replaced by a new pod. Remove it, or use Never.",
        )


def container_names_are_unique(group: WorkerGroup, path: str) -> Iterator[Fault]:
    for name in duplicates(container.name for container in containers_of(group.template)):
        yield Fault(
            f"{path}.template.spec.containers",
            name,
            f"the name {shown(name)} is there more than once. Give each container its own.",
        )


def own_variables_are_left_alone(group: WorkerGroup, path: str) -> Iterator[Fault]:
    for index, container in enumerate(containers_of(group.template)):
        for position, variable in enumerate(container.env or ()):
            if variable.name.startswith(RESERVED_ENV):
                yield Fault(
                    f"{path}.template.spec.containers[{index}].env[{position}].name",
                    variable.name,
                    f"{shown(variable.name)} is set by the platform, as all that begin with {RESERVED_ENV}. "
                    "Use another name.",
                )


def shared_memory_fits(group: WorkerGroup, path: str) -> Iterator[Fault]:
    limit = limits_of(worker_container(group.template)).get("memory")
    if group.shared_memory is None or limit is None:
        return
    if quantities.to_bytes(group.shared_memory) > quantities.to_bytes(limit):
        yield Fault(
            f"{path}.sharedMemory",
            group.shared_memory,
            f"{shown(group.shared_memory)} is more than the worker's memory limit ({limit}), which it counts towards. "
            "Raise the limit or use less.",
        )


def rule_names_are_unique(spec: RolloutJobSpec) -> Iterator[Fault]:
    for name in duplicates(rule.name for rule in spec.failure_policy.rules or ()):
        yield Fault(
            "spec.failurePolicy.rules",
            name,
            f"the name {shown(name)} is there more than once. Give each rule its own.",
        )


def exit_codes_are_unique(spec: RolloutJobSpec) -> Iterator[Fault]:
    for index, rule in enumerate(spec.failure_policy.rules or ()):
        for code in duplicates(rule.on_exit_codes.values if rule.on_exit_codes else ()):
            yield Fault(
                f"spec.failurePolicy.rules[{index}].onExitCodes.values",
                code,
                f"{code} is there more than once. Write it once.",
            )


def rules_name_known_groups(spec: RolloutJobSpec) -> Iterator[Fault]:
    known = [group.name for group in spec.worker_groups]
    for index, rule in enumerate(spec.failure_policy.rules or ()):
        for position, name in enumerate(rule.worker_groups or ()):
            if name not in known:
                yield Fault(
                    f"spec.failurePolicy.rules[{index}].workerGroups[{position}]",
                    name,
                    f"there is no worker group {shown(name)}, only {', '.join(known)}.{did_you_mean(name, known)}",
                )
