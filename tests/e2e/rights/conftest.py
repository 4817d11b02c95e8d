"""One installation of the chart for all tests of this folder: three namespaces that let nothing but restricted pods in.

The release is in the first one and looks after jobs in the two others. Its server has a password that no test prints, in
Secrets that were made by hand; operator and gateway log all they can.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest

SUPPORT = str(Path(__file__).parents[2] / "chart" / "support")
if SUPPORT not in sys.path:
    sys.path.insert(0, SUPPORT)

import audit_log  # noqa: E402 - the path is set above
import installed  # noqa: E402
import small_jobs  # noqa: E402
from installed import Commands, Release  # noqa: E402

PASSWORD = "s3cr3t-probe-42"
WRONG_PASSWORD = "wr0ng p@ss/w:rd%42"
GATEWAY_PORT = 80


@dataclass(frozen=True)
class Platform:
    """The installation, and who may do what in it: `editor` and `viewer` have a role in namespace `a` alone."""

    release: Release
    a: Commands
    b: Commands
    editor: Commands
    viewer: Commands
    audit: audit_log.Audit | None
    password: str = PASSWORD
    wrong_password: str = WRONG_PASSWORD

    @property
    def home(self) -> Commands:
        """The release's namespace, for its administrator."""
        return self.release.home

    @property
    def redis_host(self) -> str:
        """The server, as everybody in the cluster reaches it."""
        return f"{self.release.full}-redis.{self.home.namespace}.svc"

    def account(self, component: str) -> str:
        """The user name of one of the platform's own accounts."""
        return f"system:serviceaccount:{self.home.namespace}:{self.release.full}-{component}"

    @contextmanager
    def gateway(self, token: str | None) -> Iterator[httpx2.Client]:
        """A client of the gateway, with this token."""
        headers = {"authorization": f"Bearer {token}"} if token else {}
        with (
            self.home.forwarded(f"service/{self.release.full}-gateway", GATEWAY_PORT) as address,
            httpx2.Client(base_url=f"http://{address}", headers=headers, timeout=30) as client,
        ):
            yield client


@pytest.fixture(scope="session")
def audit() -> audit_log.Audit | None:
    """The cluster's audit log, where it can be read."""
    try:
        return audit_log.audit()
    except pytest.skip.Exception:
        return None


@pytest.fixture(scope="session")
def platform(audit: audit_log.Audit | None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    """The installation, ready."""
    values = installed.image_values()
    with ExitStack() as stack:
        home, a, b = stack.enter_context(installed.namespaces("rl", "team-a", "team-b"))
        _write_secrets(home, a, b)
        given = [
            {"namespace": a.namespace, "name": name, "keys": ["password"]} for name in ("wrong", "stale")
        ]
        values |= {"watch": {"namespaces": [a.namespace, b.namespace]}}
        values = installed.merged(
            values,
            {
                "operator": {"logLevel": "DEBUG", "observeSeconds": 1, "progressSeconds": 1},
                "gateway": {"logLevel": "DEBUG", "auth": "TokenReview", "allowedHosts": []},
                "redis": {"auth": {"existingSecret": "probe"}, "jobSecrets": given},
            },
        )
        found = stack.enter_context(installed.release(home, values))
        folder = tmp_path_factory.mktemp("accounts")
        people = [_person(a, name, folder) for name in ("editor", "viewer")]
        for space in (a, b):
            space.apply(small_jobs.code(crash="import os\n\ndef make_policy(*_):\n    os._exit(3)\n"))
        yield Platform(found, a, b, *people, audit)
        for space in (a, b):  # while there is somebody who takes finalizers off
            space("delete", "rolloutjobs", "--all", "--timeout=80s")


def _write_secrets(home: Commands, a: Commands, b: Commands) -> None:
    """The server's, everywhere; one that is wrong; and one of which the workers' copy is wrong."""

    def write(space: Commands, name: str, password: str) -> None:
        space("create", "secret", "generic", name, f"--from-literal=password={password}")

    for space in (home, a, b):
        write(space, "probe", PASSWORD)
    write(home, "wrong", WRONG_PASSWORD)
    write(a, "wrong", WRONG_PASSWORD)
    write(home, "stale", PASSWORD)
    write(a, "stale", WRONG_PASSWORD)


def _person(space: Commands, level: str, folder: Path) -> Commands:
    """An account with one of the chart's roles in one namespace."""
    role = {"editor": "edit", "viewer": "view"}[level]
    space("create", "serviceaccount", level)
    account = f"{space.namespace}:{level}"
    space("create", "rolebinding", level, f"--clusterrole=rolloutjob-{role}", f"--serviceaccount={account}")
    return installed.account_kubeconfig(space, level, folder)


@pytest.fixture(scope="session")
def token_of() -> Callable[[Commands], str]:
    """The token in an account's kubeconfig."""
    import json

    def read(commands: Commands) -> str:
        document: dict[str, Any] = json.loads(commands.kubeconfig.read_text(encoding="utf-8"))
        return str(document["users"][0]["user"]["token"])

    return read
