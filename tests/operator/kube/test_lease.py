"""Who may write: one at a time, handed over in order, taken over when the holder is dead, and never on a guess."""

from __future__ import annotations

import asyncio

import pytest
from fake_api import Fault

from rollout_operator.kube.gate import Gate, WritesHeld
from rollout_operator.kube.lease import Lease, LeaseLost, LeaseTimes

QUICK = LeaseTimes(duration_s=30, renew_every_s=0.02, retry_every_s=0.02, validity_s=18.0, timeout_s=30.0)


@pytest.fixture
def lease(api, clock):
    def make(identity, times=QUICK):
        return Lease(api, namespace="ops", name="l", identity=identity, times=times, clock=clock)

    return make


def spec_of(server):
    return server.named("leases")["l"]["spec"]


async def test_the_first_has_it_and_the_second_waits(server, lease, running, until):
    first, second = lease("one"), lease("two")
    await first.acquire()
    waiting = running(second.acquire())
    await until(lambda: second.holder == "one")

    assert first.is_held
    assert not second.is_held
    assert second.reason() == "the lease ops/l is held by one"
    await first.release()
    await asyncio.wait_for(waiting, 60)
    assert (spec_of(server)["holderIdentity"], spec_of(server)["leaseTransitions"]) == ("two", 1)
    assert not first.is_held
    await first.release()
    assert spec_of(server)["holderIdentity"] == "two"


async def test_a_dead_holder_is_waited_out_by_our_own_clock(server, lease, clock, running, until):
    await lease("one").acquire()
    second = lease("two")
    waiting = running(second.acquire())
    await until(lambda: second.holder == "one")
    clock.now += 29
    await until(lambda: server.count("GET", "/leases/l") > 5)
    assert not waiting.done()

    clock.now += 2
    await asyncio.wait_for(waiting, 60)
    assert second.is_held


async def test_a_holder_that_renews_is_not_replaced(server, lease, clock, running, until):
    first, second = lease("one"), lease("two")
    await first.acquire()
    keeping, waiting = running(first.keep()), running(second.acquire())
    for _ in range(5):
        clock.now += 20
        seen = server.count("PUT", "/leases/l")
        await until(lambda seen=seen: server.count("PUT", "/leases/l") > seen + 1)
        asked = server.count("GET", "/leases/l")
        await until(lambda asked=asked: server.count("GET", "/leases/l") > asked + 1)

    assert not waiting.done()
    assert not keeping.done()


async def test_the_same_pod_goes_on_at_once(server, lease):
    await lease("one").acquire()
    again = lease("one")
    await asyncio.wait_for(again.acquire(), 60)

    assert spec_of(server)["leaseTransitions"] == 0


async def test_two_that_are_equally_fast(server, lease):
    both = [lease("one"), lease("two")]
    took = await asyncio.gather(*(one._try_to_take() for one in both))

    assert sorted(took) == [False, True]


async def test_a_lease_that_was_taken_ends_the_holder(server, lease):
    first = lease("one")
    await first.acquire()
    server.edit("leases", "ops", "l", lambda document: document["spec"].update(holderIdentity="thief"))

    with pytest.raises(LeaseLost, match="thief"):
        await asyncio.wait_for(first.keep(), 60)
    assert not first.is_held


async def test_an_answer_that_was_lost_is_no_loss(server, lease, running, until):
    first = lease("one")
    await first.acquire()
    server.faults.append(Fault("PUT", "/leases/l", 504, {}, after=True))
    keeping = running(first.keep())

    await until(lambda: server.count("PUT", "/leases/l") > 4)
    assert not keeping.done()
    assert first.is_held


async def test_nothing_is_written_while_it_cannot_be_renewed(server, lease, clock, running, until):
    first = lease("one")
    gate = Gate([first.reason])
    await first.acquire()
    gate.require()
    server.faults.append(Fault("PUT", "/leases/l", 500, {}, times=10**6))
    keeping = running(first.keep())
    clock.now += 19
    await until(lambda: server.count("PUT", "/leases/l") > 2)

    with pytest.raises(WritesHeld, match="not ours"):
        gate.require()
    assert not keeping.done()
    server.faults.clear()
    await until(lambda: first.is_held, "the renewal")
    assert gate.reason == ""


async def test_a_lease_that_was_deleted_is_made_again(server, lease, running, until):
    first = lease("one")
    await first.acquire()
    server.remove("leases", "ops", "l")
    running(first.keep())

    await until(lambda: "l" in server.named("leases"), "the lease")
    assert spec_of(server)["holderIdentity"] == "one"


async def test_release_is_best_effort(server, lease):
    first = lease("one")
    await first.acquire()
    server.faults.append(Fault("PUT", "/leases/l", 500, {}, times=9))

    await first.release()
    assert not first.is_held


async def test_release_without_the_right_to_it_asks_once(server, lease):
    first = lease("one")
    await first.acquire()
    server.faults.append(Fault("GET", "/leases/l", 403, {}, times=9))

    await first.release()
    assert server.faults[-1].times == 8


async def test_a_server_that_refuses_is_asked_again(server, lease):
    server.faults.append(Fault("GET", "/leases/l", 403, {}, times=2))

    await asyncio.wait_for(lease("one").acquire(), 60)


def test_what_is_in_flight_ends_before_another_may_start():
    from rollout_operator.kube.api_client import ANSWER_TIMEOUT_S
    from rollout_operator.kube.lease import DEFAULT_TIMES

    assert DEFAULT_TIMES.validity_s + ANSWER_TIMEOUT_S < DEFAULT_TIMES.duration_s
    assert DEFAULT_TIMES.renew_every_s + DEFAULT_TIMES.timeout_s < DEFAULT_TIMES.validity_s
