"""An installation of the chart, its server as this machine reaches it, readers of jobs, and what happened to pods."""

from __future__ import annotations

import base64
import json
import os
import socket
import subprocess
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import redis
from cluster_tools import Kube, free_port, until
from process_ends import end

from rollout_stream import RolloutStream

ROOT = Path(__file__).parents[4]
CHART = ROOT / "charts" / "rollout"
READY_WITHIN_S = 60.0
"""From `helm install` to everything ready, with the images there."""


class PortForward:
    """`kubectl port-forward` to one port of a Service, on a port of this machine; begun anew when its pod goes."""

    def __init__(self, kube: Kube, target: str, port: int) -> None:
        self.port = free_port()
        command = ["kubectl", "--kubeconfig", kube.kubeconfig, "-n", kube.namespace, "port-forward", target]
        self._command = [*command, f"{self.port}:{port}"]
        self._closed = threading.Event()
        self._process = self._start()
        self._thread = threading.Thread(target=self._keep, daemon=True)
        self._thread.start()
        until(self._answers, what=f"a forwarded port of {target}")

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def _keep(self) -> None:
        while not self._closed.wait(0.2):
            if self._process.poll() is not None:
                self._process = self._start()

    def _answers(self) -> bool:
        with socket.socket() as probe:
            probe.settimeout(1)
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def close(self) -> None:
        self._closed.set()
        self._thread.join(5)
        end(self._process)


class Platform:
    """One release of the chart in a namespace, which looks after jobs there and in others."""

    def __init__(self, kube: Kube, others: tuple[Kube, ...] = ()) -> None:
        self.kube, self.others = kube, others
        self.seconds_to_ready = 0.0
        self._forwards: list[PortForward] = []

    def install(self) -> None:
        """`helm install`; the definition is there already, and the roles of users belong to whoever installed them."""
        tag = os.environ["E2E_TAG"]
        modest = {"requests": {"cpu": "25m"}}  # nodes are small, and other tests run beside
        values = {
            "global": {"imageRegistry": os.environ.get("E2E_REGISTRY", "")},
            "watch": {"namespaces": [self.kube.namespace, *(other.namespace for other in self.others)]},
            "operator": {
                "image": {"tag": tag},
                "resources": modest,
                "observeSeconds": 2,
                "progressSeconds": 2,
            },
            "rbac": {"userRoles": False},
            **{program: {"image": {"tag": tag}, "resources": modest} for program in ("gateway", "redis")},
            "worker": {"image": {"tag": tag}},
        }
        started = time.monotonic()
        command = ["install", "rollout", str(CHART), "--wait", "--timeout", f"{READY_WITHIN_S:.0f}s"]
        self._helm(*command, "--values", "-", text=json.dumps(values))
        self.seconds_to_ready = time.monotonic() - started

    def uninstall(self) -> None:
        for forward in self._forwards:
            forward.close()
        self._helm("uninstall", "rollout")

    def _helm(self, *arguments: str, text: str = "") -> None:
        command = ["helm", "--kubeconfig", self.kube.kubeconfig, "--namespace", self.kube.namespace]
        done = subprocess.run(
            [*command, *arguments], input=text, capture_output=True, text=True, timeout=150, check=False
        )
        assert done.returncode == 0, f"helm {' '.join(arguments)}: {done.stderr}"

    def forward(self, target: str, port: int) -> int:
        """A port of this machine that leads to a Service's."""
        self._forwards.append(PortForward(self.kube, target, port))
        return self._forwards[-1].port

    def password(self) -> str:
        secret = self.kube.get("secret", "rollout-redis")
        return base64.b64decode(secret["data"]["password"]).decode()

    def server(self) -> redis.Redis:
        """A client of the release's server."""
        return redis.Redis(port=self.forward("service/rollout-redis", 6379), password=self.password())

    def stream(self, kube: Kube, name: str) -> RolloutStream:
        """The stream of a job, through a forwarded port."""
        url = f"redis://127.0.0.1:{self.forward('service/rollout-redis', 6379)}"
        return RolloutStream.connect(url, job=f"{kube.namespace}/{name}", password=self.password())


@dataclass(frozen=True)
class Read:
    """What one batch said of itself."""

    worker: str
    group: str
    index: int
    attempt: int
    sequence: int
    frames: int
    redelivered: bool


@dataclass
class Reader:
    """A learner in a thread, which reads no further than `limit` frames: so that a test can act at a known place."""

    stream: RolloutStream
    limit: int | None = None
    seen: list[Read] = field(default_factory=list)
    error: BaseException | None = None

    def __post_init__(self) -> None:
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    @property
    def frames(self) -> int:
        return sum(read.frames for read in self.seen)

    def _read(self) -> None:
        try:
            with self.stream:
                for batch in self.stream.batches("learner", prefetch=1):
                    self._note(batch)
                    while self.limit is not None and self.frames >= self.limit:
                        time.sleep(0.02)
                    batch.ack()
        except BaseException as error:
            self.error = error

    def _note(self, batch) -> None:
        header = batch.header
        worker = header.worker
        frames = int(batch.data.numel())
        self.seen.append(
            Read(
                str(worker), worker.group, worker.index, worker.attempt, header.sequence, frames,
                batch.redelivered,
            )
        )  # fmt: skip

    def wait_for(self, frames: int, within: float = 90.0) -> None:
        """Until so many frames were read."""
        until(lambda: self.frames >= frames or self.error, within=within, what=f"{frames} frames")
        assert self.error is None, self.error

    def stand_still(self, within: float = 60.0) -> int:
        """Frames that were read, once no more came for two seconds."""
        deadline, last, since = time.monotonic() + within, -1, time.monotonic()
        while time.monotonic() < deadline:
            if self.frames != last:
                last, since = self.frames, time.monotonic()
            elif time.monotonic() - since > 2.0:
                return last
            time.sleep(0.05)
        raise AssertionError(f"batches still came after {within:.0f} s: {last} frames")

    def rest(self, within: float = 120.0) -> None:
        """Read on without a limit, to the end of the job."""
        self.limit = None
        self._thread.join(within)
        assert self.error is None, self.error
        assert not self._thread.is_alive(), f"not at the end after {within:.0f} s: {self.frames} frames"

    def assert_exact(self, frames: int) -> None:
        """Every frame once, and no batch of any attempt left out."""
        keys = [(read.worker, read.sequence) for read in self.seen]
        assert len(keys) == len(set(keys)), "a batch came twice"
        assert self.frames == frames
        by_slot: dict[tuple[str, int], list[int]] = {}
        for read in self.seen:
            by_slot.setdefault((read.group, read.index), []).append(read.sequence)
        for slot, sequences in by_slot.items():
            assert sorted(sequences) == list(range(1, len(sequences) + 1)), f"{slot}: {sorted(sequences)}"


class PodWatch:
    """Every state that a job's pods had, from a watch: also those between two looks."""

    def __init__(self, kube: Kube, name: str) -> None:
        self._log = tempfile.NamedTemporaryFile(prefix="pods-", mode="w+")  # noqa: SIM115 - as long as the process
        command = ["kubectl", "--kubeconfig", kube.kubeconfig, "-n", kube.namespace, "get", "pods"]
        options = ["-l", f"rolloutjob.dev/job-name={name}", "--watch", "--output-watch-events", "-o", "json"]
        self._process = subprocess.Popen([*command, *options], stdout=self._log)

    def __enter__(self) -> PodWatch:
        return self

    def __exit__(self, *_: object) -> None:
        end(self._process)
        self._log.close()

    def events(self) -> list[tuple[str, dict]]:
        """(type, pod) in their order; a last one that is half written is left out."""
        text, decoder, found, at = Path(self._log.name).read_text(), json.JSONDecoder(), [], 0
        while at < len(text):
            try:
                event, at = decoder.raw_decode(text, at)
            except ValueError:
                break
            found.append((event["type"], event["object"]))
            while at < len(text) and text[at].isspace():
                at += 1
        return found

    def exit_codes(self) -> dict[str, int]:
        """Of every pod whose worker was seen to have ended, by the pod's name."""
        return {
            pod["metadata"]["name"]: state["exitCode"]
            for _, pod in self.events()
            for status in pod["status"].get("containerStatuses") or ()
            if status["name"] == "worker" and (state := status["state"].get("terminated"))
        }

    def fewest_ready(self, group: str) -> int:
        """Ready pods of a group at the worst moment since all that there were at first were ready."""
        ready: dict[str, bool] = {}
        most, fewest = 0, 10_000
        for kind, pod in self.events():
            if pod["metadata"]["labels"]["rolloutjob.dev/worker-group"] != group:
                continue
            is_ready = any(
                c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions") or ()
            )
            gone = kind == "DELETED" or "deletionTimestamp" in pod["metadata"]
            ready[pod["metadata"]["uid"]] = is_ready and not gone
            count = sum(ready.values())
            if count > most:
                most, fewest = count, count
            fewest = min(fewest, count)
        return fewest
