"""A worker pod as the planner sees it: one frozen record, made from the pod's raw document. Pure.

Made by both clusters, read by the planner and the conditions. Holds only what is decided upon, so that
thousands of pods cost little memory.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from rollout_contract import names
from rollout_contract.names import Slot, WorkerId
from rollout_contract.pod_template import WORKER_CONTAINER
from rollout_operator.pod_parts import OtherContainer, hindrance_of, mounts_of
from rollout_operator.times import to_seconds

ANNOTATION_COUNTED = f"{names.GROUP_NAME}/counted"
"""Set on a pod that has ended: what its end was counted as, and its number (`failure:3`)."""
ANNOTATION_STREAK = f"{names.GROUP_NAME}/streak"
"""Set at creation: ends in a row, in this slot, before this attempt; what the back-off grows with."""
ANNOTATION_SLOT_FAILURES = f"{names.GROUP_NAME}/slot-failures"
"""Set at creation: counted failures of this slot before this attempt."""

MAX_MESSAGE_CHARS = 4096
"""Kubernetes' own bound on a termination message."""


@dataclass(frozen=True, slots=True)
class PodCondition:
    """One condition of a pod."""

    type: str
    status: str
    reason: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class PodView:
    """One worker pod. Times are seconds since 1970; None: has not happened."""

    namespace: str
    name: str
    uid: str
    worker: WorkerId
    template_hash: str
    phase: str
    ready: bool
    created: float
    started: float | None = None
    """When the worker's container began to run."""
    finished: float | None = None
    """When it ended."""
    exit_code: int | None = None
    reason: str = ""
    """Why the container ended or waits, or why the pod failed (`OOMKilled`, `ImagePullBackOff`, `Evicted`).
    """
    message: str = ""
    """The worker's last words, or the cluster's text to the reason."""
    pod_reason: str = ""
    """Why the pod as a whole failed, where the cluster ended it (`Evicted`)."""
    deletion_requested: float | None = None
    """When its deletion was asked for."""
    grace_s: float = 60.0
    """How long it may take to end once deletion was asked for."""
    node: str = ""
    container: str = WORKER_CONTAINER
    image: str = ""
    mounts: tuple[str, ...] = ()
    """ConfigMaps, Secrets and volumes without which it cannot be set up, as `ConfigMap code`."""
    hindrance: OtherContainer | None = None
    """Another container of the pod that keeps the worker from starting, or the pod from being ready."""
    memory_limit: str = ""
    """What the worker's container may use, as its template says."""
    conditions: tuple[PodCondition, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    """Those of our own prefix only."""

    @property
    def slot(self) -> Slot:
        """The worker's place in the job."""
        return self.worker.slot

    @property
    def ended(self) -> bool:
        """Whether the worker's process has ended, or will never start: the pod failed as a whole."""
        return self.exit_code is not None or self.phase in {"Succeeded", "Failed"}

    @property
    def ending(self) -> bool:
        """Whether its deletion was asked for and the worker may still run."""
        return self.deletion_requested is not None and not self.ended

    @property
    def alive(self) -> bool:
        """Whether the worker runs or will run: neither ended nor asked to end."""
        return not self.ended and self.deletion_requested is None

    @property
    def cut_off(self) -> bool:
        """Whether its node does not answer: the cluster took the pod's readiness back, its kubelet did not.

        Whether the worker still runs, nobody can know then.
        """
        ready, containers = self.condition("Ready"), self.condition("ContainersReady")
        if ready is None or containers is None or self.ended:
            return False
        by_kubelet = ready.reason == "ReadinessGatesNotReady"
        return (ready.status, containers.status) == ("False", "True") and not by_kubelet

    def condition(self, type_: str) -> PodCondition | None:
        """The pod's condition of that type."""
        return next((c for c in self.conditions if c.type == type_), None)

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> PodView:
        """The view of a pod's document. ValueError if its labels are not those of a worker pod."""
        metadata, spec = document["metadata"], document.get("spec") or {}
        status = document.get("status") or {}
        name = worker_container_name(spec)
        container: Mapping[str, Any] = next(
            (c for c in status.get("containerStatuses") or () if c.get("name") == name), {}
        )
        ended, waiting, running = _container_state(container)
        hindrance = hindrance_of(spec, status, name)
        # Of a worker that never ran, the container before it has the last words.
        before = (
            hindrance if hindrance is not None and hindrance.exit_code is not None and not ended else None
        )
        conditions = tuple(_conditions(status))
        grace = metadata.get("deletionGracePeriodSeconds", spec.get("terminationGracePeriodSeconds", 60))
        deletion = to_seconds(metadata.get("deletionTimestamp"))
        return cls(
            namespace=metadata["namespace"],
            name=metadata["name"],
            uid=metadata["uid"],
            worker=worker_of(metadata),
            template_hash=(metadata.get("labels") or {}).get(names.LABEL_TEMPLATE_HASH, ""),
            phase=status.get("phase", "Pending"),
            ready=any(c.type == "Ready" and c.status == "True" for c in conditions),
            created=to_seconds(metadata.get("creationTimestamp")) or 0.0,
            started=to_seconds((ended or running).get("startedAt")),
            finished=to_seconds(ended.get("finishedAt")) or _failed_time(status),
            exit_code=ended.get("exitCode"),
            reason=_first(
                ended.get("reason"),
                status.get("reason"),
                before.reason if before else None,
                waiting.get("reason"),
                _unscheduled(conditions).reason,
            ),
            message=_first(
                ended.get("message"),
                status.get("message"),
                before.said if before else None,
                waiting.get("message"),
                _unscheduled(conditions).message,
            )[:MAX_MESSAGE_CHARS],
            pod_reason=status.get("reason") or "",
            # The API server writes the time at which the grace ends.
            deletion_requested=None if deletion is None else deletion - grace,
            grace_s=float(grace),
            node=spec.get("nodeName", ""),
            container=name,
            image=str(_container(spec, name).get("image") or ""),
            mounts=mounts_of(spec),
            hindrance=hindrance,
            memory_limit=_memory_limit(spec, name),
            conditions=conditions,
            annotations={
                k: v for k, v in (metadata.get("annotations") or {}).items() if k.startswith(names.GROUP_NAME)
            },
        )


def worker_of(metadata: Mapping[str, Any]) -> WorkerId:
    """The worker that a pod's labels name. ValueError if they do not name one."""
    labels = metadata.get("labels") or {}
    try:
        return WorkerId(
            labels[names.LABEL_WORKER_GROUP],
            int(labels[names.LABEL_WORKER_INDEX]),
            int(labels[names.LABEL_ATTEMPT]),
        )
    except (KeyError, ValueError) as error:
        raise ValueError(
            f"pod {metadata.get('name')!r} has not the labels of a worker pod: {error}"
        ) from error


def worker_container_name(spec: Mapping[str, Any]) -> str:
    """Name of the container that runs the worker: `worker` if there is one, else the first."""
    containers = [c.get("name", "") for c in spec.get("containers") or ()]
    return WORKER_CONTAINER if WORKER_CONTAINER in containers or not containers else containers[0]


def _container_state(
    status: Mapping[str, Any],
) -> tuple[Mapping[str, Any], Mapping[str, Any], Mapping[str, Any]]:
    state = status.get("state") or {}
    return state.get("terminated") or {}, state.get("waiting") or {}, state.get("running") or {}


def _conditions(status: Mapping[str, Any]) -> Iterator[PodCondition]:
    for c in status.get("conditions") or ():
        yield PodCondition(c["type"], c["status"], c.get("reason") or "", c.get("message") or "")


_NONE = PodCondition("", "")


def _unscheduled(conditions: tuple[PodCondition, ...]) -> PodCondition:
    return next((c for c in conditions if c.type == "PodScheduled" and c.status == "False"), _NONE)


def _failed_time(status: Mapping[str, Any]) -> float | None:
    """A pod that was refused or evicted before its container ran has no container state: its conditions have
    times.
    """
    if status.get("phase") not in {"Succeeded", "Failed"}:
        return None
    times = [to_seconds(c.get("lastTransitionTime")) for c in status.get("conditions") or ()]
    known = [t for t in [*times, to_seconds(status.get("startTime"))] if t is not None]
    return max(known, default=None)


def _container(spec: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    return next((c for c in spec.get("containers") or () if c.get("name") == name), {})


def _memory_limit(spec: Mapping[str, Any], name: str) -> str:
    limits = (_container(spec, name).get("resources") or {}).get("limits") or {}
    return sys.intern(str(limits.get("memory", "")))


def _first(*texts: str | None) -> str:
    return next((text for text in texts if text), "")
