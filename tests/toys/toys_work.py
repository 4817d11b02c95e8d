"""What a batch is put through wherever it is started: frames, a lost process, a second start, and nothing left."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import torch
import toys

from rollout_contract.errors import ChildLost, ConfigurationError
from rollout_worker.envs import ParallelEnv, open_envs

METHODS = ("spawn", "fork", "forkserver")


def work(start_method: str, factory: Any = "toys:Count", **more: Any) -> None:
    """Raises AssertionError where something is not as it is anywhere else."""
    more = {"num_processes": 2, "auto_wrap_envs": False, **more}
    env = ParallelEnv(4, factory, mp_start_method=start_method, **more)
    frames = env.rollout(5, policy=still, break_when_any_done=False)
    assert frames["next", "observation"].squeeze(-1).tolist() == [[1, 2, 3, 1, 2]] * 4
    os.kill(env.vector.pids[1], signal.SIGKILL)
    assert "SIGKILL (9)" in refused(env.reset)
    assert env.reset()["observation"].tolist() == [[0]] * 4
    env.close()
    assert multiprocessing.active_children() == []


def still(td: Any) -> Any:
    """A policy that takes action 0."""
    return td.set("action", torch.zeros(4, dtype=torch.int64))


def all_methods() -> None:
    for start_method in METHODS:
        work(start_method)
        print(start_method, "fine", flush=True)


def in_threads() -> None:
    """Each start method from a thread of its own, one after the other and then at once."""
    import threading

    def run(*methods: str) -> None:
        failures: list[BaseException] = []

        def one(method: str) -> None:
            try:
                work(method)
                print(method, "fine", flush=True)
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=one, args=(method,)) for method in methods]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]

    for start_method in METHODS:
        run(start_method)


def in_daemons() -> None:
    """Each start method inside a daemon process."""
    for start_method in METHODS:
        daemon = multiprocessing.get_context("fork").Process(target=work, args=(start_method,), daemon=True)
        daemon.start()
        daemon.join()
        assert daemon.exitcode == 0, start_method
        print(start_method, "fine", flush=True)


def as_first_process() -> None:
    assert os.getpid() == 1
    all_methods()


def on_a_read_only_root() -> None:
    assert os.statvfs("/").f_flag & os.ST_RDONLY
    for start_method in ("spawn", "fork"):
        work(start_method)
        print(start_method, "fine", flush=True)
    assert "TMPDIR" in refused(lambda: work("forkserver"))
    os.environ["TMPDIR"], tempfile.tempdir = "/dev/shm", None
    work("forkserver")
    print("forkserver fine", flush=True)


def with_little_shared_memory() -> None:
    """64 MiB of /dev/shm, most of it taken by others; with and without memory files that have no name."""
    size = os.statvfs("/dev/shm")
    assert size.f_blocks * size.f_frsize == 64 * 2**20
    with open("/dev/shm/others", "wb") as file:
        file.write(b"x" * (48 * 2**20))
    open_big(num_steps=24)  # anonymous memory is not of /dev/shm
    for refusal in (PermissionError, AttributeError):
        os.memfd_create = raising(refusal)
        open_big(num_steps=2)
        told = refused(lambda: open_big(num_steps=24))
        needed, available = (int(word) for word in told.partition("needs ")[2].split() if word.isdigit())
        assert needed >= 4 * 24 * 2 * 2**18, told
        assert 15 * 2**20 <= available <= 16 * 2**20, told
        assert "/dev/shm" in told, told
    assert os.listdir("/dev/shm") == ["others"]
    print("fine", flush=True)


def raising(kind: type[Exception]) -> Callable[..., Any]:
    def refuse(*_: Any) -> Any:
        raise kind("no such files here")

    return refuse


def open_big(num_steps: int) -> None:
    """Frames of 256 KiB: 2 MiB for each step of four environments, root and next."""
    with open_envs(
        "toys_work:Wide", num_envs=4, num_steps=num_steps, num_processes=2, start_method="fork"
    ) as envs:
        envs.reset()
        envs.begin(0)
        envs.step_range(0, 0, num_steps)


def refused(action: Callable[[], Any]) -> str:
    try:
        action()
    except (ChildLost, ConfigurationError) as error:
        return str(error)
    raise AssertionError("it was not refused")


def wide() -> Any:
    import toys

    class Wide(toys.Big):
        SHAPE = (256, 256, 4)

    return Wide()


Wide = wide

if __name__ == "__main__":
    {
        each.__name__: each
        for each in (in_threads, in_daemons, as_first_process, on_a_read_only_root, with_little_shared_memory)
    }[sys.argv[1]]()


class Threads(toys.Count):
    """Says how many threads numeric libraries may use here."""

    def count(self) -> list[int]:
        import torch

        names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
        return [torch.get_num_threads(), *(int(os.environ[name]) for name in names)]


class Greedy(Threads):
    """Takes all the threads that it can get, when it is made."""

    def __init__(self) -> None:
        import torch

        super().__init__()
        torch.set_num_threads(7)
