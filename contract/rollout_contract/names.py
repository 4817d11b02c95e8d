"""Names of workers, pods and labels: pure functions of (job, group, index, attempt).

Bounds: job ≤ 40, group ≤ 12, index and attempt ≤ 9999, so `<job>-<group>-<index>-<attempt>` and every label value fit
into 63 characters. Groups have no dash, so that no two workers of any two jobs share a pod name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

GROUP_NAME = "rolloutjob.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP_NAME}/{VERSION}"
KIND = "RolloutJob"
PLURAL = "rolloutjobs"
SHORT_NAME = "roj"
OPERATOR_NAME = "rolloutjob.dev/rollout-operator"

MAX_JOB_NAME = 40
MAX_GROUP_NAME = 12
MAX_INDEX = 9999
MAX_ATTEMPT = 9999

JOB_NAME = re.compile(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?")
WORKER_GROUP_NAME = re.compile(r"[a-z][a-z0-9]{0,11}")
NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
ENTRYPOINT = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")

LABEL_JOB_NAME = f"{GROUP_NAME}/job-name"
ANNOTATION_OPERATOR = f"{GROUP_NAME}/operator"
"""On a job, by its owner: which operator is to govern it, as in `status.operator`."""
LABEL_JOB_UID = f"{GROUP_NAME}/job-uid"
LABEL_WORKER_GROUP = f"{GROUP_NAME}/worker-group"
LABEL_WORKER_INDEX = f"{GROUP_NAME}/worker-index"
LABEL_ATTEMPT = f"{GROUP_NAME}/attempt"
LABEL_TEMPLATE_HASH = f"{GROUP_NAME}/template-hash"


@dataclass(frozen=True, slots=True, order=True)
class JobRef:
    """Which job: namespace, name, and the UID that keeps a re-created one apart."""

    namespace: str
    name: str
    uid: str

    @property
    def uid8(self) -> str:
        """The first eight hexadecimal digits of the UID, as keys carry them."""
        return self.uid.replace("-", "")[:8]

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class Slot(NamedTuple):
    """A worker's place in the job; attempts come and go, the slot stays.

    A tuple, like `WorkerId`: a reconcile of 5,000 workers compares and hashes some hundred thousand of them.
    """

    group: str
    index: int  # type: ignore[assignment]  # instead of tuple.index

    def __str__(self) -> str:
        return f"{self.group}-{self.index}"


class WorkerId(NamedTuple):
    """One attempt in a slot: one process, one pod, never started twice."""

    group: str
    index: int  # type: ignore[assignment]
    attempt: int

    @property
    def slot(self) -> Slot:
        """The slot that this attempt fills."""
        return Slot(self.group, self.index)

    def __str__(self) -> str:
        return f"{self.group}-{self.index}-{self.attempt}"


def pod_name(job_name: str, worker: WorkerId) -> str:
    """`<job>-<group>-<index>-<attempt>`, at most 63 characters for every valid job and worker."""
    return f"{job_name}-{worker}"


def worker_of_pod(job_name: str, pod: str) -> WorkerId:
    """The worker whose pod has this name; the inverse of `pod_name`. ValueError if it is none of the job's."""
    prefix = f"{job_name}-"
    parts = pod.removeprefix(prefix).split("-") if pod.startswith(prefix) else []
    if len(parts) != 3 or not (parts[1].isdecimal() and parts[2].isdecimal()):
        raise ValueError(f"{pod!r} is not the name of a worker pod of job {job_name!r}")
    return WorkerId(parts[0], int(parts[1]), int(parts[2]))


def trajectory_base(group_number: int, worker_index: int, attempt: int) -> int:
    """First trajectory id of an attempt: group << 60 | index << 46 | attempt << 32; a counter of 32 bits is added.

    `group_number` is the group's position in the sorted list of group names (0..7); the result is a non-negative int64.
    """
    if not (0 <= group_number < 8 and 0 <= worker_index < 1 << 14 and 0 <= attempt < 1 << 14):
        raise ValueError(
            f"no trajectory ids for group {group_number}, worker {worker_index}, attempt {attempt}"
        )
    return group_number << 60 | worker_index << 46 | attempt << 32
