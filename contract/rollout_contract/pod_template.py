"""The thin schema of a worker's pod template: what the platform relies on is declared, every other field is kept.

Part of the spec. The operator's manifests build pods from it; the API server validates what is not declared here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import Field

from rollout_contract import quantities
from rollout_contract.fields import MAX_CONTAINERS, Amount, Items, LabelName, Model, Name, OpenModel

WORKER_CONTAINER = "worker"
RESERVED_ENV = "ROLLOUT_"
"""Variables of this prefix are set by the platform (`podenv`)."""
GPU_RESOURCE = r"[^/]+/(gpu|mig-)[^/]*"
"""Names of extended resources that are GPUs, as a pattern of the whole name."""
_GPU = re.compile(GPU_RESOURCE)

ResourceList = Annotated[dict[str, Amount], Field(max_length=16)]


class Resources(OpenModel):
    """What a container asks for and what it may not pass."""

    requests: ResourceList | None = None
    limits: ResourceList | None = None


class EnvVar(OpenModel):
    """An environment variable: `value`, or `valueFrom`, which is kept as it is."""

    name: Annotated[str, Field(min_length=1, max_length=253)]
    value: str | None = None


class Container(OpenModel):
    """One container; without `image` it runs the operator's worker image."""

    name: LabelName
    image: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    resources: Resources | None = None
    env: Annotated[Items[EnvVar], Field(max_length=256)] | None = None
    command: Items[str] | None = None
    args: Items[str] | None = None


class SchedulingGate(OpenModel):
    """Holds the pod back from the scheduler until somebody removes it."""

    name: Annotated[str, Field(min_length=1, max_length=316)]


class PodSpec(OpenModel):
    """A pod's spec; fields that are not declared here go to the pod unchanged."""

    containers: Annotated[Items[Container], Field(max_length=MAX_CONTAINERS)] | None = None
    restart_policy: str | None = None
    """`Never`, also when unset: a restarted process would be a new attempt, so it is a new pod."""
    service_account_name: Name | None = None
    node_selector: dict[str, str] | None = None
    tolerations: Annotated[Items[dict[str, Any]], Field(max_length=64)] | None = None
    scheduling_gates: Annotated[Items[SchedulingGate], Field(max_length=16)] | None = None
    priority_class_name: Name | None = None


class TemplateMeta(OpenModel):
    """Labels and annotations of the pods; they cannot override the platform's own."""

    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class PodTemplate(Model):
    """What a group's pods are made from."""

    metadata: TemplateMeta | None = None
    spec: PodSpec | None = None


def containers_of(template: PodTemplate | None) -> tuple[Container, ...]:
    """The containers that a template writes, none if it writes none."""
    return (template.spec.containers or ()) if template and template.spec else ()


def worker_container(template: PodTemplate | None) -> Container | None:
    """The container that runs the worker: the one named `worker`, else the first. None: the operator adds one."""
    containers = containers_of(template)
    named = [container for container in containers if container.name == WORKER_CONTAINER]
    return next(iter(named or containers), None)


def limits_of(container: Container | None) -> dict[str, str | int]:
    """A container's resource limits, empty where it has none."""
    return (container.resources.limits or {}) if container and container.resources else {}


def gpu_limits(template: PodTemplate | None) -> Iterator[str]:
    """Names of the GPU resources that the worker may use, such as `nvidia.com/gpu`: a container sees its own only."""
    for resource, quantity in limits_of(worker_container(template)).items():
        if _GPU.fullmatch(resource) and quantities.parse(quantity) > 0:
            yield resource
