"""Who called what, from the cluster's audit log, and what its roles grant: to compare one with the other."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from installed import Commands, kubeconfig

Document = dict[str, Any]


class Right(NamedTuple):
    """What a rule grants, and what a call needs."""

    group: str
    resource: str
    verb: str


class Recorded(NamedTuple):
    """One call to the API server, as its audit log has it."""

    right: Right
    namespace: str
    code: int
    path: str
    agent: str


class Audit:
    """The cluster's audit log from now on."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._start = path.stat().st_size

    def of(self, user: str) -> list[Recorded]:
        """Calls of a user on resources, the newest last. Those on paths without a resource need no right of a role."""
        found = []
        with self._path.open(encoding="utf-8") as lines:
            lines.seek(self._start)
            for line in lines:
                if user not in line or not line.endswith("\n"):
                    continue
                entry = json.loads(line)
                if entry["user"]["username"] == user and "objectRef" in entry:
                    found.append(_recorded(entry))
        return found

    def refused(self, user: str) -> list[Recorded]:
        """Calls of a user that were refused, and not granted later: the server learns of a new role a moment after it was
        written, and the account's program may be quicker."""
        calls = self.of(user)
        granted = {(call.right, call.namespace): at for at, call in enumerate(calls) if call.code < 400}
        return [
            call
            for at, call in enumerate(calls)
            if call.code in (401, 403) and granted.get((call.right, call.namespace), -1) < at
        ]


def _recorded(entry: Document) -> Recorded:
    target = entry["objectRef"]
    resource = "/".join(filter(None, (target["resource"], target.get("subresource"))))
    right = Right(target.get("apiGroup", ""), resource, entry["verb"])
    code = int((entry.get("responseStatus") or {}).get("code", 0))
    agent = entry.get("userAgent", "")
    return Recorded(right, target.get("namespace", ""), code, entry["requestURI"], agent)


def audit() -> Audit:
    """The audit log from now on. Skips where there is none."""
    path = Path(os.environ.get("E2E_AUDIT_LOG", str(kubeconfig().parent / "log" / "audit.log")))
    if not path.is_file():
        pytest.skip(f"needs the cluster's audit log at {path} (E2E_AUDIT_LOG names another place)")
    return Audit(path)


def granted(account: str, namespace: str) -> dict[str, set[Right]]:
    """What the cluster's roles grant a service account, by namespace; "" holds everywhere."""
    admin = Commands("default")
    found: dict[str, set[Right]] = {}
    for kind in ("rolebindings", "clusterrolebindings"):
        for binding in admin.get(kind, "", "--all-namespaces")["items"]:
            subjects = binding.get("subjects") or ()
            if not any(s.get("name") == account and s.get("namespace") == namespace for s in subjects):
                continue
            where = binding["metadata"].get("namespace", "")
            reference = binding["roleRef"]
            options = ("--namespace", where) if reference["kind"] == "Role" else ()
            role = admin.get(reference["kind"].lower(), reference["name"], *options)
            found.setdefault(where, set()).update(rights_of(role["rules"]))
    return found


def rights_of(rules: list[Document]) -> set[Right]:
    """Every right that rules name."""
    return {
        Right(group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
