"""The gateway as a process beside a real API server: the one that KUBECONFIG names. Without it these tests are skipped.

The process has an account with exactly the rights that `docs/gateway.md` names, and a Redis of its own. Callers are
service accounts with roles in one of two namespaces, which are deleted at the end.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml
from data_servers import DataServer
from kubernetes import client, config
from process_ends import end

ROOT = Path(__file__).parents[3]
GROUP = "rolloutjob.dev"
REDIS_PASSWORD = "s3cr3t-probe-42"
SESSION_KEY = "0123456789abcdef0123456789abcdef"
VIEW = [
    {"apiGroups": [GROUP], "resources": ["rolloutjobs"], "verbs": ["get", "list", "watch"]},
    {"apiGroups": [GROUP], "resources": ["rolloutjobs/weights", "rolloutjobs/seed"], "verbs": ["get"]},
]
EDIT = [
    *VIEW,
    {"apiGroups": [GROUP], "resources": ["rolloutjobs"], "verbs": ["create", "patch", "update", "delete"]},
    {"apiGroups": [GROUP], "resources": ["rolloutjobs/weights", "rolloutjobs/seed"], "verbs": ["update"]},
]
REVIEWS = [
    {"apiGroups": ["authentication.k8s.io"], "resources": ["tokenreviews"], "verbs": ["create"]},
    {"apiGroups": ["authorization.k8s.io"], "resources": ["subjectaccessreviews"], "verbs": ["create"]},
]


def until(is_so: Callable[[], Any], *, deadline_s: float = 20.0) -> Any:
    """What a condition gives, once it gives something; with a deadline."""
    deadline = time.monotonic() + deadline_s
    while not (found := is_so()):
        assert time.monotonic() < deadline, "it did not become so in time"
        time.sleep(0.02)
    return found


@pytest.fixture(name="until", scope="session")
def until_fixture() -> Callable[..., Any]:
    return until


@dataclass(frozen=True, slots=True)
class Cluster:
    """Accounts, roles and tokens, as an administrator makes them."""

    api: client.ApiClient

    def account(self, namespace: str, name: str) -> str:
        """A service account; its name as a user."""
        client.CoreV1Api(self.api).create_namespaced_service_account(namespace, {"metadata": {"name": name}})
        return f"system:serviceaccount:{namespace}:{name}"

    def token(self, namespace: str, name: str, *, seconds: int = 3600) -> str:
        """A token of a service account."""
        request = {"spec": {"expirationSeconds": seconds}}
        answer = client.CoreV1Api(self.api).create_namespaced_service_account_token(name, namespace, request)
        return str(answer.status.token)

    def allow(self, namespace: str, account: str, rules: list[dict[str, Any]]) -> str:
        """A role in a namespace, bound to an account of it; the name of both."""
        rbac = client.RbacAuthorizationV1Api(self.api)
        name = f"{account}-{uuid.uuid4().hex[:6]}"
        rbac.create_namespaced_role(namespace, {"metadata": {"name": name}, "rules": rules})
        rbac.create_namespaced_role_binding(
            namespace, {"metadata": {"name": name}, **_binding("Role", name, namespace, account)}
        )
        return name

    def forbid(self, namespace: str, name: str) -> None:
        """Take back what `allow` gave."""
        client.RbacAuthorizationV1Api(self.api).delete_namespaced_role_binding(name, namespace)

    def wait_for_rights(self, user: str, namespace: str, verb: str = "list") -> None:
        """Roles take a moment to reach the server's authorizer."""

        def is_known() -> bool:
            attributes = {"group": GROUP, "resource": "rolloutjobs", "verb": verb, "namespace": namespace}
            review = {"spec": {"user": user, "resourceAttributes": attributes}}
            answer = client.AuthorizationV1Api(self.api).create_subject_access_review(review)
            return bool(answer.status.allowed)

        until(is_known)

    def jobs(self) -> client.CustomObjectsApi:
        """RolloutJobs, with the administrator's rights."""
        return client.CustomObjectsApi(self.api)


def _binding(kind: str, role: str, namespace: str, account: str) -> dict[str, Any]:
    return {
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": namespace}],
    }


@pytest.fixture(scope="session")
def cluster() -> Cluster:
    if not os.environ.get("KUBECONFIG"):
        pytest.skip("needs a cluster: set KUBECONFIG")
    found = Cluster(config.new_client_from_config())
    document = yaml.safe_load((ROOT / "charts" / "rollout-crd.yaml").read_text(encoding="utf-8"))
    definitions = client.ApiextensionsV1Api(found.api)
    definitions.patch_custom_resource_definition(
        document["metadata"]["name"],
        document,
        field_manager="rollout-e2e",
        force=True,
        _content_type="application/apply-patch+yaml",
    )

    def is_established() -> bool:
        status = definitions.read_custom_resource_definition(document["metadata"]["name"]).status
        return any(c.type == "Established" and c.status == "True" for c in status.conditions or ())

    until(is_established)
    return found


@pytest.fixture(scope="session")
def namespaces(cluster: Cluster) -> Iterator[tuple[str, str]]:
    """Two of our own: callers have rights in the first one."""
    core = client.CoreV1Api(cluster.api)
    names = (f"gw-{uuid.uuid4().hex[:8]}-a", f"gw-{uuid.uuid4().hex[:8]}-b")
    for name in names:
        core.create_namespace({"metadata": {"name": name}})
    yield names
    for name in names:
        core.delete_namespace(name)


@pytest.fixture(scope="session")
def redis_port() -> Iterator[int]:
    """A server with a password."""
    with DataServer(password=REDIS_PASSWORD) as server:
        yield server.port


@dataclass
class GatewayProcess:
    """`python -m rollout_api`, and how to call it."""

    environ: dict[str, str]
    log_path: Path
    process: subprocess.Popen[bytes] | None = None
    url: str = ""
    clients: list[httpx2.Client] = field(default_factory=list)

    def start(self) -> None:
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "rollout_api"], env=self.environ, stdout=log, stderr=log
            )
        self.url = until(self._address)

    def _address(self) -> str:
        assert self.process is not None
        assert self.process.poll() is None, self.log()
        found = re.search(r"answers at (http://[^\s\"]+)", self.log())
        return found[1].replace("0.0.0.0", "127.0.0.1") if found else ""

    def log(self) -> str:
        return self.log_path.read_text()

    def stop(self) -> int:
        assert self.process is not None
        return end(self.process, within_s=30, said=self.log)

    def caller(self, token: str | None) -> httpx2.Client:
        """A client with this token."""
        headers = {"authorization": f"Bearer {token}"} if token else {}
        found = httpx2.Client(base_url=self.url, headers=headers, timeout=20)
        self.clients.append(found)
        return found


@pytest.fixture(scope="session")
def gateway_account(cluster: Cluster, namespaces: tuple[str, str]) -> Iterator[str]:
    """The gateway's own account, with the rights for `TokenReview` and none else; gives its token."""
    name = f"gateway-{uuid.uuid4().hex[:8]}"
    cluster.account(namespaces[0], name)
    rbac = client.RbacAuthorizationV1Api(cluster.api)
    rbac.create_cluster_role({"metadata": {"name": name}, "rules": REVIEWS})
    rbac.create_cluster_role_binding(
        {"metadata": {"name": name}, **_binding("ClusterRole", name, namespaces[0], name)}
    )
    yield cluster.token(namespaces[0], name)
    rbac.delete_cluster_role_binding(name)
    rbac.delete_cluster_role(name)


@pytest.fixture(scope="session")
def powerless_account(cluster: Cluster, namespaces: tuple[str, str]) -> str:
    """An account without any role; gives its token."""
    cluster.account(namespaces[0], "powerless")
    return cluster.token(namespaces[0], "powerless")


def write_kubeconfig(path: Path, cluster: Cluster, token: str) -> None:
    """A kubeconfig with a token for the server of the administrator's."""
    settings = cluster.api.configuration
    authority = Path(settings.ssl_ca_cert).read_text()
    (path.parent / "ca.crt").write_text(authority)
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "gateway",
        "clusters": [
            {
                "name": "it",
                "cluster": {"server": settings.host, "certificate-authority": str(path.parent / "ca.crt")},
            }
        ],
        "users": [{"name": "gateway", "user": {"token": token}}],
        "contexts": [{"name": "gateway", "context": {"cluster": "it", "user": "gateway"}}],
    }
    path.write_text(json.dumps(document))


@pytest.fixture(scope="session", params=["TokenReview", "SelfReview"])
def gateway(
    request: pytest.FixtureRequest,
    cluster: Cluster,
    namespaces: tuple[str, str],
    redis_port: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[GatewayProcess]:
    """A gateway, with each way to ask for rights."""
    kind = request.param
    token = request.getfixturevalue("gateway_account" if kind == "TokenReview" else "powerless_account")
    directory = tmp_path_factory.mktemp("gateway")
    write_kubeconfig(directory / "kubeconfig", cluster, token)
    environ = {
        "PATH": os.environ["PATH"],
        "KUBECONFIG": str(directory / "kubeconfig"),
        "ROLLOUT_AUTH": kind,
        "ROLLOUT_REDIS_URL": f"redis://127.0.0.1:{redis_port}",
        "ROLLOUT_REDIS_PASSWORD": REDIS_PASSWORD,
        "ROLLOUT_NAMESPACES": ",".join(namespaces),
        "ROLLOUT_HTTP_PORT": "0",
        "ROLLOUT_PLAIN_HTTP": "true",
        "ROLLOUT_SESSION_KEY": SESSION_KEY,
        "ROLLOUT_DRAIN_SECONDS": "0",
        "ROLLOUT_LOG_LEVEL": "DEBUG",
    }
    found = GatewayProcess(environ, directory / "log")
    found.start()
    yield found
    for each in found.clients:
        each.close()
    assert found.stop() == 0, found.log()


@dataclass(frozen=True, slots=True)
class Caller:
    """An account of the first namespace, and its token."""

    name: str
    user: str
    token: str


@pytest.fixture(scope="session")
def make_caller(cluster: Cluster, namespaces: tuple[str, str]) -> Callable[..., Caller]:
    def make(rules: list[dict[str, Any]], *, seconds: int = 3600) -> Caller:
        name = f"caller-{uuid.uuid4().hex[:8]}"
        user = cluster.account(namespaces[0], name)
        if rules:
            cluster.allow(namespaces[0], name, rules)
            cluster.wait_for_rights(user, namespaces[0])
        return Caller(name, user, cluster.token(namespaces[0], name, seconds=seconds))

    return make


@pytest.fixture(scope="session")
def editor(make_caller: Callable[..., Caller]) -> Caller:
    return make_caller(EDIT)


@pytest.fixture(scope="session")
def viewer(make_caller: Callable[..., Caller]) -> Caller:
    return make_caller(VIEW)


@pytest.fixture(scope="session")
def rules() -> dict[str, list[dict[str, Any]]]:
    return {"view": VIEW, "edit": EDIT}


@pytest.fixture
def manifest() -> dict[str, Any]:
    """A job that no operator touches."""
    return {
        "apiVersion": f"{GROUP}/v1alpha1",
        "kind": "RolloutJob",
        "metadata": {"name": f"job-{uuid.uuid4().hex[:8]}", "labels": {"team": "rl"}},
        "spec": {
            "managedBy": "example.com/nobody",
            "env": {"entrypoint": "rollout_worker.envs:GymEnv", "kwargs": {"env_name": "CartPole-v1"}},
            "policy": {"entrypoint": "policy:make_policy"},
            "collector": {"framesPerBatch": 64, "totalFrames": 100000},
        },
    }
