"""What is mounted into a worker: shared memory, /tmp, the job's code, the authority of its server. Pure.

Part of the pod's manifest. Where a user's template mounts something itself, that stands.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable
from typing import Any

from rollout_contract.spec import KeyRef, RolloutJob, WorkerGroup
from rollout_operator.settings import OperatorSettings

Document = dict[str, Any]

CODE_DIR = "/etc/rollout/code"
CA_DIR = "/etc/rollout/redis-ca"
SHARED_MEMORY_DIR = "/dev/shm"  # noqa: S108 - where POSIX shared memory is


def redis_ca_secret(job: RolloutJob, settings: OperatorSettings) -> KeyRef | None:
    """Where the certificate of the authority of the job's server is; None: a public one, or no TLS."""
    if job.spec.redis.host is None:
        return settings.redis_ca_secret
    tls = job.spec.redis.tls
    return tls.ca_secret_ref if tls is not None and tls.enabled else None


def mount_volumes(
    spec: Document, container: Document, job: RolloutJob, group: WorkerGroup, settings: OperatorSettings
) -> None:
    """Adds volumes and mounts to a pod's spec and its worker's container, where the user has mounted nothing."""
    volumes, mounts = _items(spec, "volumes"), _items(container, "volumeMounts")
    if volumes is None or mounts is None:
        return
    mounted = set(_paths_of(mounts))
    shared: Document = {"medium": "Memory"}
    if group.shared_memory is not None:
        shared["sizeLimit"] = group.shared_memory
    wanted: list[tuple[str, str, Document]] = [
        ("rollout-shm", SHARED_MEMORY_DIR, {"emptyDir": shared}),
        ("rollout-tmp", "/tmp", {"emptyDir": {}}),  # noqa: S108 - the root file system is read-only
    ]
    if job.spec.code is not None:
        wanted.append(("rollout-code", CODE_DIR, {"configMap": {"name": job.spec.code.config_map_ref.name}}))
    ca = redis_ca_secret(job, settings)
    if ca is not None:
        wanted.append(("rollout-redis-ca", CA_DIR, {"secret": {"secretName": ca.name}}))
    for name, path, source in wanted:
        if path in mounted:
            continue
        volumes.append({"name": name, **source})
        mount: Document = {"name": name, "mountPath": path}
        if not path.startswith(("/dev", "/tmp")):  # noqa: S108
            mount["readOnly"] = True
        mounts.append(mount)


def _items(document: Document, key: str) -> list[Any] | None:
    """A list of the template, to be added to; None if what stands there is no list."""
    found = document.get(key)
    if found is None:
        found = document[key] = []
    return found if isinstance(found, list) else None


def _paths_of(mounts: Iterable[Any]) -> Iterable[str]:
    """Where something is mounted, written in one way (`/tmp/` is `/tmp`)."""
    for mount in mounts:
        path = mount.get("mountPath") if isinstance(mount, dict) else None
        if isinstance(path, str) and path:
            yield posixpath.normpath("/" + path.lstrip("/"))
