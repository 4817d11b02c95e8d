"""What stands in the way of a worker inside of its own pod: other containers, and what has to be mounted. Pure.

Read by `PodView`. A worker waits for its init containers, and a pod is ready only while all its containers are.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Document = Mapping[str, Any]

_MADE_IN_PLACE = frozenset({"name", "emptyDir", "downwardAPI", "projected"})
"""Keys of a volume that need nothing from elsewhere (what a projected one needs is told by its sources)."""


@dataclass(frozen=True, slots=True)
class OtherContainer:
    """A container, not the worker's, because of which the worker does not start or its pod is not ready."""

    name: str
    is_init: bool
    image: str
    reason: str
    """Why it waits or has ended; empty while it runs."""
    message: str
    exit_code: int | None
    """None: it has not ended."""

    @property
    def said(self) -> str:
        """Which one, and what is the matter with it."""
        which = f"{'init container' if self.is_init else 'container'} {self.name!r}"
        if self.exit_code is not None:
            label = f" ({self.reason})" if self.reason not in {"", "Error", "Completed"} else ""
            words = f": {self.message}" if self.message else ""
            return f"{which} ended with exit code {self.exit_code}{label}{words}"
        if not self.reason:
            return f"{which} runs"
        image = f" {self.image}" if "Image" in self.reason and self.image not in self.message else ""
        return f"{which} waits:{image} {self.message or self.reason}"


def hindrance_of(spec: Document, status: Document, worker: str) -> OtherContainer | None:
    """The first container that the worker named so waits for, or that keeps its pod from being ready."""
    specs = {c.get("name"): c for key in ("initContainers", "containers") for c in spec.get(key) or ()}
    for is_init, key in ((True, "initContainerStatuses"), (False, "containerStatuses")):
        for found in status.get(key) or ():
            name = found.get("name", "")
            if name != worker and _hinders(found, specs.get(name) or {}, is_init=is_init):
                return _other(found, specs.get(name) or {}, is_init=is_init)
    return None


def _hinders(found: Document, spec: Document, *, is_init: bool) -> bool:
    state = found.get("state") or {}
    ended, waiting = state.get("terminated"), state.get("waiting") or {}
    if ended is not None:
        return not is_init or ended.get("exitCode") != 0
    if waiting:
        return waiting.get("reason") not in {"PodInitializing", "ContainerCreating", None}
    goes_on = spec.get("restartPolicy") == "Always"
    return is_init and "running" in state and not (goes_on and found.get("started"))


def _other(found: Document, spec: Document, *, is_init: bool) -> OtherContainer:
    state = found.get("state") or {}
    ended = state.get("terminated") or {}
    said = ended or state.get("waiting") or {}
    return OtherContainer(
        name=found.get("name", ""),
        is_init=is_init,
        image=spec.get("image") or "",
        reason=said.get("reason") or "",
        message=(said.get("message") or "").strip(),
        exit_code=ended.get("exitCode"),
    )


def mounts_of(spec: Document) -> tuple[str, ...]:
    """What is not made in place and without which the pod cannot be set up, as `ConfigMap code`; each once."""
    found = (text for volume in spec.get("volumes") or () for text in _needs(volume))
    return tuple(sys.intern(text) for text in dict.fromkeys(found))


def _needs(volume: Document) -> Iterator[str]:
    sources = [volume, *((volume.get("projected") or {}).get("sources") or ())]
    for source in sources:
        yield from _object(source.get("configMap"), "ConfigMap", "name")
        yield from _object(source.get("secret"), "Secret", "secretName" if source is volume else "name")
    claim = (volume.get("persistentVolumeClaim") or {}).get("claimName")
    if claim:
        yield f"PersistentVolumeClaim {claim}"
    told = {"configMap", "secret", "persistentVolumeClaim"}
    for kind in sorted(volume.keys() - _MADE_IN_PLACE - told):
        yield f"volume {volume.get('name')} ({kind})"


def _object(source: Document | None, kind: str, key: str) -> Iterator[str]:
    if not source or source.get("optional") or not source.get(key):
        return
    keys = ", ".join(str(item.get("key")) for item in source.get("items") or ())
    yield f"{kind} {source[key]}" + (f" with {keys}" if keys else "")
