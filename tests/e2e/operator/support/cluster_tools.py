"""A cluster as a user sees it, the operator as a process beside it, and manifests of jobs that run nothing."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from data_servers import DataServer
from process_ends import end

from rollout_contract.messages import EndKind
from rollout_contract.names import JobRef
from rollout_stream.connection import ServerAddress
from rollout_stream.control import Control
from rollout_stream.session import Session

COUNTING = Path(__file__).parents[2] / "support" / "counting.py"
"""Environments and a policy for workers: mounted into them from a ConfigMap."""
FAKE = {"type": "kwok"}
"""Label of nodes whose pods become ready at once and run nothing."""


def until(look, *, within=30.0, what="it"):
    """What `look` returns once it is true; what it last saw otherwise."""
    deadline, seen, wait = time.monotonic() + within, None, 0.1
    while time.monotonic() < deadline:
        seen = look()
        if seen:
            return seen
        time.sleep(wait)
        wait = min(0.5, wait * 1.2)  # a look is a kubectl: many of them keep a processor busy
    raise AssertionError(f"{what} did not come within {within:.0f} s: {seen!r}")


class Kube:
    """kubectl, as a user would use it."""

    def __init__(self, kubeconfig, namespace):
        self.kubeconfig = str(kubeconfig)
        self.namespace = namespace

    def run(self, *args, stdin=None, check=True):
        """Standard output; AssertionError with kubectl's words if it fails."""
        done = subprocess.run(
            ["kubectl", "--kubeconfig", self.kubeconfig, "-n", self.namespace, *args],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )
        assert done.returncode == 0 or not check, f"kubectl {' '.join(args)}: {done.stderr}"
        return done.stdout if done.returncode == 0 else done.stderr

    def json(self, *args):
        return json.loads(self.run(*args, "-o", "json"))

    def get(self, kind, name):
        """The object, or None."""
        text = self.run("get", kind, name, "--ignore-not-found", "-o", "json")
        return json.loads(text) if text else None

    def apply(self, document):
        return self.run("apply", "-f", "-", stdin=json.dumps(document))

    def patch(self, name, spec, kind="roj"):
        return self.run("patch", kind, name, "--type=merge", "-p", json.dumps({"spec": spec}))

    # --- RolloutJobs

    def status(self, name):
        return (self.get("roj", name) or {}).get("status") or {}

    def condition(self, name, type_):
        """(status, reason, message)."""
        found = [c for c in self.status(name).get("conditions", []) if c["type"] == type_]
        return (found[0]["status"], found[0]["reason"], found[0].get("message", "")) if found else None

    def pods(self, name=None):
        """Worker pods of a job by their names."""
        selector = f"rolloutjob.dev/job-name={name}" if name else "rolloutjob.dev/job-uid"
        return {p["metadata"]["name"]: p for p in self.json("get", "pods", "-l", selector)["items"]}

    def ready(self, name):
        return [
            pod
            for pod in self.pods(name).values()
            if not pod["metadata"].get("deletionTimestamp")
            and any(
                c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions", [])
            )
        ]

    def wait_ready(self, name, count, within=30.0):
        def look():
            status = self.status(name)
            return status.get("readyWorkers") == f"{count}/{count}" and status

        return until(look, within=within, what=f"{count} ready workers of {name}")

    def wait_condition(self, name, type_, status, reason=None, within=30.0):
        """The condition's message."""

        def look():
            found = self.condition(name, type_)
            if found and found[0] == status and reason in {None, found[1]}:
                return found
            return None

        try:
            return until(look, within=within)[2]
        except AssertionError:
            raise AssertionError(f"{type_}={status} ({reason}) did not come: {self.status(name)}") from None


def fake_template(image="fake", **annotations):
    """A pod template for nodes that run nothing."""
    return {
        "metadata": {"annotations": {f"test/{k.replace('_', '-')}": str(v) for k, v in annotations.items()}},
        "spec": {
            "nodeSelector": FAKE,
            "tolerations": [{"key": "kwok.x-k8s.io/node", "operator": "Exists"}],
            "containers": [
                {
                    "name": "worker",
                    "image": image,
                    "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}},
                }
            ],
        },
    }


def job(name, *, replicas=1, group=None, metadata=None, **spec):
    """A job of workers that run nothing."""
    return {
        "apiVersion": "rolloutjob.dev/v1alpha1",
        "kind": "RolloutJob",
        "metadata": {"name": name, **(metadata or {})},
        "spec": {
            "env": {"entrypoint": "envs:make_env"},
            "policy": {"entrypoint": "policies:make_policy"},
            "collector": {"framesPerBatch": 100},
            "workerGroups": [{"name": "w", "elastic": True, "template": fake_template(), **(group or {})}],
            "replicas": replicas,
            **spec,
        },
    }


class Operator:
    """`python -m rollout_operator` as a process."""

    def __init__(self, log_file: Path, environ):
        self.log_file = log_file
        self.environ = environ
        self.process = None
        self.port = int(environ["ROLLOUT_HTTP_PORT"])

    def start(self):
        with self.log_file.open("a") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "rollout_operator"], env=self.environ, stdout=log, stderr=log
            )
        return self

    def wait_ready(self, within=40.0):
        until(lambda: self.probe("readyz")[0] == 200, within=within, what=f"readiness ({self.log()[-2000:]})")
        return self

    def probe(self, path):
        """(status, text); status 0 if nobody answers."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/{path}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError as error:
            return 0, str(error)

    def metric(self, name, **labels):
        """The sum of a metric's samples with these labels."""
        total = 0.0
        for line in self.probe("metrics")[1].splitlines():
            head, _, value = line.rpartition(" ")
            if head.partition("{")[0] == name and all(f'{k}="{v}"' in head for k, v in labels.items()):
                total += float(value)
        return total

    def kill(self):
        self.process.kill()
        self.process.wait(10)

    def stop(self, within=25.0):
        """SIGTERM; the exit code."""
        if self.process is None or self.process.poll() is not None:
            return None if self.process is None else self.process.returncode
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(within)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"no orderly end: {self.log()[-2000:]}") from None

    def log(self):
        return self.log_file.read_text() if self.log_file.exists() else ""


def data_server():
    """A server on all addresses of this machine, for a `with`."""
    return DataServer("--protected-mode", "no", bind="*")


WORKER_IMAGE = os.environ.get("ROLLOUT_TEST_WORKER_IMAGE", "localhost/rollout-worker:dev")


def needs_worker_image(kube):
    """Skips the test where no node has the image, or pods cannot reach a server on this machine."""
    if host_address(kube.kubeconfig) is None:
        pytest.skip("pods of this cluster cannot reach a server on this machine")
    images = (
        name
        for node in kube.json("get", "nodes")["items"]
        for image in node["status"].get("images") or ()
        for name in image.get("names") or ()
    )
    if WORKER_IMAGE not in images:
        pytest.skip(f"no node has the image {WORKER_IMAGE} (ROLLOUT_TEST_WORKER_IMAGE)")


class PodHistory:
    """Everything that happened to a job's worker pods while it ran, from a watch of its own."""

    def __init__(self, kube, name, path: Path):
        self._path = path
        command = [
            "kubectl",
            "--kubeconfig",
            kube.kubeconfig,
            "-n",
            kube.namespace,
            "get",
            "pods",
            "-w",
            "-o",
            "json",
        ]
        selector = ["-l", f"rolloutjob.dev/job-name={name}", "--output-watch-events"]
        with path.open("w") as out:
            self._process = subprocess.Popen([*command, *selector], stdout=out, stderr=subprocess.DEVNULL)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        end(self._process)

    def events(self):
        """(kind, pod) in their order."""
        text, decoder, at = self._path.read_text(), json.JSONDecoder(), 0
        while at < len(text):
            try:
                event, at = decoder.raw_decode(text, at)
            except ValueError:
                return  # cut off in the midst of the newest
            yield event["type"], event["object"]
            at += len(text[at:]) - len(text[at:].lstrip())

    def check(self):
        """No slot had two workers at any moment, and no name was given twice. How many pods there were."""
        living, names = {}, {}
        for kind, pod in self.events():
            metadata = pod["metadata"]
            uid, labels = metadata["uid"], metadata["labels"]
            assert names.setdefault(metadata["name"], uid) == uid, f"{metadata['name']} was made twice"
            slot = labels["rolloutjob.dev/worker-group"], labels["rolloutjob.dev/worker-index"]
            is_over = kind == "DELETED" or pod["status"].get("phase") in {"Succeeded", "Failed"}
            if is_over:
                living.pop(uid, None)
            else:
                living[uid] = slot
            doubled = [s for s in set(living.values()) if list(living.values()).count(s) > 1]
            assert not doubled, f"two workers in {doubled} after {kind} of {metadata['name']}"
        return len(names)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def host_address(kubeconfig):
    """This machine as pods reach it: where the cluster's API server is, if that is here. None elsewhere."""
    text = subprocess.run(
        ["kubectl", "--kubeconfig", str(kubeconfig), "config", "view", "--minify", "-o", "json"],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    ).stdout
    host = urlsplit(json.loads(text)["clusters"][0]["cluster"]["server"]).hostname or ""
    with socket.socket() as probe:
        try:
            probe.bind((host, 0))
        except OSError:
            return None
    return host


def control_of(kube, name, url):
    """The control plane of a job's stream."""
    uid = kube.get("roj", name)["metadata"]["uid"]
    return Control(Session(ServerAddress.of(url)), JobRef(kube.namespace, name, uid))


def complete(kube, name, url):
    """End a job with the frames that it has."""
    control_of(kube, name, url).finish(EndKind.FINISHED, reason="CompletedByRequest")


def unique(prefix):
    return f"{prefix}-{uuid.uuid4().hex[:8]}"


def environ_without_settings():
    return {key: value for key, value in os.environ.items() if not key.startswith("ROLLOUT_")}
