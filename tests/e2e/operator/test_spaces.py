"""Which namespaces an operator serves, and what goes away while it runs or while it does not."""

from __future__ import annotations

import time

import pytest
from cluster_tools import job, until

pytestmark = [pytest.mark.usefixtures("fake_nodes"), pytest.mark.slow, pytest.mark.timeout(240)]


def test_several_namespaces_and_no_other(namespaces, operators):
    home, one, two, other = (namespaces() for _ in range(4))
    watched = f"{one.namespace},{two.namespace}"
    operator = operators(home, ROLLOUT_NAMESPACES=watched).start().wait_ready()
    for kube in (home, one, two, other):
        kube.apply(job("twin", replicas=2))
    for kube in (one, two):
        kube.wait_ready("twin", 2)
    one.run("scale", "roj", "twin", "--replicas=1")
    one.wait_ready("twin", 1)
    two.wait_ready("twin", 2)

    assert one.status("twin")["stream"]["key"] != two.status("twin")["stream"]["key"]
    for kube in (home, other):
        assert kube.status("twin") == {}
        assert not kube.pods()
    assert home.get("lease", "rollout-operator")["spec"]["holderIdentity"]
    operator.stop()


@pytest.mark.alone
def test_one_operator_for_all_namespaces(namespaces, operators):
    """It serves the jobs of every other test too, with a data server of its own."""
    home, one, two = namespaces(), namespaces(), namespaces()
    operator = operators(home, ROLLOUT_NAMESPACES="*").start().wait_ready()
    for kube in (one, two):
        kube.apply(job("wide", replicas=2))
    for kube in (one, two):
        kube.wait_ready("wide", 2)
    late = namespaces()
    late.apply(job("wide"))
    late.wait_ready("wide", 1)
    operator.stop()


@pytest.mark.probe("P-39")
@pytest.mark.parametrize("is_running", [True, False], ids=["with the operator", "without it"])
@pytest.mark.parametrize("policy", ["Expire", "Delete"])
def test_a_namespace_goes_with_its_jobs(namespaces, operators, is_running, policy):
    """`cleanupPolicy: Delete` has a finalizer: it is the only thing that waits for the operator, and says so."""
    home, kube = namespaces(), namespaces()
    settings = {"ROLLOUT_NAMESPACES": f"{home.namespace},{kube.namespace}"}
    operator = operators(home, **settings).start().wait_ready()
    kube.apply(job("doomed", replicas=3, redis={"cleanupPolicy": policy}))
    home.apply(job("stays", replicas=2))
    kube.wait_ready("doomed", 3)
    home.wait_ready("stays", 2)
    if not is_running:
        operator.kill()

    kube.run("delete", "namespace", kube.namespace, "--wait=false")
    if not is_running and policy == "Delete":
        until(lambda: not kube.pods(), within=60, what="no pod")
        assert kube.get("roj", "doomed")["metadata"]["finalizers"] == ["rolloutjob.dev/redis-cleanup"]
        operator = operators(home, **settings).start().wait_ready(within=60)
    until(lambda: home.get("namespace", kube.namespace) is None, within=120, what="no namespace")
    if is_running:
        home.run("scale", "roj", "stays", "--replicas=3")
        home.wait_ready("stays", 3)
        assert operator.process.poll() is None
        assert operator.probe("healthz")[0] == 200
        operator.stop()
    elif policy == "Delete":
        operator.stop()


def test_what_happened_while_it_was_down(namespaces, operators):
    """Jobs that were deleted, edited, made anew under their name, and made: each is found as it is now."""
    kube = namespaces()
    operator = operators(kube, ROLLOUT_POD_NAME="operator-0", ROLLOUT_POD_UID="down").start().wait_ready()
    for name in ("gone", "edited", "renewed"):
        kube.apply(job(name, replicas=2))
    for name in ("gone", "edited", "renewed"):
        kube.wait_ready(name, 2)
    key = kube.status("renewed")["stream"]["key"]
    operator.kill()

    kube.run("delete", "roj", "gone", "renewed")
    kube.run("scale", "roj", "edited", "--replicas=3")
    kube.apply(job("renewed", replicas=1))
    kube.apply(job("made", replicas=1))
    until(lambda: not kube.pods("gone"), within=60, what="no pod of the one that is gone")
    assert len(kube.pods("edited")) == 2
    operator.start().wait_ready()

    kube.wait_ready("edited", 3)
    kube.wait_ready("made", 1)
    kube.wait_ready("renewed", 1, within=60)
    assert kube.status("renewed")["stream"]["key"] != key
    time.sleep(2)
    assert not kube.pods("gone")
    assert len(kube.pods("renewed")) == 1
    assert kube.status("renewed")["workerGroups"][0]["failures"] == 0
    operator.stop()
