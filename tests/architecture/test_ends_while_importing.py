"""SIGTERM while a program still imports: as the first process of a container it would be ignored without a handler."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

STALLED = "import time\nprint('importing', flush=True)\nwhile True: time.sleep(60)\n"


@pytest.mark.parametrize(
    ("program", "imports", "code"),
    [
        pytest.param("rollout_operator", "kopf", 0, id="operator"),
        pytest.param("rollout_api", "uvloop", 0, id="gateway"),
        pytest.param("rollout_worker", "pydantic", 143, id="worker"),
    ],
)
def test_sigterm_while_importing(tmp_path, program, imports, code):
    (tmp_path / f"{imports}.py").write_text(STALLED)
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    process = subprocess.Popen(
        [sys.executable, "-m", program],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "importing\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == code
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
