"""Rows of "Processes, memory, threads", "Close" and "Timeouts and failures"; most of them are of parallel modes alone."""

from __future__ import annotations

import functools
import gc
import multiprocessing
import os
import signal
import time
from typing import Any

import torch
from parity_api import ParallelEnv
from parity_odd import Drawing, Failing
from parity_record import error_of
from parity_run import Make, scenario
from parity_tools import acting
from parity_toys import Count

IN_CHILDREN = ("parallel", "direct", "one child")


@scenario("E-136", right_in=("parallel",), ours=("parallel",))
def a_block_is_shared_or_mapped(make: Make) -> Any:
    shared, mapped = make(2, Count), make(2, Count, shared_memory=False, memmap=True)
    for env in (shared, mapped):
        env.reset()
    return [shared.shared_tensordict_parent.is_shared(), mapped.shared_tensordict_parent.is_memmap()]


@scenario("E-138", right_in=("parallel", "direct"), ours=("parallel", "direct"))
def threads_of_parent_and_children(make: Make) -> Any:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        given, told = make(3, Drawing), make(3, Drawing, num_threads=2, num_sub_threads=2)
        found = []
        for env in (given, told):
            env.reset()
            found += [torch.get_num_threads(), list(env.threads())]
            env.close()
        return found
    finally:
        torch.set_num_threads(before)


@scenario("E-139", right_in=("parallel", "direct"), ours=("parallel", "direct"))
def daemons_if_asked_for(make: Make) -> Any:
    before = multiprocessing.active_children()

    def daemons(**more: Any) -> list[bool]:
        env = make(2, Count, **more)
        env.reset()
        found = [child.daemon for child in multiprocessing.active_children() if child not in before]
        env.close()
        return found

    return [daemons(), daemons(daemon=True)]


@scenario("E-145", right_in=("parallel",), ours=("parallel",))
def the_last_reference_closes(make: Make) -> Any:
    before = multiprocessing.active_children()

    def own() -> bool:
        return any(child not in before for child in multiprocessing.active_children())

    env = ParallelEnv(2, Count, mp_start_method="fork")
    env.reset()
    running = own()
    del env
    gc.collect()
    end = time.monotonic() + 60
    while own() and time.monotonic() < end:
        time.sleep(0.05)
    return [running, own()]


def failing(make: Make, how: str) -> Any:
    """The kind of error of a step in which one environment fails."""
    env = make(2, functools.partial(Failing, how), create_env_kwargs=[{"start": 0}, {"start": 1}])
    td = env.step_and_maybe_reset(acting(env.reset(), 1))[1]
    return error_of(lambda: env.step(acting(td, 1)))


@scenario("E-150", right_in=("parallel",), ours=IN_CHILDREN)
def a_step_that_raises(make: Make) -> Any:
    return failing(make, "raise")


@scenario("E-151", right_in=("parallel",), ours=IN_CHILDREN)
def a_process_that_exits(make: Make) -> Any:
    return failing(make, "exit")


@scenario("E-151", right_in=("parallel",), ours=IN_CHILDREN)
def a_process_that_is_killed(make: Make) -> Any:
    return failing(make, "kill")


@scenario("E-152", right_in=("parallel",), ours=IN_CHILDREN)
def a_process_that_died_before_a_call(make: Make) -> Any:
    before = multiprocessing.active_children()
    env = make(2, Count)
    env.reset()
    pids = [child.pid for child in multiprocessing.active_children() if child not in before]
    os.kill(pids[0], signal.SIGKILL)
    os.waitid(os.P_PID, pids[0], os.WEXITED | os.WNOWAIT)
    found = error_of(env.reset)
    running = [child.pid for child in multiprocessing.active_children()]
    return {**found, "left": len(set(pids) & set(running))}
