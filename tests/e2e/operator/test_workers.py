"""Real workers on a real node: code and arguments from ConfigMaps, exact counts while scaled, no secret anywhere."""

from __future__ import annotations

import cluster_tools as tools
import pytest
from cluster_tools import until
from data_servers import DataServer

from rollout_stream import RolloutStream

pytestmark = [pytest.mark.usefixtures("operator"), pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module", autouse=True)
def image(kube):
    """The worker image, on the node."""
    tools.needs_worker_image(kube)
    put_code(kube)


def put_code(kube):
    """The toys, where jobs of the namespace find them."""
    kube.run("create", "configmap", "code", f"--from-file={tools.COUNTING}")


def job(name, **spec):
    """A job of the toys."""
    template = {
        "spec": {
            "containers": [
                {
                    "name": "worker",
                    "image": tools.WORKER_IMAGE,
                    "imagePullPolicy": "IfNotPresent",
                    "resources": {"requests": {"cpu": "50m", "memory": "200Mi"}, "limits": {"memory": "1Gi"}},
                }
            ]
        }
    }
    return {
        "apiVersion": "rolloutjob.dev/v1alpha1",
        "kind": "RolloutJob",
        "metadata": {"name": name},
        "spec": {
            "env": {
                "entrypoint": "counting:make_started",
                "envsPerWorker": 2,
                "backend": "Serial",
                "kwargs": {},
            },
            "policy": {"entrypoint": "counting:make_policy"},
            "code": {"configMapRef": {"name": "code"}},
            "collector": {"framesPerBatch": 20, "totalFrames": 4000},
            "stream": {"groups": ["learner"], "maxUnackedFrames": 400},
            "workerGroups": [{"name": "w", "elastic": True, "template": template}],
            **spec,
        },
    }


def read(url, kube, name, *, steer=lambda frames: None):
    """Read a job to its end; what every batch says of itself, and the frames."""
    seen, frames = [], 0
    with RolloutStream.connect(url, job=f"{kube.namespace}/{name}") as stream:
        for batch in stream.batches("learner"):
            frames += int(batch.data.numel())
            seen.append((str(batch.header.worker), batch.header.sequence))
            batch.ack()
            steer(frames)
    return seen, frames


def test_counts_are_exact_while_the_job_is_scaled(kube, redis_url):
    kube.apply(job("counted", replicas=1))
    steps = {400: "3", 2000: "1"}

    def steer(frames):
        for at in [at for at in steps if frames >= at]:
            kube.run("scale", "roj", "counted", f"--replicas={steps.pop(at)}")

    seen, frames = read(redis_url, kube, "counted", steer=steer)

    assert frames == 4000
    assert len(seen) == len(set(seen)) == 200
    kube.wait_condition("counted", "Complete", "True", "TotalFramesReached", within=60)
    status = kube.status("counted")
    assert status["progress"]["frames"] == 4000
    assert status["workerGroups"][0]["failures"] == 0
    until(lambda: not kube.pods("counted"), within=90, what="no pod")
    assert "lastFailure" not in status


def test_arguments_from_a_config_map(kube, redis_url):
    data = {"env.yaml": "start: 3.0\nlimit: 7\n"}
    kube.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "args"}, "data": data})
    source = {"configMapKeyRef": {"name": "args", "key": "env.yaml"}}
    env = {
        "entrypoint": "counting:make_started",
        "envsPerWorker": 2,
        "backend": "Serial",
        "kwargsFrom": source,
    }
    kube.apply(job("argued", env=env, collector={"framesPerBatch": 20, "totalFrames": 40}))

    with RolloutStream.connect(redis_url, job=f"{kube.namespace}/argued") as stream:
        batch = next(iter(stream.batches("learner")))
        assert batch.data["observation"][..., 0].unique().tolist() == [3.0]
        batch.ack()
    kube.wait_condition("argued", "Complete", "True", within=60)


def test_code_that_does_not_fit_fails_the_job_with_its_own_words(kube):
    kube.apply(job("broken", env={"entrypoint": "counting:no_such", "envsPerWorker": 2, "backend": "Serial"}))

    message = kube.wait_condition("broken", "Failed", "True", "ConfigurationError", within=90)
    assert "no_such" in message
    assert kube.status("broken")["lastFailure"]["exitCode"] == 64


@pytest.mark.probe("P-54")
def test_a_password_stays_where_it_is(namespaces, operators):
    secret, kube = "s3cr3t-probe-42", namespaces()
    with DataServer(password=secret, bind="*") as server:
        kube.run("create", "secret", "generic", "auth", f"--from-literal=password={secret}")
        put_code(kube)
        settings = {
            "ROLLOUT_REDIS_URL": server.url,
            "ROLLOUT_REDIS_PASSWORD": secret,
            "ROLLOUT_WORKER_REDIS_SECRET": "auth",
            "ROLLOUT_LOG_LEVEL": "DEBUG",
        }
        operator = operators(kube, **settings).start().wait_ready()
        kube.apply(job("quiet", collector={"framesPerBatch": 20, "totalFrames": 40}))
        kube.wait_condition("quiet", "Complete", "True", within=90)
        operator.stop()
        wrong = operators(kube, **{**settings, "ROLLOUT_REDIS_PASSWORD": f"{secret}-x"}).start().wait_ready()
        kube.apply(job("wrong"))
        message = kube.wait_condition("wrong", "RedisReady", "False", "AuthenticationFailed")
        assert f"127.0.0.1:{server.port}" in message

        everything = [
            kube.run("get", "roj,pods,events,configmaps,leases", "-o", "yaml"),
            operator.log(),
            wrong.log(),
            wrong.probe("metrics")[1],
            wrong.probe("readyz")[1],
        ]
        assert not [text for text in everything if secret in text]
        wrong.stop()
