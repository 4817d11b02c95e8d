"""`cleanupPolicy: Delete`: workers end, keys go, the job goes; and it goes in any case, in time."""

from __future__ import annotations

import pytest
from operator_builders import BASE, NOON, make_pod

from rollout_contract.errors import StreamUnavailable
from rollout_operator.cluster import JobKey
from rollout_operator.kube.cleanup import FINALIZER, Cleanup, Step, step_of
from rollout_operator.times import to_text

KEY = JobKey("rl", "a")


def document(*, deleted_ago=None, finalizers=(), policy="Delete", **spec):
    """A job."""
    metadata = {"namespace": "rl", "name": "a", "uid": "u", "resourceVersion": "5", "generation": 1}
    if deleted_ago is not None:
        metadata["deletionTimestamp"] = to_text(NOON - deleted_ago)
    if finalizers:
        metadata["finalizers"] = list(finalizers)
    return {
        "apiVersion": "rolloutjob.dev/v1alpha1",
        "kind": "RolloutJob",
        "metadata": metadata,
        "spec": {**BASE, "redis": {"cleanupPolicy": policy}, **spec},
    }


class World:
    """A cluster and a data plane that note what they are asked."""

    def __init__(self, found, pods=(), error=None):
        self.found, self.pods, self.error = found, pods, error
        self.did = []
        self.events = []

    async def get_job(self, key):
        return self.found

    async def list_pods(self, key, *, job_uid):
        return self.pods

    async def delete_pod(self, pod):
        self.did.append(f"delete {pod.name}")
        return True

    async def emit(self, key, events, *, job_uid):
        self.events += events

    async def set_finalizers(self, key, finalizers, *, job_uid, resource_version):
        self.did.append(f"finalizers {','.join(finalizers)}")

    async def delete(self, job):
        if self.error:
            raise self.error
        self.did.append("keys")

    async def inner(self, key):
        self.did.append("inner")
        return 7.0

    def run(self):
        return Cleanup(self, self, self.inner, clock=lambda: NOON).reconcile(KEY)


@pytest.mark.parametrize(
    ("found", "step"),
    [
        pytest.param(document(), Step.ADD, id="it is asked for"),
        pytest.param(document(finalizers=[FINALIZER]), Step.NOTHING, id="it is there"),
        pytest.param(document(policy="Expire"), Step.NOTHING, id="it is not asked for"),
        pytest.param(document(managedBy="example.com/other"), Step.NOTHING, id="somebody else's"),
        pytest.param(document(deleted_ago=1, finalizers=[FINALIZER]), Step.CLEAN, id="the end"),
        pytest.param(document(deleted_ago=1, finalizers=["other"]), Step.NOTHING, id="another's finalizer"),
        pytest.param(document(deleted_ago=1), Step.NOTHING, id="too late to add it"),
    ],
)
def test_steps(found, step):
    assert step_of(found) is step


async def test_a_job_without_it_is_passed_on():
    for found in (None, document(policy="Expire")):
        world = World(found)
        assert await world.run() == 7.0
        assert world.did == ["inner"]


async def test_it_is_added_before_anything_is_made():
    world = World(document(finalizers=["other"]))

    assert await world.run() == 0.0
    assert world.did == [f"finalizers other,{FINALIZER}"]


ENDING = document(deleted_ago=10, finalizers=["other", FINALIZER])
LATE = document(deleted_ago=95, finalizers=[FINALIZER])
TOO_LATE = document(deleted_ago=121, finalizers=[FINALIZER])
AWAY = StreamUnavailable("Redis at redis:6379 is away")


@pytest.mark.parametrize(
    ("found", "pods", "error", "did", "is_again"),
    [
        pytest.param(ENDING, [], None, ["keys", "finalizers other"], False, id="nothing runs"),
        pytest.param(
            ENDING, [make_pod(1)], None, ["delete a-default-1-0"], True, id="workers are asked to end"
        ),
        pytest.param(ENDING, [make_pod(1, deleted_ago=3)], None, [], True, id="workers end"),
        pytest.param(
            ENDING,
            [make_pod(1, code=1, deleted_ago=3)],
            None,
            ["keys", "finalizers other"],
            False,
            id="ended",
        ),
        pytest.param(
            LATE,
            [make_pod(1, deleted_ago=90)],
            None,
            ["keys", "finalizers "],
            False,
            id="a worker that hangs",
        ),
        pytest.param(ENDING, [], AWAY, [], True, id="no server"),
        pytest.param(TOO_LATE, [], AWAY, ["finalizers "], False, id="no server for too long"),
    ],
)
async def test_the_end(found, pods, error, did, is_again):
    world = World(found, pods, error)
    again = await world.run()

    assert world.did == did
    assert (again is not None) == is_again
    assert [event.reason for event in world.events] == (["RedisCleanupFailed"] if found is TOO_LATE else [])


async def test_a_spec_that_cannot_be_read_does_not_hold_the_job():
    broken = document(deleted_ago=121, finalizers=[FINALIZER])
    broken["spec"]["collector"] = {}
    world = World(broken)
    await world.run()

    assert world.did == ["finalizers "]
