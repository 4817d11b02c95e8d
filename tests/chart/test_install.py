"""The life of an installation on a real cluster, in both Helms: the version before, upgrade, rollback, uninstall, again.

One release in a namespace that enforces the restricted level, with the chart's defaults. The tests go through its life in
order, so they are one test. Nothing of it may touch a worker that runs.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import audit_log
import installed
import previous
import pytest
from installed import Commands, Refused, Release, until
from previous import Previous
from small_jobs import code, job

pytestmark = [pytest.mark.slow, pytest.mark.timeout(500), pytest.mark.alone]

CRD = "rolloutjobs.rolloutjob.dev"
QUICK = {"operator": {"observeSeconds": 1, "progressSeconds": 1}}


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Previous:
    """The version before."""
    return previous.make(tmp_path_factory.mktemp("previous"))


@pytest.fixture
def home() -> Iterator[Commands]:
    """A namespace, and at the end the definition of this checkout again."""
    installed.image_values()
    with installed.namespaces("life") as (found,):
        try:
            yield found
        finally:
            plain = str(installed.PLAIN_CRD)
            found("apply", "--server-side", "--force-conflicts", "-f", plain)


@pytest.mark.probe("P-49")
@pytest.mark.probe("P-55")
@pytest.mark.parametrize("helm_name", ["helm", "helm3"])
def test_life_of_an_installation(home: Commands, older: Previous, helm_name: str) -> None:
    """All of it in the newer Helm; in the older one the commands that it does in its own way."""
    installed.program(helm_name)
    record = _audit()
    life = _Life(home, older, helm_name)
    is_newer = helm_name == "helm"
    life.install_previous()
    if is_newer:
        life.upgrade_the_operator_alone()
    life.upgrade()
    life.roll_back()
    _nothing_was_forbidden(life.release, record)
    life.uninstall()  # the roles go first, so that an operator that gives its Lease back may no longer
    if is_newer:
        record = _audit()
        life.install_again()
        _follow_the_notes(life.release)
        _nothing_was_forbidden(life.release, record)
        home("delete", "rolloutjobs", "--all", "--timeout=90s", within_s=100)
        until(lambda: not life.workers(), "end of the workers")


class _Life:
    """The steps, each from where the one before ended. `long` is a job that runs through all of them."""

    def __init__(self, home: Commands, older: Previous, helm_name: str) -> None:
        self.older = older
        values = installed.merged(installed.image_values(), QUICK)
        self.release = Release(Commands(home.namespace, helm_name=helm_name), values)
        self.home = self.release.home
        self.kept: dict[str, Any] = {}

    def workers(self) -> dict[str, str]:
        """Pods of the job that runs."""
        return self.home.workers("long")

    def drawn(self) -> dict[str, str]:
        """What the chart drew at the first installation."""
        full = self.release.full
        names = {f"{full}-redis": "password", f"{full}-gateway": "session-key"}
        return {name: self.home.get("secret", name)["data"][key] for name, key in names.items()}

    def untouched(self) -> None:
        """Neither workers nor secrets have changed since the first installation."""
        assert self.workers() == self.kept["workers"]
        assert self.drawn() == self.kept["drawn"]
        assert self.home.status("long")["workerGroups"][0].get("failures", 0) == 0

    def install_previous(self) -> None:
        """With the older definition, as Helm would have put it there."""
        previous.put_definition(self.home, self.release.name, self.older.definition)
        self.home("create", "-f", "-", text=json.dumps(self.older.contract))
        new, self.release.values = self.release.values, self.older.values(self.release.values)
        self.release.chart = self.older.chart
        assert self.release.install() < 60 + 60  # seconds; the machine does other things too
        self.release.values, self.release.chart = new, installed.CHART
        self.home.apply(code(), job("long"))
        self.home.ready("long", 1)
        self.kept = {"workers": self.workers(), "drawn": self.drawn()}
        with pytest.raises(Refused, match=f"unknown field.*{previous.FIELD}"):
            self.home.apply(_with_new_field())

    def upgrade_the_operator_alone(self) -> None:
        """Somebody leaves the definition to others, who are late: nothing is written, and it is said what is missing."""
        self.home.helm(
            "upgrade", self.release.name, str(installed.CHART),
            values=installed.merged(self.release.values, {"crds": {"install": False}}),
        )  # fmt: skip
        operator = f"deployment/{self.release.full}-operator"

        def said() -> str:
            try:
                return self.home("logs", operator)
            except Refused:  # the old pod has gone, the new one is not there yet
                return ""

        until(lambda: previous.FIELD in said(), "word of the missing field", within_s=90)
        assert self.home.get("customresourcedefinition", CRD), "what Helm no longer has in the release stays"
        assert not self.home.get("deployment", f"{self.release.full}-operator")["status"].get("readyReplicas")
        self.untouched()

    def upgrade(self) -> None:
        """To this version, definition and all."""
        self.release.upgrade()
        self.untouched()
        self.home.apply(_with_new_field())
        collector = self.home.get("rolloutjob", "new")["spec"]["collector"]
        assert collector[previous.FIELD] is True
        # Written by the operator too, which knows the field.
        until(lambda: self.home.status("new").get("observedGeneration"), "status of the new job")
        assert self.home.get("rolloutjob", "new")["spec"]["collector"][previous.FIELD] is True
        self.home("delete", "rolloutjob", "new")

    def roll_back(self) -> None:
        """To the first revision, and on to this version again."""
        self.home.helm("rollback", self.release.name, "1", "--wait", "--timeout", "150s")
        self.untouched()
        schema = json.dumps(self.home.get("customresourcedefinition", CRD)["spec"])
        assert previous.FIELD not in schema, "a rollback takes the definition along"
        until(lambda: self.home.status("long").get("readyWorkers") == "1/1", "the job as it was")

    def uninstall(self) -> None:
        """What goes, and what stays."""
        for secret in self.home.get("secrets", "", "--selector", "owner=helm")["items"]:
            assert len(json.dumps(secret)) < 1024 * 1024
        self.release.uninstall()
        instance = f"app.kubernetes.io/instance={self.release.name}"
        until(lambda: not self.home.pods(instance), "end of the platform's pods")
        assert self.home.get("customresourcedefinition", CRD)
        assert not self.home.get("rolloutjob", "long")["metadata"].get("finalizers")
        assert self.workers() == self.kept["workers"], "workers go on without the operator"
        assert f"{self.release.full}-redis" in self.drawn_names()

    def drawn_names(self) -> list[str]:
        """Secrets that are there."""
        return [secret["metadata"]["name"] for secret in self.home.get("secrets")["items"]]

    def install_again(self) -> None:
        """Password and definition are found; the job goes on where its data was kept, and says so where it was not."""
        password = self.kept["drawn"][f"{self.release.full}-redis"]
        self.release.install()
        assert self.drawn()[f"{self.release.full}-redis"] == password
        assert previous.FIELD in json.dumps(self.home.get("customresourcedefinition", CRD)["spec"])
        if self.home.get("persistentvolumeclaims")["items"]:
            self.home.ready("long", 1)
        else:  # this cluster's storage does not go with the restricted level, as the notes say
            self.home.condition("long", "Failed", "True", "StateLost")


def _with_new_field() -> dict[str, Any]:
    found = job("new")
    found["spec"]["collector"][previous.FIELD] = True
    found["spec"]["suspend"] = True
    return found


def _follow_the_notes(release: Release) -> None:
    """Every command that the notes print, word by word, in one shell."""
    home = release.home
    notes = home.helm("get", "notes", release.name)
    lines = [line.removeprefix("  ") for line in notes.splitlines() if line.startswith("  ")]
    commands = "\n".join(lines)
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", 8080)) == 0:  # somebody else's here
            commands = commands.replace("8080:", "18080:").replace("127.0.0.1:8080", "127.0.0.1:18080")
    for word in (
        "rollout status",
        "helm test",
        "apply -f -",
        "wait rolloutjob/first",
        "port-forward",
        "curl",
    ):
        assert word in commands
    folder = Path(installed.program("helm")).parent
    script = f"set -eu\nexport PATH={folder}:$PATH\ntrap 'kill $(jobs -p)' EXIT\n{commands}\n"
    environ = {**os.environ, "KUBECONFIG": str(home.kubeconfig)}
    done = subprocess.run(
        ["bash", "-c", script], env=environ, capture_output=True, text=True, timeout=330, check=False
    )
    assert done.returncode == 0, done.stderr + done.stdout
    assert home.get("rolloutjob", "first")["status"]["progress"]["frames"] == 102400
    (answer,) = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert answer["state"] == "Complete", answer


def _audit() -> audit_log.Audit | None:
    try:
        return audit_log.audit()
    except pytest.skip.Exception:
        return None


def _nothing_was_forbidden(release: Release, record: audit_log.Audit | None) -> None:
    """With the defaults nothing is cluster-wide, the gateway's account has no rights at all, and neither misses any."""
    home = release.home
    for component, wanted in (("operator", {home.namespace}), ("gateway", set())):
        assert set(audit_log.granted(f"{release.full}-{component}", home.namespace)) == wanted
        if record is not None:
            user = f"system:serviceaccount:{home.namespace}:{release.full}-{component}"
            assert record.refused(user) == []


@pytest.mark.probe("P-49")
def test_plain_apply_of_the_definition(home: Commands) -> None:
    """Client-side too, which keeps a copy in an annotation of at most 256 KiB; twice, as people do."""
    for _ in range(2):
        assert CRD in home("apply", "--dry-run=server", "-f", str(installed.PLAIN_CRD))
    document = home.get("customresourcedefinition", CRD)
    document["metadata"].pop("managedFields", None)
    assert len(json.dumps(document["spec"], separators=(",", ":"))) <= 120 * 1024


def test_the_definition_of_one_version_has_several_owners(home: Commands) -> None:
    """What is applied is what the server stores: whoever comes second, kubectl or Helm, meets no conflict."""
    home("apply", "--server-side", "--force-conflicts", "-f", str(installed.PLAIN_CRD))
    again = ("apply", "--server-side", "--dry-run=server", "--field-manager=somebody-else")
    assert CRD in home(*again, "-f", str(installed.PLAIN_CRD))


def test_the_roles_of_users_outlive_the_release_that_brought_them() -> None:
    """They serve every installation: a second one leaves them as they are, and has them when the first has gone."""
    values = installed.merged(
        installed.image_values(),
        {"redis": {"external": {"host": "redis.example.org"}}, "gateway": {"enabled": False}},
    )
    with installed.namespaces("first", "second") as (first, second):
        for level in ("view", "edit", "admin"):
            first("delete", "clusterrole", f"rolloutjob-{level}", "--ignore-not-found")
        releases = [Release(home, values) for home in (first, second)]
        for release in releases:
            release.home.helm("install", release.name, str(release.chart), values=values)
        view = first.get("clusterrole", "rolloutjob-view")
        assert view["metadata"]["annotations"]["meta.helm.sh/release-name"] == releases[0].name
        account = f"{second.namespace}:default"
        second(
            "create",
            "rolebinding",
            "reader",
            "--clusterrole=rolloutjob-view",
            f"--serviceaccount={account}",
        )
        first.helm("uninstall", releases[0].name)

        asked = "auth", "can-i", "list", "rolloutjobs", f"--as=system:serviceaccount:{account}"
        assert second(*asked).strip() == "yes"
        assert second.get("clusterrole", "rolloutjob-view")["rules"] == view["rules"]

        # Of another version: whose it is, and nothing is written; or taken over.
        kept = {key: view["metadata"][key] for key in ("name", "labels", "annotations")}
        older = json.dumps({**view, "metadata": kept, "rules": view["rules"][:1]})
        by_helm = "--server-side", "--force-conflicts", "--field-manager=helm"
        second("apply", *by_helm, "-f", "-", text=older)
        upgrade = "upgrade", releases[1].name, str(installed.CHART)
        with pytest.raises(Refused, match=rf'(?s)"rolloutjob-view".*{releases[0].name}'):
            second.helm(*upgrade, values=values)
        second.helm(*upgrade, "--take-ownership", values=values)
        view = second.get("clusterrole", "rolloutjob-view")
        assert view["metadata"]["annotations"]["meta.helm.sh/release-name"] == releases[1].name
        assert second(*asked).strip() == "yes"
