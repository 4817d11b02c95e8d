from __future__ import annotations

import asyncio
import signal
import subprocess
import sys

import pytest

from rollout_cli.local import processes
from rollout_cli.local.processes import ProcessInfo, descendants_of, end_process

SCRIPT = """
import asyncio, os, subprocess, sys, time
from rollout_cli.local.processes import adopt_orphans, end_descendants, process_table, reap_orphans

LEAF = "import time; time.sleep(600)"
PARENT = (
    "import subprocess, sys, time\\n"
    "leaf = subprocess.Popen([sys.executable, '-c', %r], stdout=subprocess.DEVNULL)\\n"
    "print(leaf.pid, flush=True); time.sleep(600)"
) % LEAF

async def main():
    adopt_orphans()
    reaper = asyncio.create_task(reap_orphans())
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PARENT, stdout=subprocess.PIPE, start_new_session=True)
    leaf = int(await parent.stdout.readline())
    parent.kill()
    code = await parent.wait()
    while process_table()[leaf].parent != os.getpid():
        await asyncio.sleep(0.01)
    if sys.argv[1] == "reap":
        os.kill(leaf, 9)
        while leaf in process_table():
            await asyncio.sleep(0.01)
        print("reaped", code)
    else:
        killed = await end_descendants()
        print("ended", code, killed == [leaf], leaf in process_table())
    reaper.cancel()

asyncio.run(asyncio.wait_for(main(), 100))
"""


@pytest.mark.parametrize(("what", "answer"), [("reap", "reaped -9"), ("end", "ended -9 True False")])
def test_what_a_killed_child_leaves_behind_is_ours(what, answer):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, what], capture_output=True, text=True, timeout=150, check=False
    )

    assert (done.stdout.strip(), done.stderr) == (answer, "")


def test_descendants_are_found_at_any_depth():
    table = {
        pid: ProcessInfo(pid, parent, session=1, is_zombie=False)
        for pid, parent in [(2, 1), (3, 2), (4, 3), (5, 1), (6, 0)]
    }

    assert [info.pid for info in descendants_of(1, table)] == [2, 5, 3, 4]
    assert descendants_of(4, table) == []


class Undying:
    """A process that the kernel keeps: it waits for a device."""

    pid = 0
    returncode = None

    def __init__(self) -> None:
        self.signals: list[int] = []

    def send_signal(self, number: int) -> None:
        self.signals.append(number)

    async def wait(self) -> int:
        return await asyncio.Future()


@pytest.mark.parametrize(
    ("grace_s", "signals"), [(0.01, [signal.SIGTERM, signal.SIGKILL]), (0, [signal.SIGKILL])]
)
async def test_a_process_that_cannot_be_killed_is_not_waited_for(grace_s, signals, monkeypatch, caplog):
    monkeypatch.setattr(processes, "END_TIMEOUT_S", 0.01)
    process = Undying()
    await asyncio.wait_for(end_process(process, grace_s=grace_s), 60)
    assert process.signals == signals
    assert "did not end within" in caplog.text
