"""The loop over a cluster and streams in memory: what becomes of plans, with every kind of failure on the way."""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import replace

import pytest
from operator_builders import NOON, SETTINGS, UID, conditions_of, make_job
from operator_fakes import KEY, FakeCluster, FakeStreams, Killed

from rollout_contract.errors import StreamUnavailable
from rollout_contract.messages import EndMarker
from rollout_contract.names import Slot
from rollout_contract.spec import parse_manifest
from rollout_contract.status import Reason
from rollout_operator.apply import MAX_IN_FLIGHT
from rollout_operator.cluster import ClusterError, PodRefused, StaleJob, TryLater
from rollout_operator.observed import StreamTrouble
from rollout_operator.plan import MAX_CREATES
from rollout_operator.reconcile import STARTED_S, Reconciler
from rollout_operator.status_writes import FIRST_STATUS_S


class World:
    """One job, its surroundings, and the loop."""

    def __init__(self, **spec):
        self.now = NOON
        job = make_job(**spec)
        self.cluster = FakeCluster(job.to_document(), lambda: self.now)
        self.streams = FakeStreams(lambda: self.now)
        self.reconciler = Reconciler(self.cluster, self.streams, SETTINGS, clock=lambda: self.now)

    @property
    def status(self):
        return parse_manifest(self.cluster.document).status

    @property
    def conditions(self):
        return conditions_of(self.status)

    @property
    def pods(self):
        return sorted(self.cluster.pods)

    @property
    def slots(self):
        """Index of each pod's worker."""
        return sorted(
            int(p["metadata"]["labels"]["rolloutjob.dev/worker-index"]) for p in self.cluster.pods.values()
        )

    def restart(self):
        """Another process of the operator: it remembers nothing."""
        self.streams.restart()
        self.reconciler = Reconciler(self.cluster, self.streams, SETTINGS, clock=lambda: self.now)

    async def reconcile(self):
        return await self.reconciler.reconcile(KEY)

    async def settle(self, turns=12):
        """As the queue does: again at once while it is asked for, and again after errors."""
        for _ in range(turns):
            with contextlib.suppress(ClusterError):
                await self.reconcile()
            self.cluster.kubelet()

    async def settle_until(self, kill_at, turns):
        """Settle, but be killed at that call to the cluster or the streams. Whether it came to that call."""
        calls = itertools.count(1)

        def fail(call):
            if next(calls) == kill_at:
                raise Killed

        self.cluster.fail = self.streams.fail = fail
        try:
            await self.settle(turns)
        except Killed:
            return True
        finally:
            self.cluster.fail = self.streams.fail = lambda call: None
        return False


async def killed_after_each_call(turns, make):
    """Worlds whose operator was killed at its first call, at its second, and so on; the last one's never."""
    for kill_at in range(1, 80):
        world = await make()
        was_killed = await world.settle_until(kill_at, turns)
        yield world
        if not was_killed:
            return
    raise AssertionError("it takes more than 80 calls")


def refusing(start, error):
    """Every call that begins so fails."""

    def fail(call):
        if call.startswith(start):
            raise error

    return fail


async def test_a_new_job_gets_its_stream_and_then_its_workers():
    world = World(replicas=2)
    assert await world.reconcile() == 0.0
    assert (world.streams.calls, world.pods) == (["look", "open"], [])
    assert await world.reconcile() == STARTED_S
    assert world.pods == ["a-default-0-0", "a-default-1-0"]
    world.cluster.kubelet()
    assert await world.reconcile() == SETTINGS.observe_interval_s
    assert world.conditions["Ready"] == ("True", "WorkersReady")
    assert (world.status.state, world.status.observed_generation) == ("Running", 1)
    assert world.cluster.status_writes == 1, "one says that it was started and that it is well"


async def test_a_new_job_whose_workers_do_not_come_up_says_so_in_a_moment():
    world = World(replicas=2)
    await world.reconcile()
    for waited_s in (0.0, 1.0):
        world.now = NOON + waited_s
        assert await world.reconcile() == STARTED_S
    assert world.cluster.status_writes == 0
    world.now = NOON + FIRST_STATUS_S
    await world.reconcile()
    assert world.conditions["Ready"][0] == "False"
    assert world.status.ready_workers == "0/2"


async def test_a_new_job_whose_workers_are_refused_says_so_at_once():
    world = World(replicas=2)
    await world.reconcile()
    world.cluster.fail = refusing("create", PodRefused("exceeded quota", reason=Reason.QUOTA_EXCEEDED))
    await world.reconcile()
    assert world.cluster.status_writes == 1
    assert "QuotaExceeded" in {reason for _, reason in world.conditions.values()}


async def test_a_job_that_is_well_costs_no_write():
    world = World()
    await world.settle()
    writes, calls = world.cluster.status_writes, len(world.cluster.calls)
    for _ in range(5):
        world.now += 10
        await world.reconcile()
    assert world.cluster.status_writes == writes
    assert set(world.cluster.calls[calls:]) == {"get_job", "list_pods"}


async def test_many_pods_are_created_in_growing_parts_with_a_bound():
    world = World(replicas=MAX_CREATES + 20)
    await world.reconcile()
    assert await world.reconcile() == 0.0
    assert len(world.pods) == MAX_CREATES
    assert world.cluster.most_in_flight == MAX_IN_FLIGHT
    await world.reconcile()
    await world.reconcile()
    assert len(world.pods) == MAX_CREATES + 20


@pytest.mark.parametrize("determinism", ["BestEffort", "Strict"])
async def test_probe_p_45_killed_after_each_call(determinism):
    """However far the operator got, its successor brings the same four workers about, and touches none that is there."""

    async def make():
        return World(replicas=4, determinism=determinism)

    async for world in killed_after_each_call(6, make):
        before = {name: pod["metadata"]["uid"] for name, pod in world.cluster.pods.items()}
        world.restart()
        await world.settle(6)
        assert world.slots == [0, 1, 2, 3]
        assert len(set(world.cluster.created)) == len(world.cluster.created)
        assert all(world.cluster.pods[name]["metadata"]["uid"] == uid for name, uid in before.items())
        assert world.conditions["Ready"] == ("True", "WorkersReady")
        if determinism == "Strict":
            assert world.conditions["Reproducible"] == ("True", "NoWorkerReplaced")


async def test_no_attempt_is_given_twice_though_its_pod_vanished_unseen():
    """Killed after any call, and all pods are gone when it comes back: on a node that is cut off they may still run."""

    async def make():
        return World(replicas=3)

    async for world in killed_after_each_call(5, make):
        world.cluster.pods.clear()
        world.restart()
        await world.settle(4)
        world.cluster.pods.clear()
        await world.settle(4)
        assert world.slots == [0, 1, 2]
        assert len(set(world.cluster.created)) == len(world.cluster.created)


async def test_what_was_never_created_keeps_its_number():
    world = World(replicas=3)
    world.cluster.fail = refusing("create", PodRefused("exceeded quota", reason=Reason.QUOTA_EXCEEDED))
    await world.settle(5)
    assert (world.pods, world.conditions["WorkersReady"]) == ([], ("False", "QuotaExceeded"))
    world.cluster.fail = lambda call: None
    await world.settle(2)
    assert world.pods == [f"a-default-{i}-0" for i in range(3)]


@pytest.mark.parametrize("was_made", [True, False])
async def test_a_creation_of_unknown_end_is_repeated_under_its_name(was_made):
    """Whatever became of it: the name finds it, also where the watch has not brought it yet."""
    world = World(replicas=1)
    await world.reconcile()
    create = world.cluster.create_pod

    async def lost(manifest):
        if was_made:
            await create(manifest)
        raise ClusterError("no answer")

    world.cluster.create_pod = lost
    with pytest.raises(ClusterError):
        await world.reconcile()
    world.cluster.create_pod, list_pods = create, world.cluster.list_pods

    async def stale(key, *, job_uid):
        return []

    world.cluster.list_pods = stale
    await world.reconcile()
    assert world.pods == ["a-default-0-0"]
    world.cluster.list_pods = list_pods
    await world.settle(2)
    world.cluster.pods.clear()
    await world.settle(2)
    assert world.pods == ["a-default-0-1"]


async def test_a_template_that_is_refused_takes_nothing_down():
    world = World(replicas=3, updateStrategy={"maxUnavailable": 2})
    await world.settle()
    before = {name: pod["metadata"]["uid"] for name, pod in world.cluster.pods.items()}
    world.cluster.fail = refusing("check", PodRefused("serviceaccount nobody", reason=Reason.POD_REJECTED))
    template = {"spec": {"containers": [{"name": "worker"}], "serviceAccountName": "nobody"}}
    world.cluster.edit(workerGroups=[{"name": "default", "elastic": True, "template": template}])

    await world.settle()
    assert {name: pod["metadata"]["uid"] for name, pod in world.cluster.pods.items()} == before
    assert world.conditions["Accepted"] == ("False", "PodRejected")
    assert world.conditions["WorkersReady"] == ("True", "AllReady")
    assert world.conditions["Ready"] == ("False", "NotAccepted")
    assert (
        world.cluster.calls.count("check a-default-0-1") == 1
    )  # asked again after a while, not with each look

    world.cluster.fail = lambda call: None
    template["spec"].pop("serviceAccountName")
    world.cluster.edit(workerGroups=[{"name": "default", "elastic": True, "template": template}])
    await world.settle(30)
    assert world.pods == [f"a-default-{i}-1" for i in range(3)]
    assert world.conditions["Accepted"] == ("True", "SpecValid")


@pytest.mark.probe("P-41")
@pytest.mark.parametrize(("lacks_room", "attempt"), [(True, 1), (False, 0)], ids=["no room now", "never"])
async def test_a_quota_stops_a_roll_only_where_taking_workers_down_makes_no_room(lacks_room, attempt):
    world = World(replicas=2)
    await world.settle()
    refusal = PodRefused("exceeded quota", reason=Reason.QUOTA_EXCEEDED, lacks_room=lacks_room)
    world.cluster.fail = refusing("check", refusal)
    template = {"spec": {"containers": [{"name": "worker", "image": "new"}]}}
    world.cluster.edit(workerGroups=[{"name": "default", "elastic": True, "template": template}])
    await world.settle(20)
    assert world.pods == [f"a-default-{i}-{attempt}" for i in range(2)]
    assert world.conditions["WorkersReady"] == ("True", "AllReady")


async def test_a_job_of_which_one_group_cannot_run_starts_nothing():
    groups = [{"name": "a", "replicas": 2}, {"name": "b", "replicas": 1}]
    world = World(workerGroups=groups)
    world.cluster.fail = refusing("check a-b-", PodRefused("no such priority", reason=Reason.POD_REJECTED))
    await world.settle()
    assert world.pods == []
    assert world.conditions["Accepted"] == ("False", "PodRejected")


async def test_the_other_groups_of_a_running_job_go_on():
    groups = [{"name": "a", "replicas": 2}, {"name": "b", "replicas": 1}]
    world = World(workerGroups=groups)
    await world.settle()
    world.cluster.fail = refusing("check a-b-", PodRefused("no such priority", reason=Reason.POD_REJECTED))
    world.restart()
    template = {"spec": {"containers": [{"name": "worker", "image": "new"}]}}
    world.cluster.edit(workerGroups=[{**groups[0]}, {**groups[1], "template": template}])
    world.cluster.end("a-a-0-0", 143)
    await world.settle()
    assert world.pods == ["a-a-0-1", "a-a-1-0", "a-b-0-0"]


async def test_a_suspended_job_is_told_that_its_template_is_refused():
    world = World(suspend=True)
    world.cluster.fail = refusing("check", PodRefused("no such priority", reason=Reason.POD_REJECTED))
    await world.settle(3)
    assert (world.pods, world.conditions["Accepted"]) == ([], ("False", "PodRejected"))


async def test_where_the_cluster_does_not_tell_nothing_is_taken_down():
    world = World(replicas=2)
    await world.settle()
    world.cluster.fail = refusing("check", ClusterError("no answer"))
    template = {"spec": {"containers": [{"name": "worker", "image": "new"}]}}
    world.cluster.edit(workerGroups=[{"name": "default", "elastic": True, "template": template}])
    await world.settle(4)
    assert world.pods == [f"a-default-{i}-0" for i in range(2)]


async def test_a_failure_counts_once_wherever_the_operator_is_killed():
    async def make():
        world = World(replicas=2, failurePolicy={"backoffLimit": 9, "backoffSeconds": 0})
        await world.settle()
        world.cluster.end("a-default-1-0", 1, "boom")
        return world

    async for world in killed_after_each_call(5, make):
        await world.settle(8)
        assert world.status.worker_groups[0].failures == 1
        assert {"a-default-1-1", "a-default-1-2"} & set(
            world.pods
        )  # a number may be lost with the operator, no more
        assert world.status.last_failure.message == "boom"


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(ClusterError("500"), id="500"),
        pytest.param(TryLater("429", retry_after_s=7), id="429"),
        pytest.param(StaleJob("409"), id="409"),
    ],
)
@pytest.mark.parametrize("where", ["get_job", "list_pods", "create a-default-0-0", "write_status", "open"])
async def test_an_error_is_raised_for_the_queue_and_the_next_try_succeeds(error, where):
    world = World()
    failed = []

    def fail(call):
        if call == where and not failed:
            failed.append(call)
            raise error if where != "open" else StreamUnavailable("redis:6379 is away")

    world.cluster.fail = world.streams.fail = fail
    raised = []
    for _ in range(8):
        try:
            await world.reconcile()
        except ClusterError as found:
            raised.append(found)
        world.cluster.kubelet()
    assert failed == [where]
    assert raised == ([] if where == "open" else [error])
    assert world.conditions["Ready"] == ("True", "WorkersReady")


async def test_one_failing_pod_does_not_keep_the_others_from_being_deleted():
    world = World(replicas=4)
    await world.settle()

    def fail(call):
        if call == "delete a-default-3-0":
            raise ClusterError("500")

    world.cluster.fail = fail
    world.cluster.edit(replicas=1)
    with pytest.raises(ClusterError):
        await world.reconcile()
    ending = [n for n, p in world.cluster.pods.items() if "deletionTimestamp" in p["metadata"]]
    assert sorted(ending) == ["a-default-1-0", "a-default-2-0"]
    assert world.status.worker_groups[0].desired == 1


async def test_a_count_that_could_not_be_written_on_the_pod_is_not_claimed():
    world = World(failurePolicy={"backoffSeconds": 0})
    await world.settle()
    world.cluster.end("a-default-0-0", 1)

    def fail(call):
        if call.startswith("annotate"):
            raise ClusterError("500")

    world.cluster.fail = fail
    with pytest.raises(ClusterError):
        await world.reconcile()
    assert world.status.worker_groups[0].failures == 0
    assert world.pods == ["a-default-0-0"]


@pytest.mark.parametrize(
    ("error", "condition", "expected"),
    [
        pytest.param(
            PodRefused("exceeded quota", reason=Reason.QUOTA_EXCEEDED),
            "WorkersReady",
            "QuotaExceeded",
            id="403-quota",
        ),
        pytest.param(
            PodRefused("unknown field", reason=Reason.POD_REJECTED),
            "Accepted",
            "PodRejected",
            id="422-admission",
        ),
        pytest.param(PodRefused("no fork"), "WorkersReady", "CreateFailed", id="local-cannot-start"),
    ],
)
async def test_a_refused_pod_is_said_asked_once_and_tried_again(error, condition, expected):
    world = World(replicas=50)
    await world.reconcile()
    asked = []

    def fail(call):
        if call.startswith("create"):
            asked.append(call)
            raise error

    world.cluster.fail = fail
    wait = await world.reconcile()
    assert (len(asked), wait) == (1, SETTINGS.observe_interval_s)
    assert world.conditions[condition] == ("False", expected)
    assert world.conditions["Ready"][0] == "False"
    world.cluster.fail = lambda call: None
    await world.settle()
    assert world.conditions["Ready"] == ("True", "WorkersReady")


async def test_probe_p_45_a_foreign_pod_is_neither_adopted_nor_deleted():
    world = World(replicas=3)
    await world.reconcile()
    foreign = {
        "metadata": {
            "name": "a-default-2-0",
            "namespace": "rl",
            "uid": "x",
            "ownerReferences": [{"uid": "other"}],
        },
        "status": {"phase": "Running"},
    }
    world.cluster.pods["a-default-2-0"] = foreign
    await world.settle(4)
    assert world.cluster.pods["a-default-2-0"] is foreign
    assert "deletionTimestamp" not in foreign["metadata"]
    assert world.conditions["WorkersReady"] == ("False", "PodNameTaken")
    assert world.pods == ["a-default-0-0", "a-default-1-0", "a-default-2-0"]


async def test_a_predecessors_pod_that_ends_is_waited_for():
    world = World()
    await world.reconcile()
    world.cluster.pods["a-default-0-0"] = {
        "metadata": {
            "name": "a-default-0-0",
            "namespace": "rl",
            "uid": "x",
            "deletionTimestamp": "2026-01-01T12:01:00Z",
            "ownerReferences": [{"uid": "old"}],
        },
        "status": {"phase": "Running"},
    }
    assert await world.reconcile() == 2.0
    assert world.conditions["WorkersReady"] == ("False", "WorkersNotReady")


async def test_scaling_down_drains_first_and_then_gives_the_reservation_back():
    world = World(replicas=2)
    await world.settle()
    world.streams.facts = replace(
        world.streams.facts, reservations={Slot("default", 0): 200, Slot("default", 1): 100}
    )
    world.cluster.edit(replicas=1)
    await world.reconcile()
    await world.reconcile()
    assert not [call for call in world.streams.calls if call.startswith("release")]
    world.cluster.kubelet()
    await world.reconcile()
    assert [call for call in world.streams.calls if call.startswith("release")] == ["release default-1-0"]
    assert world.pods == ["a-default-0-0"]


async def test_suspend_and_resume():
    world = World(replicas=2)
    await world.settle()
    world.cluster.edit(suspend=True)
    await world.reconcile()
    assert world.conditions["Suspended"] == ("False", "Draining")
    world.cluster.kubelet()
    await world.settle(3)
    assert (world.pods, world.conditions["Suspended"]) == ([], ("True", "Suspended"))
    assert world.streams.facts.end.kind == "suspended"
    world.cluster.edit(suspend=False)
    world.now += 5000
    world.streams.facts = replace(
        world.streams.facts, attempts={Slot("default", 0): 0, Slot("default", 1): 0}
    )
    await world.settle(6)
    assert world.pods == ["a-default-0-1", "a-default-1-1"]
    assert world.streams.facts.end is None
    assert world.status.start_time == "2026-01-01T13:23:20Z"


async def test_the_end_is_latched_before_anything_of_it_is_done():
    world = World(replicas=2)
    await world.settle()
    world.streams.facts = replace(world.streams.facts, frames=10_000)
    before = len(world.cluster.calls)
    assert await world.reconcile() == 0.0
    assert world.cluster.calls[before:] == ["get_job", "list_pods", "write_status"]
    assert world.conditions["Complete"] == ("True", "TotalFramesReached")
    await world.settle(3)
    assert (world.pods, world.streams.facts.end) == (
        [],
        EndMarker("finished", "TotalFramesReached", "10000 of 10000 frames appended"),
    )
    assert await world.reconcile() is None


async def test_probe_p_43_ttl_removes_the_job_and_nothing_comes_back():
    world = World(ttlSecondsAfterFinished=60)
    await world.settle()
    world.streams.facts = replace(world.streams.facts, frames=10_000)
    await world.settle(4)
    world.now += 60
    assert await world.reconcile() is None
    assert world.cluster.document is None
    assert await world.reconcile() is None
    assert (world.pods, world.streams.forgotten) == ([], [KEY])


async def test_a_stream_that_is_away_stops_starts_and_nothing_else():
    world = World(replicas=2)
    await world.settle()
    world.streams.trouble = StreamTrouble(Reason.UNREACHABLE, "redis:6379 cannot be reached")
    world.cluster.pods.pop("a-default-0-0")
    await world.settle(3)
    assert world.pods == ["a-default-1-0"]
    assert world.conditions["RedisReady"] == ("False", "Unreachable")
    world.streams.trouble = None
    await world.settle(3)
    assert world.pods == ["a-default-0-1", "a-default-1-0"] or world.pods == [
        "a-default-0-0",
        "a-default-1-0",
    ]


async def test_a_spec_that_cannot_be_read_is_answered_in_the_status_and_touches_nothing():
    world = World(replicas=1)
    await world.settle()
    world.cluster.edit(replicas=1, colector={})
    before = len(world.cluster.calls)
    assert await world.reconcile() is None
    assert world.cluster.calls[before:] == ["get_job", "write_status"]
    accepted = next(c for c in world.cluster.document["status"]["conditions"] if c["type"] == "Accepted")
    assert (accepted["status"], accepted["reason"]) == ("False", "SpecInvalid")
    assert "spec.colector" in accepted["message"]
    assert world.pods == ["a-default-0-0"]
    writes = world.cluster.status_writes
    await world.reconcile()
    assert world.cluster.status_writes == writes


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda d: d["spec"].update(managedBy="somebody.else/x"), id="managed by somebody else"),
        pytest.param(
            lambda d: d["metadata"].update(deletionTimestamp="2026-01-01T12:00:00Z"), id="being deleted"
        ),
        pytest.param(
            lambda d: (d["spec"].update(managedBy="somebody.else/x"), d["spec"].update(colector=1)),
            id="and unreadable",
        ),
    ],
)
async def test_hands_off_means_no_call_that_changes_anything(change):
    world = World()
    change(world.cluster.document)
    assert await world.reconcile() is None
    assert world.cluster.calls == ["get_job"]
    assert world.streams.calls == []


async def test_pods_carry_what_the_planner_reads_back():
    world = World(replicas=1, failurePolicy={"backoffSeconds": 0})
    await world.settle()
    for attempt in range(2):
        world.cluster.end(f"a-default-0-{attempt}", 1)
        await world.settle(4)
    (pod,) = [p for n, p in world.cluster.pods.items() if n == "a-default-0-2"]
    assert pod["metadata"]["annotations"]["rolloutjob.dev/streak"] == "2"
    assert pod["metadata"]["annotations"]["rolloutjob.dev/slot-failures"] == "2"
    assert pod["metadata"]["ownerReferences"][0]["uid"] == UID
