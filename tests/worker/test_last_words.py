"""A worker's end: the exit code of each error, and a message whose head says what happened."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from rollout_contract import podenv
from rollout_contract.errors import (
    EntrypointError,
    EnvError,
    LayoutMismatch,
    PolicyError,
    SpecError,
    StateLost,
    StreamUnavailable,
    WriterFenced,
)
from rollout_contract.exits import ExitCode
from rollout_worker import main as program
from rollout_worker.last_words import MAX_BYTES, exit_code_of, leave, text_of


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (EntrypointError("no module"), ExitCode.CONFIGURATION),
        (
            LayoutMismatch("data", ["observation: expected float32[3], found float32[4]"]),
            ExitCode.CONFIGURATION,
        ),
        (SpecError([]), ExitCode.USAGE),
        (StateLost("gone"), ExitCode.STATE_LOST),
        (StreamUnavailable("away"), ExitCode.STREAM_LOST),
        (WriterFenced("newer"), ExitCode.FENCED),
        (EnvError("boom", env_index=3), ExitCode.ERROR),
        (PolicyError("boom"), ExitCode.ERROR),
        (RuntimeError("anything"), ExitCode.ERROR),
        (MemoryError(), ExitCode.ERROR),
    ],
    ids=lambda value: type(value).__name__,
)
def test_exit_codes(error: BaseException, code: ExitCode) -> None:
    assert exit_code_of(error) is code


def failing() -> None:
    raise ValueError("boom-7 with s3cr3t-probe-42 inside")


def test_the_head_says_what_happened() -> None:
    with pytest.raises(ValueError, match="boom-7") as caught:
        failing()
    text = text_of(caught.value, worker="cpu-3-2")
    assert text.startswith("ValueError: boom-7")
    assert "worker cpu-3-2" in text
    assert "in failing: raise ValueError" in text


@pytest.mark.probe("P-54")
def test_secrets_are_struck_out() -> None:
    with pytest.raises(ValueError, match="boom-7") as caught:
        failing()
    assert "s3cr3t" not in text_of(caught.value, worker="w", secrets=("s3cr3t-probe-42", "")).split("\n")[0]


def test_a_long_message_keeps_its_head() -> None:
    text = text_of(ValueError("é" * 10_000), worker="w")
    assert text.startswith("ValueError: éé")
    assert len(text.encode()) <= MAX_BYTES


def test_a_path_that_cannot_be_written_hides_nothing(tmp_path: Path) -> None:
    leave(str(tmp_path / "no" / "such"), "text")
    leave(None, "text")
    leave(str(tmp_path / "log"), "text")
    assert (tmp_path / "log").read_text() == "text"


@pytest.mark.probe("P-41")
def test_arguments_that_would_do_nothing_are_refused(monkeypatch, tmp_path: Path):
    document = SimpleNamespace(worker="cpu-0")
    monkeypatch.setattr(program, "_set_up_logs", lambda *_: None)
    monkeypatch.setattr(program.podenv, "from_env", lambda _: document)
    monkeypatch.setenv(podenv.TERMINATION_LOG, str(tmp_path / "words"))

    assert program.main(["--fast", "--token=s3cr3t"]) == ExitCode.CONFIGURATION

    words = (tmp_path / "words").read_text()
    assert words.startswith("ConfigurationError: the worker takes no arguments, 2 came")
    assert "Remove args" in words.splitlines()[0]
    assert "s3cr3t" not in words
