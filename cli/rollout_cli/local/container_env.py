"""The environment variables of a container, as the kubelet would make them. Pure.

Secrets come by name from what the run was given; a reference that leads nowhere refuses the pod.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rollout_contract.status import Reason
from rollout_operator.cluster import PodRefused

Secrets = Mapping[tuple[str, str], str]
"""(Secret's name, key) → value."""


def variables_of(container: Mapping[str, Any], pod: Mapping[str, Any], secrets: Secrets) -> dict[str, str]:
    """What the container's `env` comes to. PodRefused for a reference that a local run cannot follow."""
    if container.get("envFrom"):
        raise PodRefused(
            f"container {container['name']}: a local run has no ConfigMaps or Secrets for envFrom"
        )
    found = {}
    for variable in container.get("env") or ():
        value = _value_of(variable, pod, secrets)
        if value is not None:
            found[variable["name"]] = value
    return found


def _value_of(variable: Mapping[str, Any], pod: Mapping[str, Any], secrets: Secrets) -> str | None:
    source = variable.get("valueFrom")
    if source is None:
        return str(variable.get("value") or "")
    name = variable["name"]
    match source:
        case {"secretKeyRef": {"name": secret, "key": key, **rest}}:
            value = secrets.get((secret, key))
            if value is None and not rest.get("optional"):
                message = f"variable {name}: there is no key {key!r} in Secret {secret!r}"
                raise PodRefused(message, reason=Reason.SECRET_MISSING)
            return value
        case {"fieldRef": {"fieldPath": path}}:
            return _field(name, path, pod)
        case _:
            kinds = ", ".join(source)
            raise PodRefused(f"variable {name}: a local run cannot follow {kinds}; give it as a value")


def _field(name: str, path: str, pod: Mapping[str, Any]) -> str:
    metadata, spec = pod["metadata"], pod["spec"]
    fields = {
        "metadata.name": metadata["name"],
        "metadata.namespace": metadata["namespace"],
        "metadata.uid": metadata["uid"],
        "spec.nodeName": spec.get("nodeName", ""),
        "spec.serviceAccountName": spec.get("serviceAccountName", "default"),
        "status.podIP": "127.0.0.1",
        "status.hostIP": "127.0.0.1",
    }
    if path not in fields:
        allowed = ", ".join(fields)
        raise PodRefused(f"variable {name}: a local run has no field {path!r}, only {allowed}")
    return str(fields[path])
