"""The queue: one key in flight, many adds are one, waits that grow."""

from __future__ import annotations

import asyncio
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout_operator.cluster import ClusterError, TryLater
from rollout_operator.queue import MAX_RETRY_S, Backlog, WorkQueue

DEADLINE_S = 60.0


# --- the decisions, without a loop


def test_keys_come_in_order_and_many_adds_are_one():
    backlog = Backlog()
    for key in "abab":
        backlog.add(key, 0)
    assert (len(backlog), [backlog.take(0), backlog.take(0), backlog.take(0)]) == (2, ["a", "b", None])


def test_a_key_in_work_is_not_given_out_again_but_afterwards():
    backlog = Backlog()
    backlog.add("a", 0)
    assert backlog.take(0) == "a"
    backlog.add("a", 1)
    backlog.add("a", 1)
    assert backlog.take(1) is None
    backlog.done("a", 2, again_after_s=None)
    assert backlog.take(2) == "a"
    backlog.done("a", 3, again_after_s=None)
    assert backlog.take(3) is None


def test_a_delay_ends_by_time_or_by_an_add():
    backlog = Backlog()
    backlog.add("a", 0)
    backlog.take(0)
    backlog.done("a", 0, again_after_s=10)
    assert (backlog.take(9.9), backlog.next_due()) == (None, 10)
    assert backlog.take(10) == "a"
    backlog.done("a", 10, again_after_s=10)
    backlog.add("a", 12)
    assert backlog.take(12) == "a"
    backlog.done("a", 12, again_after_s=None)
    assert (backlog.take(999), backlog.next_due()) == (None, None)


def test_what_fails_comes_again_later_and_later_up_to_a_bound_and_success_forgets():
    backlog = Backlog()
    backlog.add("a", 0)
    now, waits = 0.0, []
    for _ in range(14):
        assert backlog.take(now) == "a"
        waits.append(backlog.failed("a", now, jitter=1.0))
        now += waits[-1]
    assert waits[:5] == [0.5, 1, 2, 4, 8]
    assert waits[-1] == MAX_RETRY_S
    assert backlog.take(now) == "a"
    backlog.done("a", now, again_after_s=0)
    assert backlog.take(now) == "a"
    assert backlog.failed("a", now, jitter=0.0) == 0.25


def test_a_server_may_ask_for_more_patience():
    backlog = Backlog()
    backlog.add("a", 0)
    backlog.take(0)
    assert backlog.failed("a", 0, jitter=1.0, at_least_s=30) == 30


def test_the_longest_wait_is_known():
    backlog = Backlog()
    backlog.add("a", 5)
    backlog.add("b", 7)
    assert backlog.oldest_wait_s(9) == 4
    backlog.take(9)
    assert backlog.oldest_wait_s(9) == 2
    backlog.take(9)
    assert backlog.oldest_wait_s(9) == 0


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["add", "take", "done", "later", "fail"]), st.sampled_from("abc"), st.floats(0, 3)
    )
)


@given(OPERATIONS)
def test_no_add_is_ever_lost_and_no_key_is_in_work_twice(operations):
    backlog, now, active, owed = Backlog(), 0.0, set(), set()
    for kind, key, passed in operations:
        now += passed
        if kind == "add":
            backlog.add(key, now)
            owed.add(key)
        elif kind == "take":
            taken = backlog.take(now)
            if taken is not None:
                assert taken not in active
                active.add(taken)
                owed.discard(taken)
        elif key in active:
            active.discard(key)
            if kind == "fail":
                backlog.failed(key, now, jitter=0.5)
                owed.add(key)
            else:
                backlog.done(key, now, again_after_s=None if kind == "done" else 1.0)
    for key in list(active):
        backlog.done(key, now, again_after_s=None)
    taken = set()
    while (key := backlog.take(now + 2 * MAX_RETRY_S)) is not None:
        taken.add(key)
    assert owed <= taken


# --- on a loop


async def run_for(queue, until):
    task = asyncio.create_task(queue.run())
    try:
        await asyncio.wait_for(until.wait(), DEADLINE_S)
    finally:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_a_handler_runs_once_at_a_time_per_key_and_side_by_side_for_others():
    running, most, seen, finished = set(), 0, [], asyncio.Event()
    gate = asyncio.Event()

    async def handle(key):
        nonlocal most
        assert key not in running
        running.add(key)
        most = max(most, len(running))
        seen.append(key)
        if len(running) == 2:
            queue.add("a")
            gate.set()
        await gate.wait()
        running.discard(key)
        if seen.count("a") == 2 and not running:
            finished.set()
        return None

    queue = WorkQueue(handle, max_in_flight=2)
    queue.add("a")
    queue.add("b")
    await run_for(queue, finished)
    assert (sorted(seen), most) == (["a", "a", "b"], 2)


async def test_more_keys_than_hands_are_all_served():
    served, finished = set(), asyncio.Event()

    async def handle(key):
        served.add(key)
        await asyncio.sleep(0)
        if len(served) == 20:
            finished.set()
        return None

    queue = WorkQueue(handle, max_in_flight=3)
    for key in range(20):
        queue.add(key)
    assert queue.depth == 20
    assert queue.oldest_wait_s >= 0
    await run_for(queue, finished)
    assert served == set(range(20))


@pytest.mark.parametrize(
    "error", [ClusterError("500"), TryLater("429", retry_after_s=0.01), ValueError("a bug of ours")]
)
async def test_an_error_is_logged_and_tried_again_and_stops_nobody_else(error, caplog):
    tries, finished = [], asyncio.Event()

    async def handle(key):
        tries.append(key)
        if tries.count("bad") == 1 and key == "bad":
            raise error
        if {"good", "bad"} <= set(tries) and tries.count("bad") == 2:
            finished.set()
        return None

    queue = WorkQueue(handle, jitter=lambda: 0.0)
    queue.add("bad")
    queue.add("good")
    await run_for(queue, finished)
    assert str(error) in caplog.text


async def test_a_handler_is_called_again_after_the_time_it_asked_for():
    calls, finished = [], asyncio.Event()

    async def handle(key):
        calls.append(asyncio.get_running_loop().time())
        if len(calls) == 3:
            finished.set()
        return 0.02

    queue = WorkQueue(handle)
    queue.add("a")
    await run_for(queue, finished)
    assert all(later - earlier >= 0.019 for earlier, later in itertools.pairwise(calls))


async def test_stopping_cancels_and_awaits_what_is_in_work():
    started, ended = asyncio.Event(), []

    async def handle(key):
        started.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(key)

    queue = WorkQueue(handle)
    queue.add("a")
    await run_for(queue, started)
    assert ended == ["a"]


@pytest.mark.parametrize("turns", range(8))
async def test_stopping_is_not_lost_where_a_key_comes_at_the_same_moment(turns):
    worked = asyncio.Event()

    async def handle(key):
        worked.set()
        return 60.0  # so that the queue waits with a bound

    queue = WorkQueue(handle)
    task = asyncio.create_task(queue.run())
    queue.add("a")
    await asyncio.wait_for(worked.wait(), DEADLINE_S)
    await asyncio.sleep(0.02)
    queue.add("b")
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task}, timeout=DEADLINE_S)
    assert task.cancelled()
