"""The local cluster with real processes: small Python programs as pods."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest
from process_ends import is_gone

from rollout_cli.local.cluster import REDIS_SECRET, LocalCluster
from rollout_cli.local.job_file import JobFile
from rollout_contract.status import Reason
from rollout_operator.cluster import Creation, JobKey, PodRef, PodRefused, StaleJob

DEADLINE_S = 60.0
"""For whatever must come: it costs time only where it does not."""
KEY = JobKey("default", "a")

SERVES_HEALTH = """
    import http.server, os, signal, sys, threading
    answers = {"/readyz": 503, "/healthz": 200}
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(answers.get(self.path, 404)); self.end_headers()
        def log_message(self, *a): pass
    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    open(os.environ["ROLLOUT_HEALTH_FILE"], "w").write(str(server.server_port))
    signal.signal(signal.SIGUSR2, lambda *_: answers.update({"/readyz": 200}))
    print(os.getpid(), flush=True)
    server.serve_forever()
"""


@pytest.fixture
def job_file(tmp_path):
    store = JobFile(tmp_path)
    store.create({"kind": "RolloutJob", "metadata": {"name": "a"}, "spec": {}}, uid="job-1")
    return store


@pytest.fixture
async def cluster(job_file, tmp_path):
    made = LocalCluster(job_file, tmp_path, password="hush")
    yield made
    await made.close(grace_s=0)


def manifest(program="", *, name="a-w-0-0", owner="job-1", grace_s=30, env=(), probes=False, command=None):
    index, attempt = name.split("-")[-2:]
    container = {
        "name": "worker",
        "command": command or [sys.executable, "-c", textwrap.dedent(program)],
        "env": list(env),
    }
    if probes:
        http = {"port": 0}
        container["readinessProbe"] = {
            "httpGet": {"path": "/readyz", **http},
            "periodSeconds": 0.05,
            "failureThreshold": 1,
        }
        container["livenessProbe"] = {
            "httpGet": {"path": "/healthz", **http},
            "initialDelaySeconds": 0,
            "periodSeconds": 0.05,
            "failureThreshold": 10_000,
        }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "default",
            "labels": {
                "rolloutjob.dev/worker-group": "w",
                "rolloutjob.dev/worker-index": index,
                "rolloutjob.dev/attempt": attempt,
                "rolloutjob.dev/template-hash": "h",
            },
            "ownerReferences": [{"kind": "RolloutJob", "name": "a", "uid": owner, "controller": True}],
        },
        "spec": {"terminationGracePeriodSeconds": grace_s, "containers": [container]},
    }


async def until(condition, what="the condition"):
    """Poll for what another process does; everything of our own is an event."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        found = condition()
        if asyncio.iscoroutine(found):
            found = await found
        if found:
            return found
        assert time.monotonic() < deadline, f"{what} did not come true in {DEADLINE_S:g} s"
        await asyncio.sleep(0.01)


async def only_pod(cluster):
    (pod,) = await cluster.list_pods(KEY, job_uid="job-1")
    return pod


async def ended_pod(cluster):
    async def is_ended():
        pod = await only_pod(cluster)
        return pod if pod.ended else None

    return await until(is_ended, "the pod's end")


def ref(pod):
    return PodRef(pod.namespace, pod.name, pod.uid)


def is_running(pid):
    return not is_gone(pid)


async def printed(cluster, count=1, name="a-w-0-0"):
    """Whole numbers that the pod has printed, once there are so many."""

    async def numbers():
        text = await cluster.read_log(PodRef("default", name, "any"))
        found = [int(line) for line in text.split() if line.isdecimal()]
        return found if len(found) >= count else None

    return await until(numbers, f"{count} numbers in the log of {name}")


@pytest.mark.parametrize(
    ("program", "code", "reason", "message"),
    [
        pytest.param("pass", 0, "Completed", "", id="in order"),
        pytest.param("raise SystemExit(64)", 64, "Error", "", id="a code of its own"),
        pytest.param("import os; os.kill(os.getpid(), 9)", 137, "Error", "ended by SIGKILL", id="SIGKILL"),
        pytest.param("import os; os.kill(os.getpid(), 11)", 139, "Error", "ended by SIGSEGV", id="SIGSEGV"),
        pytest.param("print('dying', flush=True); 1/0", 1, "Error", "ZeroDivisionError", id="log stands in"),
        pytest.param(
            "import os, sys; open(os.environ['ROLLOUT_TERMINATION_LOG'], 'w').write('EnvError: broken'); sys.exit(1)",
            1,
            "Error",
            "EnvError: broken",
            id="last words",
        ),
    ],
)
async def test_the_end_of_a_process_is_the_end_of_its_pod(cluster, program, code, reason, message):
    assert await cluster.create_pod(manifest(program)) is Creation.CREATED
    pod = await ended_pod(cluster)
    assert (pod.exit_code, pod.reason, pod.ready) == (code, reason, False)
    assert message in pod.message
    assert pod.phase == ("Succeeded" if code == 0 else "Failed")
    assert pod.created <= pod.started <= pod.finished


async def test_a_program_that_is_not_there_ends_with_127_and_its_name(cluster):
    await cluster.create_pod(manifest(command=["/no/such/program"]))
    pod = await ended_pod(cluster)
    assert pod.exit_code == 127
    assert "/no/such/program" in pod.message


async def test_the_end_is_an_event(cluster):
    heard = asyncio.Event()
    watching = asyncio.create_task(cluster.watch(lambda key: heard.set()))
    await until(heard.is_set)
    await cluster.create_pod(
        manifest("import sys; sys.stdin.read()")
    )  # standard input is empty: ends by itself
    await ended_pod(cluster)
    heard.clear()
    await cluster.delete_pod(ref(await only_pod(cluster)))
    await asyncio.wait_for(heard.wait(), DEADLINE_S)
    watching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await watching


async def test_without_a_probe_a_pod_is_ready_as_soon_as_it_runs(cluster):
    await cluster.create_pod(manifest("import time; time.sleep(600)"))
    pod = await only_pod(cluster)
    assert (pod.ready, pod.phase, pod.ended) == (True, "Running", False)


async def test_readiness_follows_the_endpoint_and_ends_with_the_process(cluster):
    await cluster.create_pod(manifest(SERVES_HEALTH, probes=True))
    (pid,) = await printed(cluster)
    assert not (await only_pod(cluster)).ready
    os.kill(pid, signal.SIGUSR2)

    async def is_ready():
        return (await only_pod(cluster)).ready

    await until(is_ready, "readiness")
    os.kill(pid, signal.SIGKILL)
    assert not (await ended_pod(cluster)).ready


@contextlib.asynccontextmanager
async def health():
    """An endpoint that listens before any pod starts: its port, and the code that it answers with, which may be changed."""
    answer = {"code": 200}

    async def respond(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 {answer['code']} X\r\nContent-Length: 0\r\n\r\n".encode())
        writer.close()

    async with await asyncio.start_server(respond, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1], answer


async def test_a_worker_that_lives_no_more_is_ended(cluster):
    async with health() as (port, answer):
        document = manifest("import os, time; print(os.getpid(), flush=True); time.sleep(600)", probes=True)
        del document["spec"]["containers"][0]["readinessProbe"]
        probe = document["spec"]["containers"][0]["livenessProbe"]
        probe |= {"failureThreshold": 2, "timeoutSeconds": DEADLINE_S}
        probe["httpGet"]["port"] = port
        await cluster.create_pod(document)
        await printed(cluster)
        assert (await only_pod(cluster)).alive
        answer["code"] = 500
        pod = await ended_pod(cluster)
    assert pod.exit_code == 143
    assert "/healthz gave no good answer 2 times" in pod.message


async def test_deletion_asks_first_and_the_pod_is_gone_afterwards(cluster):
    await cluster.create_pod(
        manifest(
            """
            import signal, sys, time
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
            print(1, flush=True)
            time.sleep(600)
            """
        )
    )
    await printed(cluster)
    pod = await only_pod(cluster)
    assert await cluster.delete_pod(ref(pod))
    pod = await only_pod(cluster)
    assert pod.deletion_requested is not None
    assert (pod.alive, pod.ending, pod.grace_s) == (False, True, 30.0)

    async def is_gone():
        return not await cluster.list_pods(KEY, job_uid="job-1")

    await until(is_gone, "the pod's disappearance")
    assert not await cluster.delete_pod(ref(pod))
    assert not await cluster.annotate_pod(ref(pod), {"x": "y"})


STUBBORN = """
    import os, signal, subprocess, sys, time
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ignore = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    child = subprocess.Popen([sys.executable, "-c", ignore])
    away = subprocess.Popen([sys.executable, "-c", ignore], start_new_session=True)
    daemon = subprocess.run(
        [sys.executable, "-c",
         "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', sys.argv[1]], start_new_session=True,"
         "stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL); print(p.pid)", ignore],
        capture_output=True, text=True)
    print(os.getpid(), child.pid, away.pid, daemon.stdout.strip(), flush=True)
    time.sleep(600)
"""
"""Ignores SIGTERM, and has a child, a child in another session, and an orphan in another session."""


@pytest.mark.parametrize(
    "end",
    [
        pytest.param(
            lambda cluster, pod, pids: cluster.delete_pod(ref(pod), grace_s=0.3), id="grace is over"
        ),
        pytest.param(lambda cluster, pod, pids: cluster.delete_pod(ref(pod), grace_s=0), id="no grace"),
        pytest.param(lambda cluster, pod, pids: asyncio.to_thread(os.kill, pids[0], 9), id="program killed"),
        pytest.param(lambda cluster, pod, pids: cluster.close(grace_s=0.1), id="cluster closed"),
    ],
)
async def test_no_descendant_outlives_its_pod(cluster, end):
    await cluster.create_pod(manifest(STUBBORN))
    pids = await printed(cluster, 4)
    assert all(map(is_running, pids))
    await end(cluster, await only_pod(cluster), pids)
    await until(lambda: not any(map(is_running, pids)), "the end of every descendant")


async def test_a_shorter_grace_counts(cluster):
    await cluster.create_pod(manifest(STUBBORN))
    pids = await printed(cluster, 4)
    pod = await only_pod(cluster)
    await cluster.delete_pod(ref(pod), grace_s=600)
    await cluster.delete_pod(ref(pod), grace_s=0.1)
    await cluster.delete_pod(ref(pod), grace_s=600)
    await until(lambda: not any(map(is_running, pids)), "the end of every descendant")


async def test_the_launcher_may_be_killed_too(cluster):
    await cluster.create_pod(manifest("import os, time; print(os.getpid(), flush=True); time.sleep(600)"))
    (pid,) = await printed(cluster)
    os.kill(cluster._pods["a-w-0-0"].pid, signal.SIGKILL)
    pod = await ended_pod(cluster)
    assert pod.exit_code == 137
    await until(lambda: not is_running(pid), "the program's end")


RUN = """
    import asyncio, json, pathlib, sys
    from rollout_cli.local.cluster import LocalCluster
    from rollout_cli.local.job_file import JobFile
    async def main():
        directory = pathlib.Path(sys.argv[1])
        cluster = LocalCluster(JobFile(directory), directory)
        await cluster.create_pod(json.loads(sys.argv[2]))
        await asyncio.sleep(600)
    asyncio.run(main())
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["SIGKILL", "SIGTERM"])
async def test_pods_end_with_the_run_however_it_ends(cluster, job_file, tmp_path, number):
    run = subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, "-c", textwrap.dedent(RUN), str(tmp_path), json.dumps(manifest(STUBBORN))]
    )
    try:
        pids = await printed(cluster, 4)
        assert all(map(is_running, pids))
        run.send_signal(number)
        await until(lambda: not any(map(is_running, pids)), "the end of every descendant")
    finally:
        run.kill()
        run.wait()


async def test_a_pod_that_is_there_is_not_started_twice(cluster):
    sleeper = "import time; time.sleep(600)"
    assert await cluster.create_pod(manifest(sleeper)) is Creation.CREATED
    first = await only_pod(cluster)
    assert await cluster.create_pod(manifest(sleeper)) is Creation.OURS
    assert await cluster.create_pod(manifest(sleeper, owner="job-2")) is Creation.FOREIGN
    assert (await only_pod(cluster)).uid == first.uid
    await cluster.delete_pod(ref(first), grace_s=0)
    assert await cluster.create_pod(manifest(sleeper, owner="job-2")) is Creation.FOREIGN_ENDING


async def test_a_successor_of_the_same_name_is_not_hit(cluster):
    await cluster.create_pod(manifest("import time; time.sleep(600)"))
    pod = await only_pod(cluster)
    stale = PodRef(pod.namespace, pod.name, "another")
    assert not await cluster.delete_pod(stale)
    assert not await cluster.annotate_pod(stale, {"x": "y"})
    assert (await only_pod(cluster)).alive


async def test_annotations_are_kept(cluster):
    await cluster.create_pod(manifest("import time; time.sleep(600)"))
    assert await cluster.annotate_pod(ref(await only_pod(cluster)), {"rolloutjob.dev/counted": "failure:1"})
    assert (await only_pod(cluster)).annotations == {"rolloutjob.dev/counted": "failure:1"}


async def test_variables_come_from_values_secrets_and_fields(cluster, monkeypatch):
    env = [
        {"name": "PLAIN", "value": "1"},
        {
            "name": "SECRET",
            "valueFrom": {"secretKeyRef": {"name": REDIS_SECRET.name, "key": REDIS_SECRET.key}},
        },
        {"name": "NOT_THERE", "valueFrom": {"secretKeyRef": {"name": "x", "key": "y", "optional": True}}},
        {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
    ]
    program = """
        import os
        print([os.environ.get(k) for k in ("PLAIN", "SECRET", "NOT_THERE", "POD")])
    """
    await cluster.create_pod(manifest(program, env=env))
    pod = await ended_pod(cluster)
    assert await cluster.read_log(ref(pod)) == "['1', 'hush', None, 'a-w-0-0']\n"
    assert "hush" not in repr(cluster)


@pytest.mark.parametrize(
    ("change", "reason", "words"),
    [
        pytest.param(
            {"env": [{"name": "P", "valueFrom": {"secretKeyRef": {"name": "no", "key": "k"}}}]},
            Reason.SECRET_MISSING,
            "variable P: there is no key 'k' in Secret 'no'",
            id="no such Secret",
        ),
        pytest.param(
            {"env": [{"name": "P", "valueFrom": {"configMapKeyRef": {"name": "no", "key": "k"}}}]},
            Reason.CREATE_FAILED,
            "configMapKeyRef",
            id="a ConfigMap",
        ),
        pytest.param({"envFrom": [{}]}, Reason.CREATE_FAILED, "envFrom", id="envFrom"),
        pytest.param({"command": []}, Reason.CREATE_FAILED, "no command", id="an image only"),
        pytest.param(
            {"env": [{"name": "P", "valueFrom": {"fieldRef": {"fieldPath": "spec.what"}}}]},
            Reason.CREATE_FAILED,
            "spec.what",
            id="an unknown field",
        ),
    ],
)
async def test_what_cannot_be_started_here_is_refused_by_name(cluster, change, reason, words):
    document = manifest("pass")
    document["spec"]["containers"][0].update(change)
    with pytest.raises(PodRefused, match=words) as caught:
        await cluster.create_pod(document)
    assert caught.value.reason is reason
    assert await cluster.list_pods(KEY, job_uid="job-1") == []


async def test_logs_are_read_from_their_end_and_stay(cluster):
    await cluster.create_pod(manifest("[print('line', i) for i in range(1000)]"))
    pod = await ended_pod(cluster)
    await cluster.delete_pod(ref(pod))
    assert await cluster.read_log(ref(pod), tail_bytes=20) == "line 998\nline 999\n"
    assert await cluster.read_log(PodRef("default", "never", "x")) == ""


async def test_the_status_is_written_for_the_job_that_was_read_only(cluster, job_file):
    read = await cluster.get_job(KEY)
    version = read["metadata"]["resourceVersion"]
    await cluster.write_status(KEY, {"state": "Running"}, job_uid="job-1", resource_version=version)
    assert (await cluster.get_job(KEY))["status"] == {"state": "Running"}
    with pytest.raises(StaleJob):
        await cluster.write_status(KEY, {}, job_uid="job-1", resource_version=version)
    with pytest.raises(StaleJob):
        await cluster.write_status(KEY, {}, job_uid="job-0", resource_version="")
    assert await cluster.get_job(JobKey("default", "b")) is None
    assert await cluster.list_jobs() == [KEY]


async def test_pods_of_a_deleted_job_are_ended(cluster, job_file):
    heard = []
    watching = asyncio.create_task(cluster.watch(heard.append))
    await cluster.create_pod(manifest("import time; time.sleep(600)"))
    await until(lambda: heard)
    await cluster.delete_job(KEY, job_uid="job-1")
    await cluster.delete_job(KEY, job_uid="job-1")

    async def is_gone():
        return not await cluster.list_pods(KEY, job_uid="job-1")

    await until(is_gone, "the pods' disappearance")
    assert await cluster.get_job(KEY) is None
    assert await cluster.list_jobs() == []
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)


async def test_nothing_of_a_closed_cluster_is_left(job_file, tmp_path):
    before = len(os.listdir("/proc/self/fd"))
    async with LocalCluster(job_file, tmp_path) as cluster:
        for index in range(3):
            await cluster.create_pod(manifest("import time; time.sleep(600)", name=f"a-w-{index}-0"))
        with pytest.raises(TypeError):
            await cluster.create_pod(manifest("", name="a-w-9-0") | {"spec": None})
    await until(lambda: len(os.listdir("/proc/self/fd")) <= before + 1, "closed descriptors")
    assert sorted(path.name for path in (tmp_path / "logs").iterdir()) == [f"a-w-{i}-0.log" for i in range(3)]
    assert not any((tmp_path / "pods").glob("*"))
