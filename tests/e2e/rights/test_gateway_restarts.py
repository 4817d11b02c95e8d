"""The gateway behind its Service while its pods are replaced and killed, as a client in the cluster sees it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from installed import POD_SECURITY, SECURITY, Commands, image, until
from small_jobs import job

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240), pytest.mark.xdist_group("platform")]

CLIENT = '''
import json, os, sys, threading, time, urllib.request

BASE, TOKEN = sys.argv[1], os.environ["TOKEN"]
HEADERS = {"Authorization": f"Bearer {TOKEN}"}
seen = {"answers": 0, "failures": [], "uploads": 0, "streams": 0, "events": 0}


def call(path, **more):
    request = urllib.request.Request(BASE + path, headers={**HEADERS, **more.pop("headers", {})}, **more)
    return urllib.request.urlopen(request, timeout=20)


def until_end(step):
    while not os.path.exists("/tmp/end"):
        try:
            step()
        except (OSError, ValueError) as error:
            seen["failures"].append(f"{step.__name__}: {type(error).__name__}: {error}")
            print(seen["failures"][-1], flush=True)


def ask():
    with call("/status") as answer:
        json.load(answer)
    seen["answers"] += 1
    time.sleep(0.02)


def slowly():
    """An upload that is under way for a second, over connections that any moment may end."""
    header = b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'.ljust(2000)
    body = len(header).to_bytes(8, "little") + header + bytes(4)

    def parts():
        for start in range(0, len(body), 250):
            yield body[start : start + 250]
            time.sleep(0.1)

    length = {"Content-Length": str(len(body)), "Content-Type": "application/octet-stream"}
    with call("/weights", data=parts(), method="PUT", headers=length) as answer:
        json.load(answer)
    seen["uploads"] += 1


def follow():
    """As a browser does: from the last event on, again and again."""
    last = ""
    while not os.path.exists("/tmp/end"):
        try:
            with call("/events", headers={"Last-Event-ID": last} if last else {}) as answer:
                seen["streams"] += 1
                for line in answer:
                    if line.startswith(b"id: "):
                        last = line[4:].decode().strip()
                    seen["events"] += line.startswith(b"event: ")
                    if os.path.exists("/tmp/end"):
                        return
        except OSError:
            time.sleep(0.2)  # cut off, which is what it is for


threads = [threading.Thread(target=until_end, args=(step,)) for step in (ask, ask, slowly)]
threads.append(threading.Thread(target=follow, daemon=True))
for thread in threads:
    thread.start()
while not os.path.exists("/tmp/end"):
    time.sleep(0.1)
    with open("/tmp/next", "w") as file:
        json.dump(seen, file)
    os.replace("/tmp/next", "/tmp/seen")
for thread in threads[:3]:
    thread.join(30)
print(json.dumps(seen), flush=True)
'''


@contextmanager
def client(platform: Any, token: str, name: str) -> Iterator[Any]:
    """Counts of a client in a pod of the watched namespace, by a function; ended, by another call of it with True."""
    a: Commands = platform.a
    url = f"http://{platform.release.full}-gateway.{platform.home.namespace}.svc"
    a("create", "configmap", f"{name}-client", f"--from-literal=client.py={CLIENT}")
    a("create", "secret", "generic", f"{name}-client", f"--from-literal=token={token}")
    container = {
        "name": "client",
        "image": image("rollout-api"),
        "imagePullPolicy": "IfNotPresent",
        "command": ["python", "/client/client.py", f"{url}/v1/namespaces/{a.namespace}/rolloutjobs/{name}"],
        "env": [{"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": f"{name}-client", "key": "token"}}}],
        "securityContext": SECURITY,
        "volumeMounts": [{"name": "client", "mountPath": "/client"}],
    }
    spec = {
        "restartPolicy": "Never",
        "securityContext": POD_SECURITY,
        "automountServiceAccountToken": False,
        "containers": [container],
        "volumes": [{"name": "client", "configMap": {"name": f"{name}-client"}}],
    }
    pod = f"{name}-client"
    a.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": pod}, "spec": spec})
    a("wait", f"pod/{pod}", "--for=condition=Ready", "--timeout=60s")

    def seen(end: bool = False) -> dict[str, Any]:
        if end:
            a("exec", pod, "--", "touch", "/tmp/end")
            a("wait", f"pod/{pod}", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=60s")
            return dict(json.loads(a("logs", pod).splitlines()[-1]))
        text = a("exec", pod, "--", "sh", "-c", "cat /tmp/seen 2>/dev/null || echo '{}'")
        return dict(json.loads(text))

    try:
        until(lambda: seen().get("uploads") and seen()["events"], "the client's first answers", within_s=120)
        yield seen
    finally:
        print(a("logs", pod))
        a("delete", "pod", pod, "--grace-period=0", "--force")
        a("delete", "secret", pod)


@pytest.fixture
def served(platform: Any) -> Iterator[str]:
    """A job with a stream, whose status is asked for."""
    platform.a.apply(job("served"))
    platform.a.ready("served", 1)
    yield "served"
    platform.a("delete", "rolloutjob", "served", "--wait=false")


def test_pods_are_replaced_and_killed(platform: Any, token_of: Any, served: str) -> None:
    """A rolling update drops no request, not even a slow upload; a kill cuts off what that pod was answering alone."""
    home, name = platform.home, f"deployment/{platform.release.full}-gateway"
    with client(platform, token_of(platform.editor), served) as seen:
        before = seen()
        home("rollout", "restart", name)
        home("rollout", "status", name, "--timeout=120s", within_s=130)
        until(lambda: seen()["answers"] > before["answers"] + 20, "answers after the update")
        updated = seen()
        assert updated["failures"] == []
        assert updated["uploads"] > before["uploads"]
        # Whoever follows events was sent on by each pod that went, and went on.
        until(lambda: seen()["streams"] > before["streams"], "a new stream of events")

        label = f"app.kubernetes.io/instance={platform.release.name},app.kubernetes.io/component=gateway"
        victim = sorted(home.pods(label))[0]
        home("delete", "pod", victim, "--grace-period=0", "--force")
        until(lambda: seen()["answers"] > updated["answers"] + 50, "answers after the kill")
        home("rollout", "status", name, "--timeout=120s", within_s=130)
        after = seen(True)
        # Two askers, one upload, and what is sent to the dead pod until the Service has forgotten it.
        assert len(after["failures"]) <= 12, after["failures"]
        assert after["uploads"] > updated["uploads"]
