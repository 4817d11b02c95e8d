"""One pod of a local run: a process, its probes, and the document with the status that a kubelet would write.

Made by the local cluster, one object per pod, with its process already running. `gone` ends when deletion was asked for
and nothing of the pod is left but its log.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import signal
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rollout_cli.local.container_env import Secrets, variables_of
from rollout_cli.local.pod_process import PodProcess
from rollout_cli.local.probes import Probe, wait_for_death, watch_readiness
from rollout_contract import podenv
from rollout_operator.cluster import Document, PodRefused
from rollout_operator.pods import MAX_MESSAGE_CHARS, worker_container_name

log = logging.getLogger(__name__)

MAX_LOG_MESSAGE_BYTES = 2048
"""Where the program left no last words, the end of its log stands in for them."""
DEFAULT_GRACE_S = 30.0
"""Kubernetes' own, for a manifest that says nothing."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What every pod of a run is started with."""

    run_dir: Path
    work_dir: Path
    """The programs' working directory."""
    environ: Mapping[str, str]
    """Variables that programs find besides those of their container."""
    secrets: Secrets
    node: str
    clock: Callable[[], float]
    changed: Callable[[], None]
    """Called whenever a pod's document changed."""


class LocalPod:
    """A pod and its process. PodRefused from the constructor if it cannot be started here."""

    def __init__(self, manifest: Document, machine: Machine) -> None:
        self._machine = machine
        self.document = _admitted(manifest, machine)
        name, spec = self.document["metadata"]["name"], self.document["spec"]
        container = worker_container_name(spec)
        self._container: Document = next(c for c in spec["containers"] if c["name"] == container)
        self._grace_s = float(spec.get("terminationGracePeriodSeconds", DEFAULT_GRACE_S))
        self._directory: Path = machine.run_dir / "pods" / name
        self.log: Path = machine.run_dir / "logs" / f"{name}.log"
        self._deletion = asyncio.Event()
        self._kill: asyncio.TimerHandle | None = None
        self._note = ""
        """What we did to the process ourselves, for its last words."""
        self._process = self._start()
        self._note_start()
        self.gone: asyncio.Task[None] = asyncio.create_task(self._live(), name=f"pod {name}")

    @property
    def uid(self) -> str:
        """The pod's UID."""
        return str(self.document["metadata"]["uid"])

    @property
    def pid(self) -> int:
        """The process that stands over the pod's program, and leads its session."""
        return self._process.pid

    def delete(self, grace_s: float | None) -> None:
        """Ask the pod to end: SIGTERM, after the grace SIGKILL. A second call can only shorten the grace."""
        grace = self._grace_s if grace_s is None else grace_s
        metadata = self.document["metadata"]
        if metadata.get("deletionGracePeriodSeconds", float("inf")) <= grace:
            return
        metadata["deletionTimestamp"] = _text(self._machine.clock() + grace)
        metadata["deletionGracePeriodSeconds"] = grace
        self._deletion.set()
        self._end_process(grace)
        self._machine.changed()

    def annotate(self, annotations: Mapping[str, str]) -> None:
        """Set annotations."""
        self.document["metadata"].setdefault("annotations", {}).update(annotations)
        self._machine.changed()

    def _start(self) -> PodProcess:
        command = [*(self._container.get("command") or ()), *(self._container.get("args") or ())]
        if not command:
            raise PodRefused(f"container {self._container['name']} has no command: a local run has no images")
        own = variables_of(self._container, self.document, self._machine.secrets)
        files = {podenv.HEALTH_FILE: str(self._health_file), podenv.TERMINATION_LOG: str(self._last_words)}
        environ = {"PYTHONUNBUFFERED": "1", **self._machine.environ, **own, **files}
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            self.log.parent.mkdir(parents=True, exist_ok=True)
            for leftover in (self._health_file, self._last_words):
                leftover.unlink(missing_ok=True)
            return PodProcess.start(command, environ=environ, directory=self._machine.work_dir, log=self.log)
        except OSError as error:
            raise PodRefused(f"the process cannot be started: {error}") from error

    @property
    def _health_file(self) -> Path:
        return self._directory / "health"

    @property
    def _last_words(self) -> Path:
        return self._directory / "termination-log"

    async def _live(self) -> None:
        watchers = self._watchers()
        try:
            code = await self._process.wait()
        finally:
            for watcher in watchers:
                watcher.cancel()
            await asyncio.gather(*watchers, return_exceptions=True)
        if self._kill is not None:
            self._kill.cancel()
        self._note_end(code)
        await self._deletion.wait()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _end_process(self, grace_s: float) -> None:
        if self._kill is not None:
            self._kill.cancel()
        if grace_s > 0:
            self._process.terminate()
        self._kill = asyncio.get_running_loop().call_later(max(0.0, grace_s), self._kill_process, grace_s)

    def _kill_process(self, grace_s: float) -> None:
        if not self._process.has_ended:
            log.warning("pod %s: killed, %g s after it was asked to end", self._name, grace_s)
            self._process.kill()

    @property
    def _name(self) -> str:
        return str(self.document["metadata"]["name"])

    def _watchers(self) -> list[asyncio.Task[None]]:
        readiness = Probe.of(self._container, "readinessProbe")
        liveness = Probe.of(self._container, "livenessProbe")
        watchers = []
        if readiness is not None:
            watching = watch_readiness(readiness, self._health_file, changed=self._note_ready)
            watchers.append(asyncio.create_task(watching))
        if liveness is not None:
            watchers.append(asyncio.create_task(self._end_if_dead(liveness)))
        return watchers

    async def _end_if_dead(self, probe: Probe) -> None:
        await wait_for_death(probe, self._health_file)
        self._note = f"ended by us: {probe.path} gave no good answer {probe.failure_threshold} times in a row"
        log.warning("pod %s: %s", self._name, self._note)
        self._note_ready(False)
        if not self._deletion.is_set():
            self._end_process(self._grace_s)

    # --- the status that a kubelet would write

    def _note_start(self) -> None:
        now = _text(self._machine.clock())
        has_probe = Probe.of(self._container, "readinessProbe") is not None
        self.document["status"] = {
            "phase": "Running",
            "startTime": now,
            "conditions": [
                _condition("PodScheduled", True, now),
                _condition("Initialized", True, now),
                _condition("Ready", not has_probe, now),
            ],
            "containerStatuses": [
                self._container_status({"running": {"startedAt": now}}, is_ready=not has_probe)
            ],
        }

    def _note_ready(self, is_ready: bool) -> None:
        if self._process.has_ended:
            return
        self._set_ready(is_ready)
        self._machine.changed()

    def _set_ready(self, is_ready: bool) -> None:
        now = _text(self._machine.clock())
        status = self.document["status"]
        others = [c for c in status["conditions"] if c["type"] != "Ready"]
        status["conditions"] = [*others, _condition("Ready", is_ready, now)]
        status["containerStatuses"][0]["ready"] = is_ready

    def _note_end(self, code: int) -> None:
        status = self.document["status"]
        started = status["containerStatuses"][0]["state"]["running"]["startedAt"]
        terminated = {
            "exitCode": code,
            "reason": "Completed" if code == 0 else "Error",
            "message": self._message(code),
            "startedAt": started,
            "finishedAt": _text(self._machine.clock()),
        }
        self._set_ready(False)
        status["phase"] = "Succeeded" if code == 0 else "Failed"
        status["containerStatuses"] = [self._container_status({"terminated": terminated}, is_ready=False)]
        self._machine.changed()

    def _message(self, code: int) -> str:
        words = _read(self._last_words)[:MAX_MESSAGE_CHARS].strip()
        if code == 0 or words:
            return words
        parts = [self._note, _signal_text(code) if not self._note else ""]
        parts.append(tail_of(self.log, MAX_LOG_MESSAGE_BYTES).strip())
        return "\n".join(part for part in parts if part)

    def _container_status(self, state: Document, *, is_ready: bool) -> Document:
        name, image = self._container["name"], self._container.get("image", "")
        return {"name": name, "image": image, "ready": is_ready, "restartCount": 0, "state": state}


def tail_of(path: Path, tail_bytes: int) -> str:
    """The last bytes of a file as text, from the start of a line where there is one; empty if there is no file."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - tail_bytes))
            data = file.read()
    except FileNotFoundError:
        return ""
    if size > tail_bytes and b"\n" in data:
        data = data.split(b"\n", 1)[1]
    return data.decode(errors="replace")


def _admitted(manifest: Document, machine: Machine) -> Document:
    """The manifest as an API server and a scheduler would leave it."""
    spec: dict[str, Any] = {**manifest["spec"], "nodeName": machine.node}
    others = [kind for kind in ("initContainers", "ephemeralContainers") if spec.get(kind)]
    if others or len(spec["containers"]) > 1:
        log.warning("pod %s: a local run starts the worker's container only", manifest["metadata"]["name"])
    metadata = {
        **manifest["metadata"],
        "annotations": dict(manifest["metadata"].get("annotations") or {}),
        "uid": str(uuid.uuid4()),
        "creationTimestamp": _text(machine.clock()),
    }
    return {**manifest, "metadata": metadata, "spec": spec}


def _condition(type_: str, is_true: bool, now: str) -> Document:
    return {"type": type_, "status": "True" if is_true else "False", "lastTransitionTime": now}


def _signal_text(code: int) -> str:
    try:
        name = signal.Signals(code - 128).name
    except ValueError:
        return ""
    hint = ": out of memory, or killed by hand" if name == "SIGKILL" else ""
    return f"ended by {name}{hint}"


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _text(seconds: float) -> str:
    """RFC 3339 with microseconds: a local run's pods live faster than a cluster's."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
