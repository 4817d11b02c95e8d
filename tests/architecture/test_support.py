"""What tests of several packages go by does what they take it to do."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
from process_ends import end, is_gone

DEAF = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print(child.pid, flush=True)
time.sleep(600)
"""


def test_a_process_that_does_not_end_is_told_and_nothing_of_it_is_left():
    process = subprocess.Popen([sys.executable, "-c", DEAF], stdout=subprocess.PIPE, text=True)
    child = int(process.stdout.readline())
    with pytest.raises(AssertionError, match=rf"(?s)alive were.*{process.pid} .*{child} .*its last words"):
        end(process, within_s=0.1, said=lambda: "its last words")
    process.stdout.close()
    assert process.returncode == -signal.SIGKILL
    assert is_gone(child)


def test_a_process_that_ends_gives_its_code():
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    assert end(process) == end(process) == -signal.SIGTERM
