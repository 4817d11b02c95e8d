"""`SerialEnv`, `ParallelEnv` and single environments with tensordicts: the rows of the behaviour table."""

from __future__ import annotations

import copy
import functools
import pickle
import warnings

import pytest
import torch
import toys
import toys_td
from tensordict import TensorDict
from toys_td import CountEnv

from rollout_contract.errors import ChildLost, EnvError
from rollout_worker.envs import EnvBase, GymEnv, ParallelEnv, SerialEnv

T, F = True, False


def acting(env, td, *values):
    return td.set("action", torch.tensor(values, dtype=torch.float32).reshape(env.num_workers, 1))


def column(td, key="observation"):
    return td.get(key).squeeze(-1).tolist()


@pytest.mark.row("E-01")
@pytest.mark.row("E-02")
def test_specs_are_known_before_the_start(make):
    env = make(4, CountEnv)
    assert env.is_closed
    assert env.batch_size == (4,)
    assert env.observation_spec["observation"].shape == (4, 1)
    assert env.action_spec.shape == (4, 1)
    assert env.reset_keys == ["_reset"]
    assert env.done_keys == ["done", "terminated", "truncated"]
    assert env.is_closed


@pytest.mark.row("E-11")
def test_specs_of_a_batch_are_locked(make):
    env = make(2, CountEnv)
    with pytest.raises(RuntimeError, match="locked"):
        env.observation_spec["other"] = env.action_spec


@pytest.mark.row("E-04")
def test_keywords_per_worker(make):
    env = make(2, CountEnv, create_env_kwargs=[{"start": 1}, {"start": 2}])
    assert column(env.reset()) == [1.0, 2.0]


@pytest.mark.row("E-09")
def test_a_step_starts_by_itself(make):
    env = make(2, CountEnv)
    td = acting(env, TensorDict({}, batch_size=[2]), 1, 1)
    assert column(env.step(td), ("next", "observation")) == [1.0, 1.0]
    assert not env.is_closed
    with pytest.raises(RuntimeError, match="started already"):
        env.start()


@pytest.mark.row("E-24")
def test_reset_gives_observations_and_flags(make):
    td = make(4, CountEnv).reset()
    assert set(td.keys()) == {"done", "observation", "terminated", "truncated"}
    assert td.batch_size == (4,)
    assert td["observation"].dtype == torch.float32
    assert column(td) == [0.0] * 4


@pytest.mark.row("E-25")
@pytest.mark.row("E-40")
def test_step_fills_next_of_the_same_tensordict(make):
    env = make(4, CountEnv)
    td = acting(env, env.reset(), 1, 1, 1, 3)
    assert env.step(td) is td
    assert column(td, ("next", "observation")) == [1.0, 1.0, 1.0, 3.0]
    assert column(td, ("next", "reward")) == [1.0, 1.0, 1.0, 3.0]
    assert column(td, ("next", "terminated")) == [F, F, F, T]
    assert column(td, ("next", "done")) == [F, F, F, T]


@pytest.mark.row("E-26")
@pytest.mark.probe("P-03")
def test_results_are_the_callers_own(make):
    env = make(2, CountEnv)
    first = env.reset()
    one = env.step(acting(env, first.clone(), 1, 1))
    second = env.step(acting(env, one["next"].clone(), 1, 1))
    assert (column(first), column(one, ("next", "observation"))) == ([0.0, 0.0], [1.0, 1.0])
    second["next", "observation"].fill_(-1)
    third = env.step(acting(env, second.clone(), 1, 1))
    assert column(third, ("next", "observation")) == [3.0, 3.0]
    assert not third["next", "observation"].is_shared()


@pytest.mark.row("E-29")
def test_a_tensordict_of_another_batch_size_is_refused(make):
    env = make(4, CountEnv)
    with pytest.raises(RuntimeError, match=r"\[3\].*expects \[4\]"):
        env.step(TensorDict({"action": torch.ones(3, 1)}, batch_size=[3]))
    assert column(env.reset()) == [0.0] * 4


@pytest.mark.row("E-30")
@pytest.mark.row("E-31")
def test_what_else_stands_at_the_root_stays(make):
    env = make(2, CountEnv)
    td = acting(env, env.reset(), 1, 1).set("zzz", torch.zeros(2)).set("observation", torch.zeros(2, 5))
    stepped, root = env.step_and_maybe_reset(td)
    assert stepped["observation"].shape == (2, 5)
    assert column(stepped, ("next", "observation")) == [1.0, 1.0]
    assert "zzz" in root


@pytest.mark.row("E-32")
def test_an_action_of_another_dtype_is_converted(make):
    env = make(2, CountEnv)
    td = env.reset().set("action", torch.ones(2, 1, dtype=torch.float64))
    env.step(td)
    assert td["next", "observation"].dtype == torch.float32
    assert td["action"].dtype == torch.float64


@pytest.mark.row("E-33")
@pytest.mark.row("E-34")
def test_actions_that_do_not_fit_reach_nobody(make):
    env = make(2, CountEnv)
    td = env.reset()
    with pytest.raises(KeyError, match="'action'"):
        env.step(td)
    with pytest.raises(RuntimeError, match=r"shape \[2, 2\]; its spec says \[2, 1\]"):
        env.step(td.set("action", torch.ones(2, 2)))
    assert list(env.n_step) == [0, 0]
    assert column(env.step(acting(env, env.reset(), 1, 1)), ("next", "observation")) == [1.0, 1.0]


@pytest.mark.row("E-41")
def test_nested_keys(make):
    env = make(3, toys_td.Two)
    assert env.reset_keys == ["_reset", ("agents", "_reset")]
    assert env.action_key == ("agents", "action")
    td = env.rand_step(env.reset())
    assert td["next", "agents", "obs"].shape == (3, 2, 1)
    assert td["next", "agents", "reward"].shape == (3, 2, 1)
    torch.testing.assert_close(td["next", "agents", "reward"], td["agents", "action"])
    assert td["next", "agents", "done"].shape == (3, 2, 1)


@pytest.mark.row("E-44")
@pytest.mark.row("E-45")
def test_a_reset_without_mask_resets_all(make):
    env = make(2, CountEnv)
    td = env.reset()
    td["done"] = torch.tensor([[T], [F]])
    env.reset(td)
    assert list(env.n_reset) == [2, 2]


@pytest.mark.row("E-46")
@pytest.mark.row("E-47")
@pytest.mark.parametrize("shape", [(4,), (4, 1)])
def test_a_partial_reset_calls_the_marked_alone(make, shape):
    env = make(4, CountEnv)
    td = env.step(acting(env, env.reset(), 1, 1, 1, 1))["next"].clone()
    td["_reset"] = torch.tensor([T, F, T, F]).reshape(shape)
    assert env.reset(td) is td
    assert column(td) == [0.0, 1.0, 0.0, 1.0]
    assert "_reset" not in td
    assert list(env.n_reset) == [2, 1, 2, 1]


@pytest.mark.row("E-49")
def test_a_mask_of_nobody_changes_nothing(make):
    env = make(2, CountEnv)
    td = (
        env.step(acting(env, env.reset(), 1, 1))["next"]
        .clone()
        .set("_reset", torch.zeros(2, 1, dtype=torch.bool))
    )
    assert column(env.reset(td)) == [1.0, 1.0]
    assert list(env.n_reset) == [1, 1]


@pytest.mark.row("E-50")
@pytest.mark.probe("P-03")
def test_a_mask_alone_gives_whole_rows(make):
    env = make(4, functools.partial(CountEnv, 9))
    td = env.reset()
    for _ in range(3):
        td = env.step(acting(env, td, 1, 1, 1, 1))["next"].clone()
    got = env.reset(TensorDict({"_reset": torch.tensor([[T], [F], [F], [T]])}, batch_size=[4]))
    assert column(got) == [0.0, 3.0, 3.0, 0.0]
    got.apply_(lambda leaf: leaf.fill_(True) if leaf.dtype == torch.bool else leaf.fill_(-1))
    again = env.reset(TensorDict({"_reset": torch.tensor([[F], [T], [F], [F]])}, batch_size=[4]))
    assert column(again) == [0.0, 0.0, 3.0, 0.0]
    assert set(again.keys()) == {"observation", "done", "terminated", "truncated"}
    assert not any(again[flag].any() for flag in ("done", "terminated", "truncated"))
    stepped = env.step(acting(env, again, 1, 1, 1, 1))
    assert column(stepped, ("next", "observation")) == [1.0, 1.0, 4.0, 1.0]
    assert list(env.n_reset) == [2, 2, 1, 2]


@pytest.mark.row("E-52")
def test_a_nested_mask_alone_is_refused(make):
    env = make(2, toys_td.Two)
    td = env.reset()
    td["agents", "_reset"] = torch.ones(2, 2, 1, dtype=torch.bool)
    with pytest.raises(ValueError, match="_reset"):
        env.reset(td)


@pytest.mark.row("E-59")
def test_maybe_reset_resets_what_is_done(make):
    env = make(2, CountEnv)
    td = env.step(acting(env, env.reset(), 3, 1))
    assert column(env.maybe_reset(td["next"].clone())) == [0.0, 1.0]
    assert list(env.n_reset) == [2, 1]


@pytest.mark.row("E-60")
@pytest.mark.row("E-61")
@pytest.mark.row("E-62")
@pytest.mark.parametrize("shape", [(4,), (4, 1)])
def test_a_partial_step(make, shape):
    env = make(4, CountEnv)
    env.step(acting(env, env.reset(), 1, 1, 1, 1))
    td = env.reset(TensorDict({"_reset": torch.tensor([T, F, T, F])}, batch_size=[4]))
    td["_step"] = torch.tensor([T, F, T, F]).reshape(shape)
    env.step(acting(env, td, 1, 1, 1, 1))
    assert column(td, ("next", "observation")) == [1.0, 1.0, 1.0, 1.0]
    assert column(td, ("next", "reward")) == [1.0, 0.0, 1.0, 0.0]
    assert column(td, ("next", "done")) == [F] * 4
    assert list(env.n_step) == [2, 1, 2, 1]
    assert "_step" not in td["next"]


@pytest.mark.row("E-63")
@pytest.mark.row("E-64")
@pytest.mark.row("E-67")
def test_masks_of_all_of_none_and_of_a_bare_tensordict(make):
    env = make(2, functools.partial(CountEnv, 3, 100))
    td = acting(env, env.reset(), 1, 1)
    td["_step"] = torch.tensor([F, F])
    env.step(td)
    assert column(td, ("next", "observation")) == [100.0, 100.0]
    assert column(td, ("next", "reward")) == [0.0, 0.0]
    td["_step"] = torch.tensor([T, T])
    env.step(td)
    assert column(td, ("next", "observation")) == [101.0, 101.0]
    bare = acting(env, TensorDict({"_step": torch.tensor([F, T])}, batch_size=[2]), 1, 1)
    env.step(bare)
    assert column(bare, ("next", "observation")) == [101.0, 102.0]


@pytest.mark.row("E-71")
def test_a_done_environment_can_be_stepped(make):
    env = make(1, functools.partial(CountEnv, 3, 100))
    td = env.step(acting(env, env.reset(), 3))
    td = env.step(acting(env, td["next"].clone(), 1))
    assert (column(td, ("next", "observation")), column(td, ("next", "done"))) == ([104.0], [T])


@pytest.mark.row("E-72")
@pytest.mark.row("E-73")
def test_step_and_maybe_reset(make):
    env = make(4, CountEnv)
    _, root = env.step_and_maybe_reset(acting(env, env.reset(), 1, 1, 1, 1))
    assert set(root.keys()) == {"action", "done", "observation", "terminated", "truncated"}
    stepped, following = env.step_and_maybe_reset(acting(env, root, 2, 1, 1, 1))
    assert stepped is root
    assert column(stepped, ("next", "observation")) == [3.0, 2.0, 2.0, 2.0]
    assert column(stepped, ("next", "done")) == [T, F, F, F]
    assert column(following) == [0.0, 2.0, 2.0, 2.0]
    assert column(following, "done") == [F] * 4
    assert list(env.n_reset) == [2, 1, 1, 1]


@pytest.mark.row("E-74")
def test_a_partial_step_and_maybe_reset(make):
    env = make(4, CountEnv)
    env.step(acting(env, env.reset(), 2, 2, 2, 2))
    td = env.reset(TensorDict({"_reset": torch.tensor([T, F, F, F])}, batch_size=[4]))
    assert column(td) == [0.0, 2.0, 2.0, 2.0]
    td["_step"] = torch.tensor([T, F, F, T])
    stepped, root = env.step_and_maybe_reset(acting(env, td, 1, 1, 1, 1))
    assert column(stepped, ("next", "observation")) == [1.0, 2.0, 2.0, 3.0]
    assert column(root) == [1.0, 2.0, 2.0, 0.0]
    assert "_step" not in root


@pytest.mark.row("E-75")
def test_a_skipped_row_that_is_done_is_left_alone(make):
    env = make(2, functools.partial(CountEnv, 3, 100))
    td = env.step(acting(env, env.reset(), 3, 1))["next"].exclude("reward")
    td["_step"] = torch.tensor([F, T])
    stepped, root = env.step_and_maybe_reset(acting(env, td, 1, 1))
    for found in (stepped["next"], root):
        assert (column(found), column(found, "done")) == ([103.0, 102.0], [T, F])


def policy_of(*values):
    return lambda td: td.set("action", torch.tensor(values).reshape(-1, 1))


@pytest.mark.row("E-77")
def test_rollout_stops_at_the_first_end(make):
    got = make(4, CountEnv).rollout(5, policy_of(1, 1, 1, 0.5))
    assert got.batch_size == (4, 3)
    assert got.names == [None, "time"]
    assert column(got, ("next", "observation")) == [[1, 2, 3]] * 3 + [[0.5, 1, 1.5]]


@pytest.mark.row("E-78")
def test_rollout_goes_on(make):
    got = make(4, CountEnv).rollout(5, policy_of(1, 1, 1, 0.5), break_when_any_done=False)
    assert column(got) == [[0, 1, 2, 0, 1]] * 3 + [[0, 0.5, 1, 1.5, 2]]
    assert column(got, ("next", "observation")) == [[1, 2, 3, 1, 2]] * 3 + [[0.5, 1, 1.5, 2, 2.5]]
    assert not got["done"].any()


@pytest.mark.row("E-79")
def test_rollout_until_all_are_done(make):
    env = make(2, functools.partial(CountEnv, 3, 100))
    got = env.rollout(9, policy_of(1, 0.75), break_when_any_done=False, break_when_all_done=True)
    assert column(got, ("next", "observation")) == [[101, 102, 103, 103], [100.75, 101.5, 102.25, 103]]
    assert column(got, ("next", "reward")) == [[1] * 4, [0.75] * 4]


@pytest.mark.row("E-81")
def test_rollout_goes_on_from_a_root(make):
    env = make(1, functools.partial(CountEnv, 9))
    _, root = env.step_and_maybe_reset(acting(env, env.reset(), 1))
    got = env.rollout(2, policy_of(1.0), auto_reset=False, tensordict=root)
    assert column(got, ("next", "observation")) == [[2, 3]]


@pytest.mark.row("E-85")
@pytest.mark.row("E-86")
def test_values_under_next(make):
    env = make(2, CountEnv)
    td = acting(env, env.reset(), 1, 1)
    td["next"] = TensorDict(
        {"foo": torch.ones(2), "done": torch.ones(2, 1, dtype=torch.bool)}, batch_size=[2]
    )
    stepped, _ = env.step_and_maybe_reset(td)
    assert stepped["next", "foo"].tolist() == [1, 1]
    assert column(stepped, ("next", "done")) == [F, F]


@pytest.mark.row("E-89")
@pytest.mark.row("E-91")
@pytest.mark.row("E-92")
@pytest.mark.probe("P-07")
def test_texts(make):
    env = make(2, toys.Text, create_env_kwargs=[{"k": 3}, {"k": 99}])
    assert env.reset()["observation"] == ["w0-s0", "w1-s0"]
    got = env.rollout(5, break_when_any_done=False)
    assert got["observation"] == [[f"w0-s{n}" for n in (0, 1, 2, 0, 1)], [f"w1-s{n}" for n in range(5)]]
    assert got["next", "observation"] == [
        [f"w0-s{n}" for n in (1, 2, 3, 1, 2)],
        [f"w1-s{n}" for n in range(1, 6)],
    ]


@pytest.mark.row("E-90")
def test_a_partial_reset_of_texts(make):
    env = make(2, toys.Text, create_env_kwargs={"k": 99})
    td = env.rand_step(env.reset())["next"].clone().set("_reset", torch.tensor([T, F]))
    assert env.reset(td)["observation"] == ["w0-s0", "w1-s1"]


@pytest.mark.row("E-108")
@pytest.mark.row("E-109")
@pytest.mark.row("E-110")
@pytest.mark.row("E-112")
def test_seeds(make):
    env = make(4, CountEnv)
    assert env.set_seed(0) == 3018685293
    assert not env.is_closed
    assert list(env.seed_seen) == [0, 795726461, 2841183792, 2309840538]
    assert env.set_seed(5, static_seed=True) == 5
    assert list(env.seed_seen) == [5] * 4
    assert env.set_seed(None) is None


@pytest.mark.row("E-111")
def test_the_global_generator_of_torch_is_seeded_too():
    env = ParallelEnv(3, CountEnv, num_processes=3, mp_start_method="fork")
    try:
        env.set_seed(1)
        drawn = env.draw()
        assert len(set(drawn)) == 3
        env.set_seed(1)
        assert env.draw() == drawn
    finally:
        env.close()


@pytest.mark.row("E-113")
@pytest.mark.row("E-114")
@pytest.mark.row("E-115")
def test_state_dicts(make):
    env = make(3, CountEnv)
    state = env.state_dict()
    assert list(state) == ["worker0", "worker1", "worker2"]
    assert [float(each["buf"]) for each in state.values()] == [7.0] * 3
    env.load_state_dict({f"worker{i}": {"buf": torch.tensor(float(i))} for i in range(3)})
    assert [float(each["buf"]) for each in env.state_dict().values()] == [0.0, 1.0, 2.0]
    env.load_state_dict({"buf": torch.tensor(9.0)})
    assert [float(each["buf"]) for each in env.state_dict().values()] == [9.0] * 3


@pytest.mark.row("E-118")
@pytest.mark.row("E-119")
@pytest.mark.row("E-121")
@pytest.mark.row("E-122")
@pytest.mark.row("E-124")
def test_attributes_and_methods(make):
    env = make(4, CountEnv)
    assert list(env.tag) == ["x"] * 4
    assert env.tag() == ["x"] * 4
    assert env.hello(1, y=2) == [("x", 1, 2)] * 4
    assert env.num_workers == 4
    env.set_attr("tag", "y", indices=[1])
    assert env.get_attr("tag") == ["x", "y", "x", "x"]
    assert env.call("hello", 3, indices=[1, 0]) == [("y", 3, None), ("x", 3, None)]


@pytest.mark.row("E-123")
@pytest.mark.row("E-125")
@pytest.mark.row("E-126")
def test_attributes_that_fail_harm_nobody(make):
    env = make(2, CountEnv)
    with pytest.raises(AttributeError, match="nothing_such"):
        _ = env.nothing_such
    with pytest.raises(AttributeError):
        _ = env.__nothing__
    with pytest.raises(ValueError, match="inner") as caught:
        env.fail()
    assert "environment 0" in caught.value.__notes__[0]
    assert column(env.reset()) == [0.0, 0.0]


@pytest.mark.row("E-130")
def test_results_are_on_the_device_that_was_asked_for(make):
    td = make(2, CountEnv, device="cpu").reset()
    assert td.device == torch.device("cpu")


@pytest.mark.row("E-140")
@pytest.mark.row("E-141")
@pytest.mark.row("E-142")
def test_close_and_start_anew(make):
    env = make(2, CountEnv)
    with pytest.raises(RuntimeError, match="closed already"):
        env.close()
    env.close(raise_if_closed=False)
    env.step(acting(env, env.reset(), 1, 1))
    env.close()
    assert env.is_closed
    with pytest.raises(RuntimeError, match="closed already"):
        env.close()
    assert column(env.reset()) == [0.0, 0.0]


@pytest.mark.row("E-143")
def test_a_copy_starts_for_itself(make):
    env = make(2, CountEnv)
    if isinstance(env, SerialEnv):
        pytest.skip("a copy in one process goes on from where the original is")
    env.step(acting(env, env.reset(), 1, 1))
    for other in (pickle.loads(pickle.dumps(env)), copy.deepcopy(env)):  # noqa: S301 (our own bytes)
        assert other.is_closed
        assert column(other.step(acting(env, other.reset(), 1, 1)), ("next", "observation")) == [1.0, 1.0]
        other.close()


@pytest.mark.row("E-147")
def test_a_with_block_closes():
    with SerialEnv(2, CountEnv) as env:
        env.reset()
    assert env.is_closed


@pytest.mark.row("E-150")
@pytest.mark.row("E-151")
@pytest.mark.row("E-153")
@pytest.mark.parametrize("how", ["raise", "kill"])
def test_failures_are_named_and_a_reset_restarts(make, how):
    env = make(3, toys.Fault, create_env_kwargs={"how": how, "where": 2, "only": 1})
    if how == "kill" and isinstance(env, SerialEnv):
        pytest.skip("that would kill the test itself")
    td = env.rand_action(env.reset())
    env.step(td)
    expected = EnvError if how == "raise" else ChildLost
    for _ in range(2):
        with pytest.raises(expected) as caught:
            env.step(td)
        assert caught.value.env_index == 1
    assert env.is_closed
    assert env.reset()["observation"].squeeze(-1).tolist() == [0, 0, 0]
    env.step(td)


@pytest.mark.row("E-22")
def test_repr_works_at_any_time(make):
    env = make(4, CountEnv)
    assert "[4]" in repr(env)
    env.reset()
    assert "CountEnv" in repr(env)
    env.close()
    assert "[4]" in repr(env)


@pytest.mark.row("E-08")
@pytest.mark.parametrize(
    ("more", "error"),
    [
        pytest.param({"num_workers": 0}, ValueError, id="no worker"),
        pytest.param({"num_workers": "2"}, TypeError, id="a text"),
        pytest.param({"pin_memory": True}, ValueError, id="pin_memory"),
        pytest.param({"allow_step_when_done": True}, ValueError, id="allow_step_when_done"),
        pytest.param({"create_env_fn": [CountEnv]}, RuntimeError, id="one factory for two"),
        pytest.param({"create_env_kwargs": [{}]}, RuntimeError, id="one mapping for two"),
        pytest.param({"create_env_fn": 3}, TypeError, id="a number"),
        pytest.param({"nonsense": 1}, TypeError, id="unknown keyword"),
    ],
)
@pytest.mark.parametrize("kind", [SerialEnv, ParallelEnv])
def test_bad_arguments_are_refused_at_once(kind, more, error):
    with pytest.raises(error):
        kind(**{"num_workers": 2, "create_env_fn": CountEnv, **more})


def test_a_single_environment_keeps_the_contract():
    env = CountEnv(batch_size=(2,))
    td = env.reset()
    stepped, root = env.step_and_maybe_reset(td.set("action", torch.tensor([[3.0], [1.0]])))
    assert column(stepped, ("next", "done")) == [T, F]
    assert column(root) == [0.0, 1.0]
    assert isinstance(env, EnvBase)
    assert env.rollout(4, policy_of(1.0, 1.0), break_when_any_done=False).shape == (2, 4)


def test_a_gym_env_alone():
    env = GymEnv(toys.Nested(k=2))
    with pytest.raises(TypeError, match="made already"):
        GymEnv(toys.Nested(), render_mode="x")
    got = env.rollout(3, break_when_any_done=False)
    assert got["pos", "n"].dtype == torch.int64
    assert got["pos", "x"].dtype == torch.float64
    assert got["next", "reward"].dtype == torch.float32
    assert column(got, ("next", "done")) == [F, T, F]


@pytest.mark.probe("P-02")
def test_a_gym_env_copies_what_its_environment_reuses():
    got = GymEnv(toys.Alias(9)).rollout(3)
    assert column(got, ("next", "observation")) == [1, 2, 3]


@pytest.mark.row("E-36")
@pytest.mark.row("E-37")
def test_leaves_beside_the_spec(make):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        td = make(2, functools.partial(toys_td.Loose, "more")).reset()
    assert "extra" not in td
    del caught
    with pytest.raises(EnvError, match="gave no 'observation'"):
        make(2, functools.partial(toys_td.Loose, "less")).reset()
