"""Looks before sleep: short, rare where they are in vain, and never wrong."""

from __future__ import annotations

import threading
import time

from rollout_worker.envs.lookout import Lookout


class Counted:
    """A condition that comes true at a number of looks."""

    def __init__(self, at: int) -> None:
        self.looks, self.at = 0, at

    def __call__(self) -> bool:
        self.looks += 1
        return self.looks >= self.at


def test_what_is_there_is_seen_at_once():
    condition = Counted(1)
    assert Lookout().sees(condition)
    assert condition.looks == 1


def test_a_look_ends():
    begin = time.perf_counter()
    assert not Lookout(0.01).sees(lambda: False)
    assert time.perf_counter() - begin >= 0.01


def test_looks_in_vain_become_rare_and_come_back():
    lookout = Lookout(0.0)
    never = Counted(10**9)
    looked = []
    for number in range(200):
        before = never.looks
        assert not lookout.sees(never)
        looked.append((number, never.looks - before))
    assert never.looks < 2 * 200
    lookout = Lookout(60.0)
    event = threading.Event()
    timer = threading.Timer(0.05, event.set)
    timer.start()
    assert lookout.sees(event.is_set)
    timer.join()
    assert lookout._to_skip == 0


def test_who_gets_its_processor_back_too_late_sleeps_next_time():
    looks = 0

    def comes_late():
        nonlocal looks
        looks += 1
        if looks == 2:
            time.sleep(0.01)
        return looks >= 2

    lookout = Lookout(0.001)
    assert lookout.sees(comes_late)
    assert looks == 2
    never = Counted(10**9)
    assert not lookout.sees(never)
    assert never.looks == 1
