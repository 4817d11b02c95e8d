"""Several operators over one namespace: each job has one of them, the others keep their hands off, and say so once."""

from __future__ import annotations

import asyncio
import logging

import pytest
from fake_api import Fault
from operator_builders import BASE

from rollout_operator import program
from rollout_operator.environment import settings_from
from rollout_operator.kube import other_leases
from rollout_operator.kube.cleanup import DEADLINE_S, FINALIZER
from rollout_operator.kube.governing import LOOK_EVERY_S, Claim, claim_of
from rollout_operator.kube.other_leases import ASK_EVERY_S, GONE_AFTER_S, OtherLeases
from rollout_operator.times import to_text

OURS, THEIRS, ANNOTATION = "ops/one", "ops/two", "rolloutjob.dev/operator"
NOW = 1_800_000_000.0


def document(*, annotation=None, deleted_s=None, finalizers=(), spec=None, **status):
    metadata = {"name": "a", "namespace": "rl", "uid": "u", "finalizers": list(finalizers)}
    if annotation is not None:
        metadata["annotations"] = {ANNOTATION: annotation}
    if deleted_s is not None:
        metadata["deletionTimestamp"] = to_text(NOW - deleted_s)
    return {"metadata": metadata, "spec": spec or {}, "status": status}


LATE = DEADLINE_S + LOOK_EVERY_S + 5


@pytest.mark.parametrize(
    ("job", "claim"),
    [
        pytest.param(document(), Claim.TAKE, id="new"),
        pytest.param({"metadata": {"name": "a", "namespace": "rl"}, "spec": {}}, Claim.TAKE, id="no status"),
        pytest.param(document(state="Running"), Claim.TAKE, id="of a version before"),
        pytest.param(document(operator=OURS), Claim.GO_ON, id="ours"),
        pytest.param(document(operator=THEIRS), Claim.LEAVE, id="theirs"),
        pytest.param(document(operator=THEIRS, completionTime="t"), Claim.LEAVE, id="theirs, over"),
        pytest.param(document(completionTime="t"), Claim.GO_ON, id="over before anyone took it"),
        pytest.param(document(annotation=OURS), Claim.TAKE, id="new, for us"),
        pytest.param(document(annotation=THEIRS), Claim.LEAVE, id="new, for them"),
        pytest.param(document(annotation=OURS, operator=THEIRS), Claim.TAKE, id="handed to us"),
        pytest.param(document(annotation=THEIRS, operator=OURS), Claim.LEAVE, id="handed to them"),
        pytest.param(document(annotation="", operator=OURS), Claim.GO_ON, id="an empty annotation"),
        pytest.param(document(spec={"managedBy": "x/y"}), Claim.GO_ON, id="managed by something else"),
        pytest.param(document(operator=THEIRS, deleted_s=5), Claim.GO_ON, id="deleted"),
        pytest.param(
            document(operator=THEIRS, deleted_s=5, finalizers=[FINALIZER]), Claim.LEAVE, id="theirs to clean"
        ),
        pytest.param(
            document(operator=THEIRS, deleted_s=LATE, finalizers=[FINALIZER]),
            Claim.GO_ON,
            id="nobody cleans",
        ),
        pytest.param(
            document(operator=OURS, deleted_s=5, finalizers=[FINALIZER]), Claim.GO_ON, id="ours to clean"
        ),
    ],
)
def test_whose_a_job_is(job, claim):
    assert claim_of(job, OURS, now=NOW) is claim


# --- whether another is gone


def hold(server, holder="x", seconds=30):
    body = {
        "metadata": {"namespace": "ops", "name": "two"},
        "spec": {"holderIdentity": holder, "leaseDurationSeconds": seconds},
    }
    server.create("leases", body)


async def watched(others, clock, seconds, each=lambda: None):
    """What is said of the other after looking for so long."""
    gone = await others.is_gone(THEIRS)
    for _ in range(round(seconds / 60)):
        clock.now += 60
        each()
        gone = await others.is_gone(THEIRS)
    return gone


@pytest.mark.parametrize("state", ["deleted", "given back", "run out"])
async def test_one_that_stays_away_is_gone(server, api, clock, state):
    if state != "deleted":
        hold(server, holder="" if state == "given back" else "x")
    others = OtherLeases(api, clock=clock)
    assert not await watched(others, clock, GONE_AFTER_S - 60)
    assert await watched(others, clock, 180)
    assert server.count("GET", "/leases/two") <= (GONE_AFTER_S + 180) / ASK_EVERY_S + 1


async def test_one_that_renews_is_not(server, api, clock):
    hold(server)

    def renew():
        server.edit("leases", "ops", "two", lambda d: d["spec"].update(renewTime=str(clock.now)))

    assert not await watched(OtherLeases(api, clock=clock), clock, 3 * GONE_AFTER_S, renew)


async def test_one_that_comes_back_is_not(server, api, clock):
    hold(server, holder="")
    others = OtherLeases(api, clock=clock)
    assert not await watched(others, clock, GONE_AFTER_S - 60)
    server.edit("leases", "ops", "two", lambda d: d["spec"].update(holderIdentity="y"))
    clock.now += 60
    assert not await others.is_gone(THEIRS)
    server.edit("leases", "ops", "two", lambda d: d["spec"].update(holderIdentity=""))
    assert not await watched(others, clock, GONE_AFTER_S - 60)


@pytest.mark.parametrize("status", [403, 500])
async def test_what_cannot_be_read_says_nothing(server, api, clock, status):
    server.faults.append(Fault("GET", "/leases/two", status, {}, times=10**6))
    assert not await watched(OtherLeases(api, clock=clock), clock, 3 * GONE_AFTER_S)


@pytest.mark.parametrize("governor", ["nonsense", "a/b/c", "/x", "x/"])
async def test_what_names_no_lease_says_nothing(server, api, clock, governor):
    others = OtherLeases(api, clock=clock)
    for _ in range(30):
        clock.now += 60
        assert not await others.is_gone(governor)
    assert not server.count("GET", "/leases/")


# --- two whole programs


def job(name="a", **metadata):
    return {
        "apiVersion": "rolloutjob.dev/v1alpha1",
        "kind": "RolloutJob",
        "metadata": {"namespace": "rl", "name": name, **metadata},
        "spec": {**BASE, "replicas": 2},
    }


@pytest.fixture
def operator(servers, running):
    """Starts an operator with this Lease, over this server of its own; its port."""

    def start(lease, port=None):
        port = port or servers.start()
        environ = {
            "ROLLOUT_POD_NAMESPACE": "ops",
            "ROLLOUT_NAMESPACES": "rl",
            "ROLLOUT_LEASE_NAME": lease,
            "ROLLOUT_REDIS_URL": f"redis://127.0.0.1:{port}",
            "ROLLOUT_HTTP_HOST": "127.0.0.1",
            "ROLLOUT_HTTP_PORT": "0",
            "ROLLOUT_OBSERVE_SECONDS": "1",
        }
        made = program.Program(settings_from(environ))
        made.task, made.redis_port = running(made.run()), port
        return made

    return start


def status_of(server, name="a"):
    return server.named("rolloutjobs")[name].get("status") or {}


def conditions(server, name="a"):
    return {c["type"]: c["status"] for c in status_of(server, name).get("conditions") or ()}


def said(server, reason):
    return [e["note"] for e in server.named("events").values() if e["reason"] == reason]


def metric(made, name):
    lines = made.metrics.render().decode().splitlines()
    return next((float(line.split()[-1]) for line in lines if line.startswith(name + " ")), None)


async def a_ready_job(server, until):
    server.create("rolloutjobs", job())
    await until(lambda: len(server.named("pods")) == 2, "pods")
    server.run_pods()
    await until(lambda: status_of(server).get("readyWorkers") == "2/2", "ready workers")


async def ended(operator):
    operator.task.cancel()
    await asyncio.wait_for(asyncio.wait({operator.task}), 60)


async def test_one_that_has_other_servers_leaves_a_job_alone(server, operator, until, caplog):
    caplog.set_level(logging.WARNING)
    operator("one")
    await a_ready_job(server, until)
    assert status_of(server)["operator"] == OURS

    second = operator("two")
    await until(lambda: said(server, "LeftAlone"), "the second one's word")
    for _ in range(4):
        server.edit("rolloutjobs", "rl", "a", lambda d: d["metadata"].setdefault("labels", {}).update(n="1"))
        await asyncio.sleep(0.2)
    assert conditions(server)["Failed"] == "False"
    assert status_of(server)["operator"] == OURS
    assert len(server.named("pods")) == 2
    [note] = said(server, "LeftAlone")
    assert f"annotate rolloutjob a -n rl {ANNOTATION}={THEIRS}" in note
    assert sum("leaves it alone" in record.getMessage() for record in caplog.records) == 1
    assert metric(second, "rollout_jobs_left_alone") == 1


async def test_both_start_at_once_and_every_job_has_one(server, operator, until):
    """What either makes, it makes for its own jobs only."""
    operator("one")
    operator("two")
    for number in range(12):
        server.create("rolloutjobs", job(f"j{number}"))
        await asyncio.sleep(0.02)
    await until(lambda: len(server.named("pods")) == 24, "pods")
    server.run_pods()
    names = list(server.named("rolloutjobs"))
    await until(lambda: all(status_of(server, n).get("readyWorkers") == "2/2" for n in names), "all ready")
    assert all(conditions(server, name)["Failed"] == "False" for name in names)
    by_server = {}
    for pod in server.named("pods").values():
        [text] = [e["value"] for e in pod["spec"]["containers"][0]["env"] if e["name"] == "ROLLOUT_WORKER"]
        address = text.split('"port":')[1].split(",")[0]
        owner = status_of(server, pod["metadata"]["ownerReferences"][0]["name"])["operator"]
        by_server.setdefault(owner, set()).add(address)
    assert all(len(addresses) == 1 for addresses in by_server.values())


async def test_a_job_is_handed_over_by_its_owner(server, operator, until):
    first = operator("one")
    server.create("rolloutjobs", job())
    await until(lambda: len(server.named("pods")) == 2, "pods")
    server.run_pods()
    second = operator("two", port=first.redis_port)
    await until(lambda: metric(second, "rollout_jobs_left_alone") == 1, "the second one's look")

    uids = {pod["metadata"]["uid"] for pod in server.named("pods").values()}
    server.edit("rolloutjobs", "rl", "a", lambda d: d["metadata"].update(annotations={ANNOTATION: THEIRS}))
    await until(lambda: status_of(server).get("operator") == THEIRS, "the second one's claim")
    await until(lambda: metric(first, "rollout_jobs_left_alone") == 1, "the first one's retreat")
    await until(lambda: status_of(server).get("readyWorkers") == "2/2", "ready workers")
    assert {pod["metadata"]["uid"] for pod in server.named("pods").values()} == uids
    await until(lambda: said(server, "TakenOver"), "the event, which is written beside the status")
    assert conditions(server)["Failed"] == "False"


@pytest.mark.parametrize("is_same_server", [True, False])
async def test_a_job_whose_operator_is_gone(server, operator, until, monkeypatch, is_same_server):
    """Taken over where its keys are; elsewhere it is left, for it could only be failed."""
    first = operator("one")
    await a_ready_job(server, until)
    await ended(first)
    monkeypatch.setattr(other_leases, "GONE_AFTER_S", 0.0)
    second = operator("two", port=first.redis_port if is_same_server else None)
    if is_same_server:
        await until(lambda: status_of(server).get("operator") == THEIRS, "the claim")
        await asyncio.sleep(0.5)
    else:
        await until(lambda: metric(second, "rollout_jobs_left_alone") == 1, "the second one's look")
        await asyncio.sleep(1.0)
        assert status_of(server)["operator"] == OURS
    assert conditions(server)["Failed"] == "False"
    assert len(server.named("pods")) == 2


@pytest.mark.parametrize("is_moved", [False, True])
async def test_the_same_operator_goes_on_after_an_upgrade(server, operator, servers, until, is_moved):
    """Under its Lease it is the same one, also with another address of its server: what is lost there is told as ever."""
    first = operator("one")
    await a_ready_job(server, until)
    await ended(first)
    operator("one", port=None if is_moved else first.redis_port)
    server.edit(
        "rolloutjobs", "rl", "a", lambda d: (d["spec"].update(replicas=3), d["metadata"].update(generation=2))
    )
    if is_moved:
        await until(lambda: conditions(server)["Failed"] == "True", "StateLost")
    else:
        await until(lambda: len(server.named("pods")) == 3, "a third pod")
    assert status_of(server)["operator"] == OURS
