"""The pure parts under the vector env: layout, descriptions, factories, memory, commands, fault messages, processors."""

from __future__ import annotations

import functools
import os
import threading
from math import prod

import pytest
import toys
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from rollout_contract.errors import ChildLost, ConfigurationError, EntrypointError, EnvError, StepTimeout
from rollout_worker.envs import GymEnv, Leaf, resources
from rollout_worker.envs.commands import Call, Close, Cut, Remap, Reset, Seed, Step, decode, encode
from rollout_worker.envs.crew.settings import shares
from rollout_worker.envs.describe import describe_gymnasium, differences
from rollout_worker.envs.factory import Entrypoint, make, recipes_of
from rollout_worker.envs.faults import Cause, EnvFault, ending_of, error_of
from rollout_worker.envs.layout import block_layout, place
from rollout_worker.envs.memory import available_bytes, mapped, memory_file
from rollout_worker.envs.progress import Doing, Progress, read_progress

LEAVES = st.builds(
    Leaf,
    key=st.tuples(st.text(min_size=1, max_size=3)),
    dtype=st.sampled_from(["bool", "uint8", "int64", "float32", "bfloat16", "complex128"]),
    shape=st.lists(st.integers(0, 5), max_size=3).map(tuple),
)


@given(leaves=st.lists(LEAVES, max_size=6), lead=st.tuples(st.integers(1, 5), st.integers(1, 9)))
def test_leaves_are_aligned_and_do_not_overlap(leaves, lead):
    placed, end = place(leaves, lead=lead)
    before = 0
    for leaf, item in zip(leaves, placed, strict=True):
        assert item.offset % 64 == 0
        assert before <= item.offset < before + 64
        assert item.nbytes == prod((*lead, *leaf.shape)) * item.storage.itemsize
        before = item.offset + item.nbytes
    assert before <= end < before + 64


def test_the_layout_of_a_batch():
    layout = block_layout(
        describe_gymnasium(toys.Count()),
        num_envs=3,
        num_steps=5,
        extra=[Leaf(("collector", "traj_ids"), "int64")],
    )
    assert [leaf.key for leaf in layout.data] == [
        ("observation",),
        ("action",),
        ("done",),
        ("terminated",),
        ("truncated",),
        ("collector", "traj_ids"),
        ("next", "observation"),
        ("next", "reward"),
        ("next", "done"),
        ("next", "terminated"),
        ("next", "truncated"),
    ]
    assert layout.find(("collector", "traj_ids")).shape == (3, 5)
    with pytest.raises(KeyError, match="'nothing'; the block has 'observation'"):
        layout.find(("nothing",))


@pytest.mark.parametrize("key", [("action",), ("next",), ("observation", "x"), ("next", "reward")])
def test_keys_that_clash_are_refused(key):
    with pytest.raises(ValueError, match=r"placed twice|is a leaf"):
        block_layout(describe_gymnasium(toys.Count()), num_envs=1, num_steps=1, extra=[Leaf(key, "int64")])


def test_an_observation_key_that_is_taken_is_refused():
    env = toys.Count()
    env.observation_space = spaces.Dict(reward=spaces.Discrete(2))
    with pytest.raises(ValueError, match=r"'reward'.*reserved are"):
        describe_gymnasium(env)


def test_differences_name_each_leaf():
    found = differences(describe_gymnasium(toys.Count()), describe_gymnasium(toys.Rng()))
    assert len(found) == 1
    assert found[0].startswith("observation 'observation': Bounded(shape=(1,), dtype=int64) against Bounded")


@pytest.mark.parametrize(
    "command",
    [Reset(), Seed(), Step(1, 2, 3), Step(0, 0, 1, False, True), Cut(3, 4), Remap(), Call(), Close()],
    ids=repr,
)
def test_commands_survive_as_words(command):
    assert decode(encode(command)) == command


@given(row=st.integers(0, 2**20 - 1), doing=st.sampled_from(Doing), times=st.integers(1, 5))
def test_progress_tells_who_does_what(row, doing, times):
    word = memoryview(bytearray(8)).cast("q")
    progress = Progress(word)
    seen = set()
    for _ in range(times):
        progress.note(doing, row)
        seen.add(word[0])
        assert read_progress(word[0]) == (doing, row)
    assert len(seen) == times


@given(num_envs=st.integers(1, 200), data=st.data())
def test_shares_cover_everything_once_and_evenly(num_envs, data):
    parts = shares(num_envs, data.draw(st.integers(1, num_envs)))
    assert [index for part in parts for index in part] == list(range(num_envs))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.probe("P-57")
@pytest.mark.parametrize(
    ("factory", "says"),
    [
        pytest.param(
            toys.Count(), r"create_env_fn is an environment \(Count\), not a factory", id="an environment"
        ),
        pytest.param(
            [toys.Count, toys.Count()], r"create_env_fn\[1\] is an environment", id="one among others"
        ),
        pytest.param(
            [toys.Count, 3], r"create_env_fn\[1\] is int, not a factory", id="a number among factories"
        ),
        pytest.param(3, r"create_env_fn must be a factory", id="a number"),
    ],
)
def test_what_is_no_factory_is_refused(factory, says):
    with pytest.raises(TypeError, match=says):
        recipes_of(factory, 2)


@pytest.mark.probe("P-57")
@pytest.mark.parametrize("form", ["closure", "keyword", "partial", "attribute", "two deep"])
def test_what_cannot_travel_is_named(form):
    guard = threading.Lock()

    class Holder:
        def __init__(self) -> None:
            self.guard = guard

        def __call__(self) -> toys.Count:
            return toys.Count()

    def inner() -> toys.Count:
        with guard:
            return toys.Count()

    factory, kwargs = {
        "closure": (inner, {}),
        "keyword": (toys.Count, {"guard": guard}),
        "partial": (functools.partial(toys.Count, guard=guard), {}),
        "attribute": (Holder(), {}),
        "two deep": (lambda: inner(), {}),
    }[form]
    with pytest.raises(TypeError, match=r"create_env_fn cannot be sent to a process: 'guard' \(lock\)"):
        recipes_of(factory, 2, kwargs)


def test_an_entrypoint_of_another_form_is_refused():
    with pytest.raises(EntrypointError, match="not of the form"):
        recipes_of("toys.Count", 1)


@pytest.mark.parametrize(
    "factory",
    [
        pytest.param(GymEnv, id="class"),
        pytest.param(functools.partial(GymEnv, "CartPole-v1"), id="partial"),
        pytest.param("rollout_worker.envs:GymEnv", id="entrypoint"),
    ],
)
def test_gym_env_is_made_without_tensordicts(factory):
    kwargs = {} if isinstance(factory, functools.partial) else {"env_name": "CartPole-v1"}
    (recipe,) = recipes_of(factory, 1, kwargs)
    assert isinstance(recipe, Entrypoint)
    env = make(recipe, 0)
    assert type(env).__module__.startswith("gymnasium")
    env.close()


def test_memory_is_shared_aligned_and_given_back():
    fd = memory_file(5000, purpose="a test")
    first, second = mapped(fd, 5000), mapped(fd, 5000)
    os.close(fd)
    first[4999] = 7
    assert second[4999] == 7
    assert first.ctypes.data % 64 == 0
    kept = second[10:20].view()
    del first, second
    kept[:] = 1
    assert kept.sum() == 10


def test_a_file_system_that_is_too_small_is_told_beforehand(tmp_path):
    room = available_bytes(tmp_path)
    with pytest.raises(
        ConfigurationError, match=rf"a test needs {2**60} bytes, but \d+ are available in {tmp_path}"
    ):
        memory_file(2**60, purpose="a test", directory=tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert room is not None
    fd = memory_file(10_000, purpose="a test", directory=tmp_path)
    assert os.fstat(fd).st_nlink == 0
    assert os.fstat(fd).st_blocks * 512 >= 10_000
    os.close(fd)


@pytest.mark.parametrize(
    ("exitcode", "text"),
    [
        pytest.param(3, "ended with exit code 3", id="code"),
        pytest.param(-9, "was killed by SIGKILL (9) (out of memory is a common cause)", id="kill"),
        pytest.param(-11, "was killed by SIGSEGV (11)", id="segmentation fault"),
        pytest.param(-40, "was killed by signal (40)", id="a signal without a name"),
    ],
)
def test_endings(exitcode, text):
    assert ending_of(exitcode) == text


@pytest.mark.parametrize(
    ("causes", "kind"),
    [
        pytest.param([Cause.RAISED], EnvError, id="raised"),
        pytest.param([Cause.LOST], ChildLost, id="lost"),
        pytest.param([Cause.TIMEOUT], StepTimeout, id="silent"),
        pytest.param([Cause.TIMEOUT, Cause.LOST, Cause.RAISED], EnvError, id="what was raised comes first"),
        pytest.param([Cause.RAISED, Cause.ENTRYPOINT], EntrypointError, id="an entrypoint before all"),
    ],
)
def test_one_error_for_all_faults(causes, kind):
    faults = [
        EnvFault(cause, index, 10 + index, "step", f"text-{index}") for index, cause in enumerate(causes)
    ]
    error = error_of(faults)
    assert type(error) is kind
    if kind is not EntrypointError:
        assert all(
            f"environment {fault.env_index} (pid {fault.pid}) during step: {fault.summary}" in str(error)
            for fault in faults
        )


def test_a_great_many_faults_are_counted():
    faults = [EnvFault(Cause.RAISED, index, 1, "step", "text") for index in range(1000)]
    assert "1000 failures" in str(error_of(faults))
    assert "and 984 more" in str(error_of(faults))


@pytest.mark.probe("P-11")
@pytest.mark.parametrize(
    ("quota", "most"),
    [
        pytest.param("max 100000", 10**6, id="no limit"),
        pytest.param("100000 100000", 1, id="one processor"),
        pytest.param("150000 100000", 2, id="one and a half"),
        pytest.param("10000 100000", 1, id="a tenth"),
    ],
)
def test_processors_follow_the_control_group(tmp_path, monkeypatch, quota, most):
    file = tmp_path / "cpu.max"
    file.write_text(quota + "\n")
    monkeypatch.setattr(resources, "CPU_MAX", file)
    assert resources.cpu_count() == min(most, len(os.sched_getaffinity(0)))
