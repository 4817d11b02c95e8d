"""Environments and processes that fail, at every place: a named error soon, and nothing left."""

from __future__ import annotations

import os
import signal
import time

import pytest
import toys

from rollout_contract.errors import ChildLost, EntrypointError, EnvError, LayoutMismatch, StepTimeout
from rollout_worker.envs import open_envs

QUICK_S = 30.0
"""More than any of these may take on a busy machine, and less than `step_timeout_s`; the promise is less."""

IN_TWO_CHILDREN = pytest.mark.parametrize("num_processes", [2], indirect=True)
"""What is of processes alone is tried once."""


def provoke(envs, place: str) -> None:
    """Do what makes an environment of `toys.Fault` come to `place`."""
    envs.reset([1] * envs.num_envs)
    if place != "reset":
        for step in range(4):
            envs.step(0, step)


@pytest.mark.probe("P-09")
@pytest.mark.parametrize("where", ["constructor", "reset", 3])
def test_the_users_own_exception_arrives(open_toys, where):
    place = where if isinstance(where, str) else "step"
    with pytest.raises(EnvError) as caught:
        provoke(open_toys(toys.Fault, 4, kwargs={"where": where, "only": 1}), place)
    error, message = caught.value, str(caught.value)
    assert (error.env_index, error.call) == (1, place)
    assert f"environment 1 (pid {error.pid}) during {place}: ValueError: boom-8" in message
    assert message.rstrip().endswith("ValueError: boom-8")
    assert 'raise ValueError(f"boom-{7 + self.env_index}")' in message


@pytest.mark.probe("P-09")
@pytest.mark.parametrize("where", ["constructor", "reset", 2])
@pytest.mark.usefixtures("all_report")
def test_two_at_once_are_both_named(open_toys, where):
    factories = [toys.Fault] * 4
    kwargs = [{"where": where if index in (1, 3) else "nowhere", "env_index": index} for index in range(4)]
    with pytest.raises(EnvError) as caught:
        provoke(open_toys(factories, 4, kwargs=kwargs), "step" if where == 2 else where)
    assert "environment 1 " in str(caught.value)
    assert "environment 3 " in str(caught.value)
    assert "boom-8" in str(caught.value)
    assert "boom-10" in str(caught.value)


@pytest.mark.probe("P-08")
@pytest.mark.parametrize(
    ("how", "ending"),
    [pytest.param("kill", "SIGKILL (9)", id="killed"), pytest.param("exit", "exit code 3", id="exits")],
)
@pytest.mark.parametrize("where", ["constructor", "reset", 3])
@pytest.mark.parametrize("processes", [2, 4])
def test_a_lost_process_is_named(open_toys, how, ending, where, processes):
    place = where if isinstance(where, str) else "step"
    begin = time.monotonic()
    with pytest.raises(ChildLost) as caught:
        provoke(
            open_toys(toys.Fault, 4, kwargs={"how": how, "where": where, "only": 2}, num_processes=processes),
            place,
        )
    assert time.monotonic() - begin < QUICK_S
    error = caught.value
    assert (error.env_index, error.call) == (2, place)
    assert ending in str(error)
    assert f"pid {error.pid}" in str(error)


def test_a_system_exit_is_an_error_of_its_environment(open_toys):
    with pytest.raises(EnvError, match="SystemExit: 3") as caught:
        provoke(open_toys(toys.Fault, 3, kwargs={"how": "sys.exit", "where": 2, "only": 2}), "step")
    assert caught.value.env_index == 2


@IN_TWO_CHILDREN
@pytest.mark.parametrize("where", ["reset", 2])
def test_an_environment_that_never_answers_is_ended(open_toys, where):
    kwargs = {"how": "sleep", "where": where, "only": 1}
    envs = open_toys(toys.Fault, 3, kwargs=kwargs, step_timeout_s=2.0)
    begin = time.monotonic()
    with pytest.raises(StepTimeout, match="2 s") as caught:
        provoke(envs, "step" if where == 2 else where)
    assert time.monotonic() - begin < QUICK_S
    assert isinstance(caught.value, TimeoutError)
    assert (caught.value.env_index, caught.value.call) == (1, "step" if where == 2 else where)


def test_a_constructor_that_never_returns_is_ended():
    begin = time.monotonic()
    with pytest.raises(StepTimeout) as caught:
        open_envs(
            toys.Fault,
            kwargs={"how": "sleep", "where": "constructor", "only": 1},
            num_envs=2,
            num_steps=1,
            num_processes=2,
            start_method="fork",
            start_timeout_s=4.0,
        )
    assert time.monotonic() - begin < QUICK_S
    assert (caught.value.env_index, caught.value.call) == (1, "constructor")


@pytest.mark.parametrize("num_processes", [1], indirect=True)
def test_slow_steps_are_no_silence(open_toys):
    envs = open_toys(toys.Sleep, 4, 4, kwargs={"t": 0.8}, step_timeout_s=3.0)
    envs.reset()
    envs.step_range(0, 0, 1)
    assert (envs.blocks[0].arrays["next", "observation"][:, 0] == 1).all()


@IN_TWO_CHILDREN
def test_a_stopped_process_counts_as_silent(open_toys):
    envs = open_toys(toys.Count, 2, step_timeout_s=2.0)
    envs.reset()
    os.kill(envs.pids[1], signal.SIGSTOP)
    with pytest.raises(StepTimeout) as caught:
        envs.step(0, 0)
    assert caught.value.env_index == 1


@pytest.mark.parametrize(
    ("what", "says"),
    [
        pytest.param("shape", r"'observation' has shape \[3\]; its spec says \[2\]", id="another shape"),
        pytest.param("broadcast", r"'observation' has shape \[1\]", id="a shape that would broadcast"),
        pytest.param("nan", r"\('next', 'observation'\) holds nan", id="nan"),
        pytest.param("inf", r"\('next', 'observation'\) holds inf", id="infinity"),
        pytest.param("reward nan", r"\('next', 'reward'\) holds nan", id="nan as reward"),
        pytest.param("reward none", r"reward \(one number\)", id="no reward"),
        pytest.param("reward array", r"reward \(one number\)", id="two rewards"),
        pytest.param("four", r"expected are observation", id="four values"),
        pytest.param("nothing", r"step gave \(NoneType\)", id="nothing"),
        pytest.param("text", r"'observation' has shape \[\]", id="a text"),
        pytest.param("complex", r"dtype complex128; its spec says float32", id="complex numbers"),
    ],
)
def test_what_the_spec_does_not_allow_is_refused(open_toys, what, says):
    envs = open_toys(toys.Wrong, 2, kwargs={"what": what})
    envs.reset()
    with pytest.raises(EnvError, match=says) as caught:
        envs.step_range(0, 0, 3)
    assert (caught.value.env_index, caught.value.call) == (0, "step")


def test_non_finite_numbers_are_stored_where_that_is_asked_for(open_toys):
    envs = open_toys(toys.Wrong, 2, kwargs={"what": "inf"}, check_finite=False)
    envs.reset()
    envs.step_range(0, 0, 3)
    assert (envs.blocks[0].arrays["next", "observation"][:, 2, 0] == float("inf")).all()


@pytest.mark.parametrize(
    ("entrypoint", "says"),
    [
        pytest.param("no_such_module:make", "no_such_module", id="no module"),
        pytest.param("toys:no_such_thing", "no_such_thing", id="no attribute"),
        pytest.param("toys:INT64", "INT64", id="nothing to call"),
        pytest.param("broken:make", "SyntaxError", id="syntax error"),
        pytest.param("raising:make", "this module cannot be imported", id="import raises"),
        pytest.param("toys:not_an_env", r"made str; accepted is an EnvBase", id="makes a text"),
    ],
)
def test_an_entrypoint_that_makes_no_environment_is_named(open_toys, tmp_path, monkeypatch, entrypoint, says):
    (tmp_path / "broken.py").write_text("def make(:\n")
    (tmp_path / "raising.py").write_text("raise RuntimeError('this module cannot be imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(EntrypointError, match=says) as caught:
        open_toys(entrypoint, 3)
    if "SyntaxError" in says:
        assert str(caught.value).rstrip().splitlines()[-1].startswith("SyntaxError")
        assert "broken.py" in str(caught.value)
    if entrypoint == "toys:not_an_env":
        assert isinstance(caught.value, TypeError)


def test_environments_that_differ_are_refused(open_toys):
    with pytest.raises(LayoutMismatch, match=r"environment 1's.*\n.*observation 'observation'.*\(3,\)"):
        open_toys([toys.Count, toys.Calls], 2)


def test_an_observation_space_without_a_spec_is_named(open_toys):
    with pytest.raises(EnvError, match="'observation' is NobodysSpace, which has no spec"):
        open_toys(toys.Strange, 1)


@IN_TWO_CHILDREN
@pytest.mark.probe("P-08")
def test_after_a_failure_every_call_says_so_and_a_start_starts(open_toys, collect):
    envs = open_toys(toys.Count, 4)
    envs.reset()
    pids = envs.pids
    os.kill(pids[0], signal.SIGKILL)
    with pytest.raises(ChildLost, match="SIGKILL"):
        envs.step_range(0, 0, 4)
    assert envs.is_closed
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    for call in (lambda: envs.step(0, 0), lambda: envs.reset(), lambda: envs.layout):
        with pytest.raises(ChildLost, match="closed after a failure"):
            call()
    envs.close()
    envs.close()
    envs.start()
    envs.reset()
    assert collect(envs)["observation"][0, :, 0].tolist() == [0, 1, 2, 0]


@IN_TWO_CHILDREN
@pytest.mark.probe("P-08")
@pytest.mark.parametrize("during", ["idle", "step", "reset", "close", "call"])
def test_a_kill_at_any_moment_ends_in_a_named_error(open_toys, during):
    envs = open_toys(toys.Sleep, 2, 4, kwargs={"t": 20.0 if during == "step" else 0.02})
    envs.reset()
    victim = envs.pids[1]
    if during == "step":
        envs.begin_step(0, 0, 4)
    os.kill(victim, signal.SIGKILL)
    calls = {
        "idle": lambda: envs.step(0, 0),
        "step": envs.finish_step,
        "reset": envs.reset,
        "close": envs.close,
        "call": lambda: envs.get_attr("t"),
    }
    if during == "close":
        calls[during]()
    else:
        with pytest.raises(ChildLost, match="SIGKILL") as caught:
            calls[during]()
        assert caught.value.env_index == 1
        assert caught.value.pid == victim
    assert envs.is_closed


def test_a_close_that_raises_is_told_and_still_closes(open_toys, leftovers):
    envs = open_toys(toys.Fault, 3, kwargs={"where": "close", "only": 1})
    with pytest.raises(EnvError, match="boom-8") as caught:
        envs.close()
    assert caught.value.call == "close"
    assert envs.is_closed


@IN_TWO_CHILDREN
def test_a_close_that_hangs_is_bounded(open_toys):
    kwargs = {"how": "sleep", "where": "close", "only": 1}
    envs = open_toys(toys.Fault, 2, kwargs=kwargs, close_timeout_s=0.5)
    begin = time.monotonic()
    with pytest.raises(StepTimeout):
        envs.close()
    assert time.monotonic() - begin < QUICK_S
    assert envs.is_closed


@pytest.mark.row("E-125")
def test_an_unknown_attribute_harms_nobody(open_toys, collect):
    envs = open_toys(toys.Count, 3)
    with pytest.raises(AttributeError, match="nothing_such") as caught:
        envs.get_attr("nothing_such")
    assert "environment 0" in caught.value.__notes__[0]
    with pytest.raises(ValueError, match="inner"):
        envs.call("fail")
    envs.reset()
    assert collect(envs)["observation"][0, :, 0].tolist() == [0, 1, 2, 0]


@pytest.mark.probe("P-10")
@pytest.mark.parametrize("ends_well", [True, False], ids=["closed", "failed"])
def test_many_short_runs_leave_nothing(open_toys, collect, leftovers, num_processes, ends_well):
    before = leftovers()
    counts = []
    for _ in range(6):
        kwargs = {} if ends_well else {"where": 3, "only": 1}
        envs = open_toys(toys.Count if ends_well else toys.Fault, 3, kwargs=kwargs)
        envs.reset()
        if ends_well:
            collect(envs, 0)
            collect(envs, 1)
            envs.close()
        else:
            with pytest.raises(EnvError, match="boom"):
                collect(envs)
        del envs
        counts.append(leftovers())
        assert counts[-1]["children"] <= before["children"]
        assert counts[-1]["shm"] == 0
    assert all(count["descriptors"] <= counts[1]["descriptors"] for count in counts[1:])
    assert all(count["mappings"] <= counts[1]["mappings"] for count in counts[1:])
