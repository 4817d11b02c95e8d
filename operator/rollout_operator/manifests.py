"""The pod of a worker as a plain document: a pure function of job, group, attempt and the operator's settings.

Used by both clusters. What the user wrote in the template stands, but for labels, names and variables of ours; what
they left open gets the safe value (restricted Pod Security, no token, no service links, Never restarted). A field of
theirs that is not of the shape it should have goes to the API server as it is, which refuses the pod and says why.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rollout_contract import names, podenv, quantities
from rollout_contract.environ import LOG_FORMAT, LOG_LEVEL
from rollout_contract.names import JobRef
from rollout_contract.pod_template import worker_container
from rollout_contract.podenv import StreamAddress, WorkerDocument
from rollout_contract.spec import Device, KeyRef, RolloutJob, WorkerGroup, device_of, groups_of
from rollout_operator import shares
from rollout_operator.decisions import Create
from rollout_operator.pods import ANNOTATION_SLOT_FAILURES, ANNOTATION_STREAK, worker_container_name
from rollout_operator.settings import OperatorSettings
from rollout_operator.volumes import CA_DIR, CODE_DIR, mount_volumes

Document = dict[str, Any]

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
SAFE_TO_EVICT = "cluster-autoscaler.kubernetes.io/safe-to-evict"


def worker_pod(
    job: RolloutJob, create: Create, settings: OperatorSettings, *, template_hash: str
) -> Document:
    """The manifest of one attempt. SpecError if the worker's part of the job does not fit into a variable."""
    group = next(g for g in groups_of(job.spec) if g.name == create.worker.group)
    template = group.template.to_document() if group.template else {}
    spec: Document = template.get("spec") or {}
    spec.setdefault("containers", [])
    if not spec["containers"]:
        spec["containers"] = [{"name": "worker"}]
    name = worker_container_name(spec)
    container = next(c for c in spec["containers"] if c["name"] == name)
    _fill_pod(spec, group, settings)
    document = worker_document(job, group, create, settings, grace_s=_grace_s(spec, settings))
    _fill_container(container, job, group, document, settings)
    mount_volumes(spec, container, job, group, settings)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": _metadata(job, create, template.get("metadata") or {}, template_hash),
        "spec": spec,
    }


def worker_document(
    job: RolloutJob, group: WorkerGroup, create: Create, settings: OperatorSettings, *, grace_s: int
) -> WorkerDocument:
    """The worker's part of the contract."""
    spec, worker = job.spec, create.worker
    own_code = (CODE_DIR,) if spec.code and not settings.code_dirs else ()
    return WorkerDocument(
        namespace=job.metadata.namespace,
        name=job.metadata.name,
        uid=job.ref.uid,
        group=worker.group,
        group_number=sorted(g.name for g in groups_of(spec)).index(worker.group),
        index=worker.index,
        attempt=worker.attempt,
        first_env_index=worker.index * spec.env.envs_per_worker,
        seed=shares.seed_for(job),
        env=spec.env,
        policy=spec.policy,
        collector=spec.collector,
        stream=spec.stream,
        weights=spec.weights,
        determinism=spec.determinism,
        strict_share=shares.strict_share(spec, worker),
        device=device_of(group),
        shared_memory_bytes=quantities.to_bytes(group.shared_memory) if group.shared_memory else None,
        processes=processes_of(spec.env.processes, spec.env.envs_per_worker, group, settings),
        redis=redis_address(job, settings),
        health=settings.health,
        code_dirs=(*own_code, *settings.code_dirs),
        grace_seconds=grace_s,
    )


def processes_of(written: int | None, num_envs: int, group: WorkerGroup, settings: OperatorSettings) -> int:
    """Child processes of a worker: what is written, or one per processor of its limit, at most one per environment."""
    if written is not None:
        return written
    return max(1, min(num_envs, _cpus(group, settings, ("limits", "requests"))))


def redis_address(job: RolloutJob, settings: OperatorSettings) -> StreamAddress:
    """The server of a job, as its workers reach it."""
    redis = job.spec.redis
    if redis.host is None:
        return settings.redis
    tls = redis.tls is not None and redis.tls.enabled
    ca = redis.tls.ca_secret_ref if tls and redis.tls else None
    return StreamAddress(
        host=redis.host, port=redis.port, tls=tls, ca_file=f"{CA_DIR}/{ca.key}" if ca else None
    )


def redis_secret(job: RolloutJob, settings: OperatorSettings) -> KeyRef | None:
    """Where the password of the job's server is."""
    return job.spec.redis.auth_secret_ref if job.spec.redis.host is not None else settings.redis_secret


def job_labels(ref: JobRef, group: str) -> dict[str, str]:
    """Labels by which a job's workers are found; they never change."""
    return {names.LABEL_JOB_UID: ref.uid, names.LABEL_WORKER_GROUP: group}


def selector_of(ref: JobRef, group: str) -> str:
    """The same as a selector, for `/scale`."""
    return ",".join(f"{key}={value}" for key, value in job_labels(ref, group).items())


def _metadata(job: RolloutJob, create: Create, template: Mapping[str, Any], template_hash: str) -> Document:
    worker, ref = create.worker, job.ref
    labels = {
        "app.kubernetes.io/name": "rollout-worker",
        "app.kubernetes.io/instance": ref.name,
        "app.kubernetes.io/component": "worker",
        "app.kubernetes.io/part-of": "rolloutjob",
        "app.kubernetes.io/managed-by": "rollout-operator",
        names.LABEL_JOB_NAME: ref.name,
        **job_labels(ref, worker.group),
        names.LABEL_WORKER_INDEX: str(worker.index),
        names.LABEL_ATTEMPT: str(worker.attempt),
        names.LABEL_TEMPLATE_HASH: template_hash,
    }
    annotations = {SAFE_TO_EVICT: "false", **(template.get("annotations") or {})}
    annotations = {k: v for k, v in annotations.items() if not k.startswith(f"{names.GROUP_NAME}/")}
    if create.streak:
        annotations[ANNOTATION_STREAK] = str(create.streak)
    if create.slot_failures:
        annotations[ANNOTATION_SLOT_FAILURES] = str(create.slot_failures)
    return {
        "name": names.pod_name(ref.name, worker),
        "namespace": ref.namespace,
        "labels": {**(template.get("labels") or {}), **labels},
        "annotations": annotations,
        "ownerReferences": [
            {
                "apiVersion": names.API_VERSION,
                "kind": names.KIND,
                "name": ref.name,
                "uid": ref.uid,
                "controller": True,
                "blockOwnerDeletion": True,
            }
        ],
    }


def _fill_pod(spec: Document, group: WorkerGroup, settings: OperatorSettings) -> None:
    spec["restartPolicy"] = "Never"
    spec.setdefault("automountServiceAccountToken", False)
    spec.setdefault("enableServiceLinks", False)
    spec.setdefault("terminationGracePeriodSeconds", settings.grace_s)
    spec.setdefault("securityContext", {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}})
    if device_of(group) is Device.CPU and not {"affinity", "topologySpreadConstraints"} & spec.keys():
        spread = {"matchLabels": {names.LABEL_WORKER_GROUP: group.name}}
        spec["topologySpreadConstraints"] = [
            {
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": spread,
            }
        ]


def _fill_container(
    container: Document,
    job: RolloutJob,
    group: WorkerGroup,
    document: WorkerDocument,
    settings: OperatorSettings,
) -> None:
    if settings.worker_image:
        container.setdefault("image", settings.worker_image)
    if settings.worker_command and "command" not in container:
        container["command"] = list(settings.worker_command)
    container.setdefault("terminationMessagePolicy", "FallbackToLogsOnError")
    container.setdefault(
        "securityContext",
        {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    )
    port = document.health.port
    container.setdefault(
        "readinessProbe",
        {"httpGet": {"path": "/readyz", "port": port}, "periodSeconds": 2, "timeoutSeconds": 2},
    )
    container.setdefault(
        "livenessProbe",
        {
            "httpGet": {"path": "/healthz", "port": port},
            "initialDelaySeconds": 30,
            "periodSeconds": 10,
            "timeoutSeconds": 5,
            "failureThreshold": 6,
        },
    )
    container["env"] = _variables(container.get("env") or [], job, group, document, settings)


def _variables(
    written: list[Document],
    job: RolloutJob,
    group: WorkerGroup,
    document: WorkerDocument,
    settings: OperatorSettings,
) -> list[Document]:
    threads = str(_cpus(group, settings, ("requests", "limits")))
    ours: list[Document] = [{"name": key, "value": text} for key, text in podenv.to_env(document).items()]
    logs = {LOG_FORMAT: settings.worker_log_format, LOG_LEVEL: settings.worker_log_level}
    ours += ({"name": key, "value": text} for key, text in logs.items() if text)
    ours.append({"name": podenv.NODE_NAME, "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}})
    secret = redis_secret(job, settings)
    if secret is not None:
        reference = {"secretKeyRef": {"name": secret.name, "key": secret.key}}
        ours.append({"name": podenv.REDIS_PASSWORD, "valueFrom": reference})
    if job.spec.env.kwargs_from is not None:
        source = job.spec.env.kwargs_from.config_map_key_ref
        ours.append(
            {
                "name": podenv.ENV_KWARGS,
                "valueFrom": {"configMapKeyRef": {"name": source.name, "key": source.key}},
            }
        )
    our_names = {variable["name"] for variable in ours}
    theirs = [variable for variable in written if variable["name"] not in our_names]
    their_names = {variable["name"] for variable in theirs}
    defaults = [{"name": key, "value": threads} for key in THREAD_VARIABLES if key not in their_names]
    return [*defaults, *theirs, *ours]


def _grace_s(spec: Document, settings: OperatorSettings) -> int:
    written = spec["terminationGracePeriodSeconds"]
    return written if isinstance(written, int) and written >= 0 else settings.grace_s


def _cpus(group: WorkerGroup, settings: OperatorSettings, order: tuple[str, str]) -> int:
    container = worker_container(group.template)
    resources = container.resources if container else None
    for kind in order:
        found = getattr(resources, kind, None) or {}
        if "cpu" in found:
            return quantities.whole_cpus(found["cpu"])
    return settings.default_cpus
