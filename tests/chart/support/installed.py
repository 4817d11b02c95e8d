"""The chart on a real cluster: helm and kubectl as a user types them.

For tests with KUBECONFIG and images (`E2E_TAG`, `E2E_REGISTRY`); without them they are skipped, with the reason.
"""

from __future__ import annotations

import base64
import json
import os
import re
import select
import shutil
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest
import yaml

ROOT = Path(__file__).parents[3]
CHART = ROOT / "charts" / "rollout"
PLAIN_CRD = ROOT / "charts" / "rollout-crd.yaml"
RESTRICTED = "pod-security.kubernetes.io/enforce=restricted"
SECURITY = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
POD_SECURITY = {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}}

Document = dict[str, Any]
T = TypeVar("T")


def until(look: Callable[[], T], what: str, *, within_s: float = 60.0) -> T:
    """What `look` gives, once that is true. AssertionError with what it gave last, otherwise."""
    deadline = time.monotonic() + within_s
    while not (seen := look()):
        assert time.monotonic() < deadline, f"no {what} after {within_s:.0f} s: {seen!r}"
        time.sleep(0.3)
    return seen


def kubeconfig() -> Path:
    """The administrator's. Skips without one."""
    if not os.environ.get("KUBECONFIG"):
        pytest.skip("needs a cluster: set KUBECONFIG")
    return Path(os.environ["KUBECONFIG"])


def program(name: str) -> str:
    """Path of an executable, from the PATH or from the test cluster's own. Skips without it."""
    folders = [os.environ.get("PATH", ""), str(kubeconfig().parent / "bin")]
    found = shutil.which(name, path=os.pathsep.join(folders))
    if not found:
        pytest.skip(f"needs {name} on the PATH")
    return found


def image_values() -> Document:
    """Values that name the images under test. Skips without them."""
    tag = os.environ.get("E2E_TAG")
    if not tag:
        pytest.skip("needs images on the cluster: run `make e2e`, or set E2E_TAG")
    images = {part: {"image": {"tag": tag}} for part in ("operator", "gateway", "redis", "worker")}
    return {"global": {"imageRegistry": os.environ.get("E2E_REGISTRY", "")}, **images}


def image(name: str) -> str:
    """The reference of one of the images under test."""
    registry = os.environ.get("E2E_REGISTRY", "")
    return f"{registry}/{name}:{os.environ['E2E_TAG']}".lstrip("/")


class Refused(Exception):
    """A command did not do what it was told; the text is what it said."""


@dataclass(frozen=True)
class Commands:
    """kubectl and helm in one namespace, with one account."""

    namespace: str
    kubeconfig: Path = field(default_factory=kubeconfig)
    helm_name: str = "helm"

    def run(self, name: str, *arguments: str, text: str = "", within_s: float = 200.0) -> str:
        """Standard output. Refused, with the command and its words, if it ends with another code than 0."""
        done = subprocess.run(
            [program(name), "--kubeconfig", str(self.kubeconfig), "--namespace", self.namespace, *arguments],
            input=text,
            capture_output=True,
            text=True,
            timeout=within_s,
            check=False,
        )
        if done.returncode:
            raise Refused(f"{name} {' '.join(arguments)}: {done.stderr}{done.stdout}")
        return done.stdout

    def __call__(self, *arguments: str, text: str = "", within_s: float = 90.0) -> str:
        """kubectl."""
        return self.run("kubectl", *arguments, text=text, within_s=within_s)

    def helm(self, *arguments: str, values: Document | None = None, within_s: float = 200.0) -> str:
        """Helm, with values if there are any."""
        more = () if values is None else ("--values", "-")
        return self.run(self.helm_name, *arguments, *more, text=json.dumps(values or {}), within_s=within_s)

    def get(self, kind: str, name: str = "", *more: str) -> Any:
        """An object or a list as JSON; None where there is none of that name."""
        named = (name, "--ignore-not-found") if name else ()
        text = self("get", kind, *named, *more, "--output", "json")
        return json.loads(text) if text.strip() else None

    def apply(self, *documents: Document) -> str:
        """`kubectl apply -f -`."""
        return self("apply", "-f", "-", text=yaml.safe_dump_all(documents))

    # --- jobs

    def status(self, name: str) -> Document:
        """A job's status; empty where there is none yet."""
        return dict((self.get("rolloutjob", name) or {}).get("status") or {})

    def condition(self, name: str, kind: str, status: str, reason: str = "", within_s: float = 90.0) -> str:
        """The message of a job's condition, once it is so."""

        def look() -> Any:
            found = {c["type"]: c for c in self.status(name).get("conditions") or ()}.get(kind) or {}
            is_so = found.get("status") == status and reason in ("", found.get("reason"))
            return [found.get("message", "")] if is_so else []

        try:
            return str(until(look, f"{kind}={status} {reason}", within_s=within_s)[0])
        except AssertionError as error:
            raise AssertionError(f"{error}; {name} says {self.status(name)}") from None

    def ready(self, name: str, count: int, within_s: float = 180.0) -> None:
        """Wait until a job has exactly so many workers, all ready."""
        until(
            lambda: self.status(name).get("readyWorkers") == f"{count}/{count}",
            f"{count} ready workers of {name}",
            within_s=within_s,
        )

    def pods(self, selector: str) -> dict[str, str]:
        """Name and UID of those that are not on their way out."""
        found = (p["metadata"] for p in self.get("pods", "", "--selector", selector)["items"])
        return {m["name"]: m["uid"] for m in found if not m.get("deletionTimestamp")}

    def workers(self, name: str) -> dict[str, str]:
        """Pods of a job."""
        return self.pods(f"rolloutjob.dev/job-name={name}")

    @contextmanager
    def forwarded(self, target: str, port: int) -> Iterator[str]:
        """`kubectl port-forward`: host and port on this machine."""
        command = [program("kubectl"), "--kubeconfig", str(self.kubeconfig), "--namespace", self.namespace]
        process = subprocess.Popen(
            [*command, "port-forward", target, f":{port}"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        try:
            assert process.stdout is not None
            found, said = None, ""
            deadline = time.monotonic() + 30
            while not found and time.monotonic() < deadline and process.poll() is None:
                if select.select([process.stdout], [], [], 1)[0]:
                    said += os.read(process.stdout.fileno(), 4096).decode()
                found = re.search(r"127\.0\.0\.1:\d+", said)
            assert found, f"port-forward {target} {port}: {said}"
            yield found[0]
        finally:
            process.kill()
            process.communicate(timeout=10)


@contextmanager
def namespaces(*prefixes: str, labels: tuple[str, ...] = (RESTRICTED,)) -> Iterator[list[Commands]]:
    """Namespaces of a test's own, and the definition of this checkout. They are gone afterwards, with all in them."""
    made = [Commands(f"{prefix}-{uuid.uuid4().hex[:6]}") for prefix in prefixes]
    admin = Commands("default")
    admin("apply", "--server-side", "--force-conflicts", "-f", str(PLAIN_CRD))
    try:
        for space in made:
            admin("create", "namespace", space.namespace)
            for label in labels:
                admin("label", "namespace", space.namespace, label)
        yield made
    finally:
        for space in made:
            admin("delete", "namespace", space.namespace, "--wait=false", "--ignore-not-found")


@dataclass
class Release:
    """One installation of the chart, named like its namespace."""

    home: Commands
    values: Document
    chart: Path = CHART

    @property
    def name(self) -> str:
        """Of the release."""
        return self.home.namespace

    @property
    def full(self) -> str:
        """Before the names of its objects."""
        return f"{self.name}-rollout"

    def install(self, *options: str) -> float:
        """Seconds until everything was ready."""
        started = time.monotonic()
        self._put("install", *options)
        return time.monotonic() - started

    def upgrade(self, *options: str, **values: Any) -> None:
        """With these values on top."""
        self.values = merged(self.values, values)
        self._put("upgrade", *options)

    def _put(self, command: str, *options: str) -> None:
        arguments = (command, self.name, str(self.chart), "--wait", "--timeout", "150s", *options)
        self.home.helm(*arguments, values=self.values)

    def uninstall(self) -> None:
        """Take it away, and wait for the end of its pods."""
        self.home.helm("uninstall", self.name, "--wait", "--timeout", "100s")

    def password(self) -> str:
        """That the chart drew for the server."""
        secret = self.home.get("secret", f"{self.full}-redis")
        return base64.b64decode(secret["data"]["password"]).decode()


def merged(base: Document, more: Document) -> Document:
    """Helm's way to put values on values."""
    result = dict(base)
    for key, value in more.items():
        is_deep = isinstance(value, dict) and isinstance(result.get(key), dict)
        result[key] = merged(result[key], value) if is_deep else value
    return result


@contextmanager
def release(home: Commands, values: Document, *, helm_name: str = "helm") -> Iterator[Release]:
    """An installation that is there, and gone afterwards."""
    found = Release(Commands(home.namespace, home.kubeconfig, helm_name), merged(image_values(), values))
    try:
        found.install()
        yield found
    finally:
        try:
            found.home.helm("uninstall", found.name, "--ignore-not-found", within_s=60)
        except Refused as error:  # the namespace goes anyway
            print(error)


def account_kubeconfig(commands: Commands, account: str, folder: Path) -> Commands:
    """The same namespace for a service account of it, with its token in a kubeconfig of its own."""
    token = commands("create", "token", account, "--duration=1h").strip()
    document = json.loads(commands("config", "view", "--minify", "--raw", "--output", "json"))
    document["users"] = [{"name": document["users"][0]["name"], "user": {"token": token}}]
    path = folder / f"{account}.kubeconfig"
    path.write_text(json.dumps(document), encoding="utf-8")
    return Commands(commands.namespace, path)
