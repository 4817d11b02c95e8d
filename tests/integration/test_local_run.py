"""Whole local runs: exact frames, exit codes, messages, and nothing left, whatever ends them."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from urllib.parse import urlsplit

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_a_job_with_a_reader_ends_with_exactly_its_frames(job_dir, start_run):
    job_dir.manifest["spec"]["collector"]["totalFrames"] = 1013  # a prime: the last batches are cut
    job_dir.manifest["spec"]["replicas"] = 2

    run = start_run("--learner", "reader.py")

    assert run.wait() == 0, run.stderr
    read = json.loads((run.run_dir / "seen.json").read_text())
    assert read["frames"] == 1013
    entries = [(worker, sequence) for worker, sequence, _ in read["seen"]]
    assert len(set(entries)) >= 1013 // 20
    status = json.loads((run.run_dir / "job.json").read_text())["status"]
    assert status["state"] == "Complete"
    assert status["progress"]["frames"] == 1013
    assert "frames             1,013 (100 % of 1,013)" in run.stdout
    assert run.stderr == ""
    run.assert_nothing_is_left()


def test_the_same_job_with_the_same_seed_gives_the_same_summary_without_a_learner(job_dir, start_run):
    run = start_run("--seed", "7", "--set", "spec.collector.totalFrames=60", "--run-dir", "here")

    assert run.wait() == 0, run.stderr
    job = json.loads((job_dir.path / "here" / "job.json").read_text())
    assert (job["spec"]["seed"], job["status"]["seed"], job["status"]["progress"]["frames"]) == (7, 7, 60)
    again = start_run("--run-dir", "here")
    assert again.wait() == 2
    assert "holds an earlier run" in again.stderr


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["SIGINT", "SIGTERM"]
)
def test_a_signal_ends_everything_in_order(job_dir, start_run, until, number, code):
    del job_dir.manifest["spec"]["collector"]["totalFrames"]
    job_dir.manifest["spec"]["env"]["kwargs"] = {"sleep_s": 0.001}

    run = start_run("--learner", "reader.py")
    run.until_frames(100)
    url = urlsplit(run.said(r"gateway +(http://\S+)"))
    for words in ("-server", "rollout_worker", str(job_dir.path / "reader.py")):
        until(lambda words=words: run.marked(words), what=f"a process of {words}")
    run.process.send_signal(number)

    assert run.wait() == code, run.stderr
    assert "Traceback" not in run.stderr
    run.assert_nothing_is_left()
    with socket.socket() as probe:
        assert probe.connect_ex((url.hostname, url.port)) != 0


def test_a_second_interrupt_does_not_wait_for_anybody(job_dir, start_run, until):
    del job_dir.manifest["spec"]["collector"]["totalFrames"]
    job_dir.write(
        "deaf.py",
        "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('deaf', flush=True)\ntime.sleep(600)\n",
    )

    def interrupted_twice() -> float:
        """Seconds from the second to the end."""
        run = start_run("--learner", "deaf.py")
        until(lambda: "deaf" in run.learner_log(), what="the learner's first word")
        run.process.send_signal(signal.SIGINT)
        run.said(r"(SIGINT: ending in order)")
        begin = time.monotonic()
        run.process.send_signal(signal.SIGINT)
        assert run.wait() == 130, run.stderr
        took = time.monotonic() - begin
        run.assert_nothing_is_left()
        return took

    # The deaf learner has 10 s. Where others compute, the end itself may last: the quickest of three tells.
    assert any(interrupted_twice() < 8 for _ in range(3))


@pytest.mark.parametrize("moment", ["directory made", "run directory", "Pending"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_a_signal_at_any_moment_of_the_start_leaves_nothing(job_dir, start_run, until, moment, number):
    del job_dir.manifest["spec"]["collector"]["totalFrames"]
    run = start_run("--learner", "reader.py")
    if moment == "directory made":
        until(lambda: list(job_dir.path.glob("runs/*/logs")) or run.process.poll() is not None)
    else:
        run.said(f"({moment})")
    run.process.send_signal(number)

    assert run.wait() == 128 + number, run.stderr
    run.assert_nothing_is_left()


def test_a_run_whose_output_nobody_takes_ends_too(job_dir, start_run, until):
    """It hangs where it writes its first lines; the first signal has a bound, the second a short one."""
    del job_dir.manifest["spec"]["collector"]["totalFrames"]
    read, write = os.pipe()
    os.set_blocking(write, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(write, b"x" * 4096)
    os.set_blocking(write, True)
    try:
        run = start_run("--learner", "reader.py", stdout=write)
        until(lambda: list(job_dir.path.glob("runs/*/run.json")), what="the start")
        run.process.send_signal(signal.SIGTERM)
        run.process.send_signal(signal.SIGINT)
        assert run.wait() in (130, 143), run.stderr  # which of the two comes first is the kernel's matter
    finally:
        os.close(read)
        os.close(write)
    assert "did not end in time and is cut short" in run.stderr
    assert "Task-" in next(job_dir.path.glob("runs/*/logs/run.log")).read_text()
    until(lambda: not run.marked(), what="the end of all processes")


def test_killing_the_run_takes_everything_with_it(job_dir, start_run, until):
    del job_dir.manifest["spec"]["collector"]["totalFrames"]

    run = start_run("--learner", "reader.py")
    run.until_frames(40)
    run.process.kill()
    run.process.wait()

    until(lambda: not run.marked(), what="the end of all processes")
    second = start_run("--set", "spec.collector.totalFrames=20")
    assert second.wait() == 0, second.stderr


def test_two_runs_of_one_job_at_once_are_refused(job_dir, start_run):
    del job_dir.manifest["spec"]["collector"]["totalFrames"]
    run = start_run()
    run.said(r"(gateway)")
    second = start_run()

    assert second.wait() == 2
    assert f"job tiny is running already (process {run.process.pid})" in second.stderr


@pytest.mark.parametrize(
    ("changes", "policy", "words", "lines"),
    [
        pytest.param(
            {"kwargs": {"fault": "raise", "at": 30}},
            None,
            "ValueError: the pole is made of glass",
            1,
            id="env raises",
        ),
        pytest.param({"kwargs": {"fault": "kill", "at": 30}}, None, "SIGKILL", 40, id="env is killed"),
        pytest.param(
            {"entrypoint": "counting:Countin"}, None, "counting:Counting", 40, id="no such environment"
        ),
        pytest.param({"entrypoint": "nowhere:Env"}, None, "nowhere", 3, id="no such module"),
        pytest.param({}, "def make_policy(:\n", "SyntaxError", 1, id="policy is no program"),
        pytest.param(
            {},
            "def make_policy(o, a):\n    def act(observation):\n        raise KeyError('no such layer')\n    return act\n",
            "KeyError: 'no such layer'",
            1,
            id="policy raises",
        ),
    ],
)
def test_a_job_that_fails_ends_with_the_cause_last(job_dir, start_run, changes, policy, words, lines):
    job_dir.manifest["spec"]["env"] |= changes
    if policy is not None:
        job_dir.write("policy.py", policy)

    run = start_run("--learner", "reader.py")

    assert run.wait() == 1, run.stdout
    assert "the job failed" in run.stderr
    assert "worker default-0" in run.stderr
    assert words in "\n".join(run.stderr.splitlines()[-lines:])
    assert "default/tiny: Failed" in run.stdout
    run.assert_nothing_is_left()


def test_a_learner_that_is_killed_is_started_again_and_loses_nothing(job_dir, start_run, until):
    job_dir.manifest["spec"]["collector"]["totalFrames"] = 600
    job_dir.manifest["spec"]["failurePolicy"] = {"backoffLimit": 5, "backoffSeconds": 0}
    job_dir.manifest["spec"]["stream"] |= {"groups": ["learner"], "claimIdleSeconds": 1}
    hold = job_dir.hold(100, max_unacked=200)

    run = start_run("--learner", "reader.py")
    until(lambda: "holds after 100" in run.learner_log(), what="a learner in the midst of its work")
    (learner,) = run.marked(str(job_dir.path / "reader.py"))
    os.kill(learner, signal.SIGKILL)
    hold.unlink()

    assert run.wait() == 0, run.stderr
    assert "the learner ended with signal SIGKILL" in run.stdout
    assert "1 of the learner" in run.stdout
    job = json.loads((run.run_dir / "job.json").read_text())
    assert job["status"]["progress"]["frames"] == 600


def test_a_learner_that_raises_is_given_up_with_its_traceback_last(job_dir, start_run):
    job_dir.write("learner.py", "def learn():\n    raise RuntimeError('my loss is NaN')\nlearn()\n")
    job_dir.manifest["spec"]["failurePolicy"]["backoffLimit"] = 1

    run = start_run("--learner", "learner.py")

    assert run.wait() == 1
    assert run.stderr.rstrip().endswith("RuntimeError: my loss is NaN")
    assert "failurePolicy.backoffLimit is 1" in run.stderr
    run.assert_nothing_is_left()


def test_a_learner_that_has_enough_completes_the_job(job_dir, start_run):
    del job_dir.manifest["spec"]["collector"]["totalFrames"]
    job_dir.write(
        "learner.py",
        "import json, os, pathlib\nfrom rollout_stream import RolloutStream\n"
        "for n, batch in enumerate(RolloutStream.connect().batches(group='learner')):\n"
        "    batch.ack()\n    if n == 3: break\n"
        "pathlib.Path(os.environ['ROLLOUT_RUN_DIR'], 'result.json').write_text(json.dumps({'mean_return': 5}))\n",
    )

    run = start_run("--learner", "learner.py")

    assert run.wait() == 0, run.stderr
    assert "the job is completed with the frames that it has" in run.stdout
    assert "return             5.00" in run.stdout
    run.assert_nothing_is_left()


def test_a_job_that_is_deleted_ends_the_run_and_keeps_its_logs(job_dir, start_run):
    del job_dir.manifest["spec"]["collector"]["totalFrames"]
    run = start_run("--no-auth")
    run.until_frames(20)
    path = run.said(r"try +curl (\S+)/status")
    subprocess.run(["curl", "-sS", "-X", "DELETE", path], capture_output=True, check=True)

    assert run.wait() == 1
    assert "the job was deleted" in run.stderr
    assert (run.run_dir / "logs" / "tiny-default-0-0.log").exists()
    run.assert_nothing_is_left()


def test_a_server_that_is_killed_comes_back_and_no_frame_is_lost(job_dir, start_run):
    job_dir.manifest["spec"]["collector"]["totalFrames"] = 2000
    job_dir.manifest["spec"]["env"]["kwargs"] = {"sleep_s": 0.002}

    hold = job_dir.hold(600, max_unacked=600)

    run = start_run("--learner", "reader.py")
    run.until_frames(300)
    (server,) = run.marked("valkey-server")
    os.kill(server, signal.SIGKILL)
    hold.unlink()

    assert run.wait() == 0, run.stderr
    assert "Valkey ended with signal SIGKILL; started again (1)" in run.stdout
    assert json.loads((run.run_dir / "seen.json").read_text())["frames"] == 2000
    run.assert_nothing_is_left()


@pytest.mark.probe("P-55")
def test_a_running_job_answers_and_every_printed_command_works(job_dir, start_run, until):
    del job_dir.manifest["spec"]["collector"]["totalFrames"]
    job_dir.manifest["spec"]["env"]["kwargs"] = {"sleep_s": 0.001}
    run = start_run("--learner", "reader.py")
    run.until_frames(60)

    def ctl(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "rollout_cli", *arguments],
            cwd=job_dir.path,
            capture_output=True,
            text=True,
            timeout=150,
            check=False,
        )

    command = shlex.split(run.said(r"try +(curl .+)"))

    def answer() -> dict:
        done = subprocess.run([*command, "-sS"], capture_output=True, text=True, check=True)
        return json.loads(done.stdout)

    assert answer()["name"] == "tiny"
    until(lambda: (answer()["live"] or {"progress": {"frames": 0}})["progress"]["frames"] >= 60)
    without = subprocess.run(
        ["curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", command[-1]],
        capture_output=True,
        text=True,
        check=True,
    )
    assert without.stdout == "401"
    token = command[2].removeprefix("Authorization: Bearer ")
    assert (run.run_dir / "token").read_text().strip() == token
    assert (run.run_dir / "token").stat().st_mode & 0o777 == 0o600

    listed = ctl("get")
    assert "tiny" in listed.stdout, listed.stderr
    assert "namespace default (run)" in listed.stderr
    shown = ctl("get", "tiny")
    assert "default-0" in shown.stdout, shown.stderr
    assert json.loads(ctl("get", "tiny", "-o", "json").stdout)["metadata"]["name"] == "tiny"
    assert ctl("seed", "tiny").stdout == "seed 1, epoch 0\n"
    assert ctl("seed", "tiny", "11").stdout == "seed 11, epoch 1\n"
    assert "learner" in ctl("logs").stdout
    assert ctl("logs", "default-0").returncode == 0
    assert "VERSION" in ctl("weights", "tiny").stdout
    missing = ctl("get", "other")
    assert (missing.returncode, "404" in missing.stderr) == (1, True)

    assert ctl("suspend", "tiny").returncode == 0
    until(lambda: "tiny: Suspended" in ctl("get", "tiny").stdout, what="Suspended")
    assert ctl("resume", "tiny").returncode == 0
    until(lambda: "tiny: Running" in ctl("get", "tiny").stdout, what="Running")
    assert ctl("complete", "tiny").returncode == 0

    assert run.wait() == 0, run.stderr
    run.assert_nothing_is_left()


def test_weights_go_up_and_come_down(job_dir, start_run, until):
    from rollout_stream.codec import state_bytes

    del job_dir.manifest["spec"]["collector"]["totalFrames"]
    run = start_run("--learner", "reader.py")
    run.until_frames(20)

    def ctl(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "rollout_cli", "weights", "tiny", *arguments],
            cwd=job_dir.path,
            capture_output=True,
            text=True,
            timeout=150,
            check=False,
        )

    import torch

    good, bad = state_bytes({"bias": torch.ones(2)}), state_bytes({"bias": torch.ones(3)})
    (job_dir.path / "good").write_bytes(good)
    (job_dir.path / "bad").write_bytes(bad)
    up = ctl("--put", "good")
    assert up.stdout == f"published version 1 ({len(good)} bytes)\n", up.stderr
    refused = ctl("--put", "bad")
    assert (refused.returncode, "bias" in refused.stderr) == (1, True)
    assert ctl("--get", "latest", "--file", "back").returncode == 0
    assert (job_dir.path / "back").read_bytes() == good
    until(lambda: ctl().stdout.splitlines()[-1].startswith("1 "), what="version 1 in the list")


def test_a_server_of_ones_own(job_dir, start_run, tmp_path):
    import asyncio

    from rollout_cli.local.redis import EmbeddedRedis
    from rollout_cli.local.redis_program import find_server
    from rollout_cli.local.run_dir import RunDir

    hold = job_dir.hold(20, max_unacked=40)

    async def with_server() -> tuple[int, str]:
        own = RunDir(tmp_path / "server")
        own.logs.mkdir(parents=True)
        server = EmbeddedRedis(find_server(), own)
        await server.start()
        try:
            url = f"redis://:{server.password}@127.0.0.1:{server.port}"
            run = start_run("--redis", url, "--learner", "reader.py")
            await asyncio.to_thread(run.until_frames, 20)
            second = start_run("--redis", url, "--run-dir", "elsewhere")
            assert await asyncio.to_thread(second.wait) == 2
            assert "is running on 127.0.0.1" in second.stderr
            hold.unlink()
            code = await asyncio.to_thread(run.wait)
            written = run.stdout + run.stderr + (run.run_dir / "run.json").read_text()
            assert server.password not in written
            assert server.process is not None
            assert server.process.returncode is None
            return code, run.stderr
        finally:
            await server.stop()

    code, stderr = asyncio.run(with_server())
    assert code == 0, stderr
