from __future__ import annotations

import os
import stat
import subprocess
import sys

import pytest

from rollout_cli.errors import UsageError
from rollout_cli.local.run_dir import (
    GatewayRecord,
    RunDir,
    newest_run,
    open_run_dir,
    read_gateway,
    write_gateway,
    write_record,
    write_secret,
)


def start_run(run: RunDir) -> None:
    write_record(run, {})


def test_runs_are_counted_up_and_never_overwritten(tmp_path):
    paths = []
    for _ in range(3):
        with open_run_dir(None, "tiny", base=tmp_path / "runs") as run:
            start_run(run)
            paths.append(run.path)

    assert [p.name for p in paths] == ["tiny-1", "tiny-2", "tiny-3"]


def test_the_count_goes_on_after_the_highest(tmp_path):
    (tmp_path / "tiny-9").mkdir()
    (tmp_path / "tiny-x").mkdir()
    with open_run_dir(None, "tiny", base=tmp_path) as run:
        assert run.path.name == "tiny-10"


@pytest.mark.parametrize("chosen", [True, False], ids=["same directory", "same job"])
def test_two_runs_at_once_are_refused_with_the_owner(tmp_path, chosen):
    directory = tmp_path / "one" if chosen else None
    with (
        open_run_dir(directory, "tiny", base=tmp_path),
        pytest.raises(UsageError, match=rf"process {os.getpid()}"),
        open_run_dir(directory, "tiny", base=tmp_path),
    ):
        pytest.fail("two runs have one directory")


def test_another_job_beside_it_is_fine(tmp_path):
    with open_run_dir(None, "one", base=tmp_path), open_run_dir(None, "two", base=tmp_path) as two:
        assert two.path.name == "two-1"


def test_the_lock_ends_with_its_process_and_leaves_no_file(tmp_path):
    hold = (
        "import sys, os; from pathlib import Path; from rollout_cli.local.run_dir import open_run_dir, write_record\n"
        "with open_run_dir(None, 'tiny', base=Path(sys.argv[1])) as run:\n"
        "    write_record(run, {}); print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", hold, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout.readline() == "held\n"
        with (
            pytest.raises(UsageError, match=f"process {owner.pid}"),
            open_run_dir(None, "tiny", base=tmp_path),
        ):
            pytest.fail("two runs of one job")
        owner.kill()
        owner.wait()

    with open_run_dir(None, "tiny", base=tmp_path) as run:
        start_run(run)
        assert run.path.name == "tiny-2"
    assert not list(tmp_path.glob(".*"))
    assert not list(run.path.glob(".lock"))


def test_a_directory_with_an_earlier_run_is_refused(tmp_path):
    with open_run_dir(tmp_path / "one", "tiny") as run:
        start_run(run)

    with pytest.raises(UsageError, match="holds an earlier run"), open_run_dir(tmp_path / "one", "tiny"):
        pytest.fail("results were about to be overwritten")
    assert run.has_begun


def test_nothing_is_left_of_a_run_that_did_not_begin(tmp_path):
    with open_run_dir(tmp_path / "one", "tiny") as run:
        (run.logs / "redis.log").write_text("no")
    assert list(tmp_path.iterdir()) == []


def test_what_was_there_before_stays(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with open_run_dir(tmp_path, "tiny"):
        pass
    assert [p.name for p in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize(
    "where", ["file/below", "/proc/nowhere", "/dev/null"], ids=["below a file", "in /proc", "a device"]
)
def test_a_directory_that_cannot_be_written_is_named(tmp_path, where):
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(UsageError, match=r"cannot be written.*--run-dir"),
        open_run_dir(tmp_path / where, "tiny"),
    ):
        pytest.fail("nothing can be there")


def test_secrets_are_for_their_owner_only(tmp_path):
    path = tmp_path / "token"
    path.write_text("old, readable")
    write_secret(path, "new")

    assert path.read_text() == "new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_gateway_of_a_run_is_found_again(tmp_path):
    run = RunDir(tmp_path)
    record = GatewayRecord(url="http://127.0.0.1:1", namespace="default", name="tiny", pid=os.getpid())
    write_gateway(run, record)

    assert read_gateway(run) == record


def test_a_run_that_ended_or_was_killed_or_never_was_is_said_so(tmp_path):
    run = RunDir(tmp_path)
    with pytest.raises(UsageError, match="holds no run"):
        read_gateway(run)
    start_run(run)
    with pytest.raises(UsageError, match="has ended"):
        read_gateway(run)
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        gone.wait()
    write_gateway(
        run, GatewayRecord(url="http://127.0.0.1:1", namespace="default", name="tiny", pid=gone.pid)
    )
    with pytest.raises(UsageError, match="was killed"):
        read_gateway(run)
    run.gateway_file.write_text("[]")
    with pytest.raises(UsageError, match="cannot be read"):
        read_gateway(run)


def test_no_run_at_all_is_said_so(tmp_path):
    with pytest.raises(UsageError, match="--run-dir"):
        newest_run(tmp_path)
