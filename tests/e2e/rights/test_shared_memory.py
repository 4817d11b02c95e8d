"""Environments whose batches are larger than a container's own /dev/shm: there is room, or a refusal with both numbers."""

from __future__ import annotations

from typing import Any

import pytest
import small_jobs
from installed import Commands, Refused, merged
from small_jobs import job

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(240),
    pytest.mark.probe("P-48"),
    pytest.mark.xdist_group("platform"),
]

WIDE = """
import gymnasium, numpy

class Wide(gymnasium.Env):
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, size):
        self.observation_space = gymnasium.spaces.Box(-1, 1, (size,), numpy.float32)
        self.seen = numpy.zeros(size, numpy.float32)

    def reset(self, *, seed=None, options=None):
        return self.seen, {}

    def step(self, action):
        return self.seen, 0.0, False, False, {}
"""
ENVS, FRAMES, SIZE = 4, 128, 200_000
NEEDED = (2 * FRAMES + ENVS) * SIZE * 4
"""Bytes of the observations alone, before and after each step, and of those that are acted on next: 208 MB."""


@pytest.fixture(scope="module")
def space(platform: Any) -> Commands:
    """A watched namespace with the wide environment, and a policy for it."""
    found: Commands = platform.a
    code = small_jobs.code(wide=WIDE)
    found.apply(merged(code, {"metadata": {"name": "wide"}}))
    return found


def wide(name: str, *, limit: str, size: int = SIZE, **group: Any) -> dict[str, Any]:
    """One batch of a job whose batches are large."""
    return job(
        name,
        template={"resources": {"limits": {"memory": limit}}},
        group=group,
        env={"entrypoint": "wide:Wide", "kwargs": {"size": size}, "envsPerWorker": ENVS, "processes": 2},
        code={"configMapRef": {"name": "wide"}},
        collector={"framesPerBatch": FRAMES, "totalFrames": FRAMES},
        stream={"maxFrameBytes": "512Mi"},
        failurePolicy={"backoffLimit": 0},
    )


@pytest.mark.parametrize("group", [{}, {"sharedMemory": "256Mi"}], ids=["unset", "enough"])
def test_what_is_needed_is_there(space: Commands, group: dict[str, Any]) -> None:
    name = f"roomy-{len(group)}"
    space.apply(wide(name, limit="1Gi", **group))
    space.condition(name, "Complete", "True", within_s=120)
    assert space.status(name)["progress"]["frames"] == FRAMES
    space("delete", "rolloutjob", name, "--wait=false")


@pytest.mark.parametrize(("limit", "size", "group", "says"), [
    ("1Gi", SIZE, {"sharedMemory": "64Mi"}, "sharedMemory of worker group w allows 67108864 (64Mi)"),
    ("1Gi", SIZE, {"sharedMemory": "90M"}, "sharedMemory of worker group w allows 90000000 (85Mi)"),
    ("500Mi", 6 * SIZE, {}, "memory limit"),
], ids=["64Mi", "90M", "limit"])  # fmt: skip
def test_too_little_is_said_with_both_numbers(
    space: Commands, request: pytest.FixtureRequest, limit: str, size: int, group: dict[str, Any], says: str
) -> None:
    name = f"tight-{request.node.callspec.id.lower()}"
    space.apply(wide(name, limit=limit, size=size, **group))
    message = space.condition(name, "Failed", "True", "ConfigurationError", within_s=120)
    assert says in message
    assert f"needs {str(NEEDED)[:2]}" in message or size != SIZE, message
    assert space.status(name)["lastFailure"]["exitCode"] == 64
    space("delete", "rolloutjob", name, "--wait=false")


@pytest.mark.parametrize(("shared", "limit"), [("2Gi", "1Gi"), ("1025Mi", "1Gi"), ("3G", "2500M")])
def test_more_than_the_memory_limit_is_refused(space: Commands, shared: str, limit: str) -> None:
    with pytest.raises(Refused) as refused:
        space.apply(wide("refused-memory", limit=limit, sharedMemory=shared))
    assert shared in str(refused.value)
    assert limit in str(refused.value)
