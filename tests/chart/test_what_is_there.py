"""What is on the cluster already: what Kubernetes would refuse half-way is refused before anything is written.

The server is there as its StatefulSet without pods, so nothing runs.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import installed
import pytest
import yaml
from installed import Commands

CHART = str(Path(__file__).parents[2] / "charts" / "rollout")
SERVER = "rl-rollout-redis"

pytestmark = [pytest.mark.timeout(120)]


@pytest.fixture
def space() -> Iterator[Commands]:
    """A namespace without rules."""
    found = Commands(f"volume-{uuid.uuid4().hex[:6]}")
    found("create", "namespace", found.namespace)
    try:
        yield found
    finally:
        found("delete", "namespace", found.namespace, "--wait=false")


def server(space: Commands, **persistence: Any) -> dict[str, Any]:
    """The StatefulSet that an upgrade with these values would send. Refused where it is refused."""
    values = {"crds": {"install": False}, "redis": {"persistence": persistence}}
    text = space.helm("template", "rl", CHART, "--dry-run=server", values=values)
    (found,) = [d for d in yaml.safe_load_all(text) if d and d["kind"] == "StatefulSet"]
    return dict(found)


def put(space: Commands, document: dict[str, Any]) -> None:
    """Have it there as Helm would, but without pods."""
    document["spec"]["replicas"] = 0
    owner = {"meta.helm.sh/release-name": "rl", "meta.helm.sh/release-namespace": space.namespace}
    document["metadata"]["annotations"] = owner
    space("apply", "-f", "-", text=json.dumps(document))


def refusal(space: Commands, **persistence: Any) -> str:
    """What is said of an upgrade that cannot be."""
    with pytest.raises(installed.Refused) as caught:
        server(space, **persistence)
    return str(caught.value)


@pytest.mark.probe("P-49")
def test_a_volume_that_is_there(space: Commands) -> None:
    put(space, server(space, volumeOwner="Group", size="1.5Gi"))
    put(space, server(space, volumeOwner="Group", size="1536Mi"))  # the same in other words
    for wanted, words in (
        ({"size": "2Gi"}, "size 1536Mi is there, 2Gi is wanted"),
        ({"size": "1.5Gi", "storageClass": "fast"}, 'storageClass "" is there, "fast" is wanted'),
        ({"size": "1.5Gi", "accessModes": ["ReadWriteMany"]}, "accessModes"),
        ({"size": "1.5Gi", "enabled": False}, "a volume is there, none is wanted"),
    ):
        said = refusal(space, **{"volumeOwner": "Group", **wanted})
        assert words in said
        command = f"kubectl --namespace {space.namespace} delete statefulset {SERVER} --cascade=orphan"
        assert command in said
    space("delete", "statefulset", SERVER, "--cascade=orphan")
    put(space, server(space, volumeOwner="Group", size="2Gi"))


@pytest.mark.probe("P-49")
def test_a_namespace_that_was_restricted_after_the_installation(space: Commands) -> None:
    """A volume of root's was handed over already: it is gone on with, and by nobody who is root."""
    put(space, server(space, volumeOwner="Root"))
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": f"data-{SERVER}-0"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "8Gi"}}},
    }
    space.apply(claim)
    space("label", "namespace", space.namespace, installed.RESTRICTED)
    found = server(space, volumeOwner="Root")["spec"]
    assert found["volumeClaimTemplates"]
    assert "initContainers" not in found["template"]["spec"]
    space("delete", "statefulset", SERVER)
    assert server(space, volumeOwner="Root")["spec"]["volumeClaimTemplates"], "what was kept is found again"


def test_a_server_in_memory_gets_no_volume_by_an_upgrade(space: Commands) -> None:
    put(space, server(space, enabled=False))
    said = refusal(space, volumeOwner="Group")
    assert "none is there, a volume is wanted" in said
    assert "orphan" not in said, "a pod that is there cannot be given a volume"


def test_a_namespace_that_is_not_there(space: Commands) -> None:
    for values in (
        {"watch": {"namespaces": [space.namespace, "team-nowhere"]}},
        {"redis": {"auth": {"secretNamespaces": ["team-nowhere"]}}},
    ):
        with pytest.raises(installed.Refused, match="create team-nowhere first"):
            space.helm("template", "rl", CHART, "--dry-run=server", values=values)
