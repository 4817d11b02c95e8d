"""News of pods are gathered: the first soon, the many after it together."""

from __future__ import annotations

import asyncio
import time

from rollout_operator.cluster import JobKey
from rollout_operator.kube.feed import Feed

A, B = JobKey("rl", "a"), JobKey("rl", "b")


async def test_many_become_few(until):
    found = []
    feed = Feed(settle_s=0.01, every_s=0.1)
    feed.open(found.append)
    started = time.monotonic()
    for _ in range(50):
        feed.pods_changed(A)
        feed.pods_changed(B)
        await asyncio.sleep(0.005)
    feed.pods_changed(A)
    await until(lambda: not feed._gathering)

    most = (time.monotonic() - started) / 0.1 + 2
    assert 2 <= found.count(A) <= most
    assert 2 <= found.count(B) <= most


async def test_a_jobs_own_change_does_not_wait():
    found = []
    feed = Feed()
    feed.job_changed(A)
    feed.open(found.append)
    feed.job_changed(A)
    feed.job_changed(A)

    assert found == [A, A]


async def test_it_remembers_only_the_last_moment(until):
    feed = Feed(settle_s=0.0, every_s=0.01)
    for number in range(100):
        feed.pods_changed(JobKey("rl", f"j{number}"))
    await until(lambda: not feed._gathering)
    await asyncio.sleep(0.02)
    feed.pods_changed(A)
    await until(lambda: not feed._gathering)

    assert list(feed._passed) == [A]
