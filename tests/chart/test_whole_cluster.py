"""An installation for all namespaces: one more right than any other, and the password where jobs will be.

Its operator would take up every job of the cluster, so nothing else may run meanwhile.
"""

from __future__ import annotations

import audit_log
import installed
import pytest
import yaml
from installed import until
from small_jobs import code, job

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.alone]


@pytest.mark.probe("P-52")
def test_all_namespaces() -> None:
    installed.image_values()
    with installed.namespaces("all", "given", "bare") as (home, given, bare):
        values = {
            "watch": {"namespaces": ["*"]},
            "gateway": {"enabled": False},
            "redis": {"auth": {"secretNamespaces": [given.namespace]}},
            "operator": {"observeSeconds": 1, "progressSeconds": 1},
        }
        with installed.release(home, values) as release:
            notes = home.helm("get", "notes", release.name)
            assert f"Jobs need the Secret {release.full}-redis" in notes
            _only_the_place_differs(release)
            for space in (given, bare):
                space.apply(code(), job("everywhere"))
            given.ready("everywhere", 1)
            # Where nobody has put the password, the job says which Secret is missing.
            message = bare.condition("everywhere", "WorkersReady", "False", "CreateContainerConfigError")
            assert f"{release.full}-redis" in message
            secret = given.get("secret", f"{release.full}-redis")
            copy = {"metadata": {"name": secret["metadata"]["name"]}, "data": secret["data"]}
            bare.apply({"apiVersion": "v1", "kind": "Secret", "type": "Opaque", **copy})
            bare.ready("everywhere", 1)
            for space in (given, bare):
                space("delete", "rolloutjob", "everywhere")
                until(lambda space=space: not space.workers("everywhere"), "end of the workers")


def _only_the_place_differs(release: installed.Release) -> None:
    """The same rights as in one namespace, but everywhere; its Lease is at home."""
    home = release.home
    granted = audit_log.granted(f"{release.full}-operator", home.namespace)
    assert set(granted) == {"", home.namespace}
    lease = granted.pop(home.namespace)
    assert {right.resource for right in lease} == {"leases"}
    text = home.helm("template", release.name, str(installed.CHART), values={"watch": {"namespaces": []}})
    (role,) = [
        d
        for d in yaml.safe_load_all(text)
        if d and d["kind"] == "Role" and d["metadata"]["name"] == f"{release.full}-operator"
    ]
    assert granted[""] == audit_log.rights_of(role["rules"])
