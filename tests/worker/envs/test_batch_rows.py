"""Rows of the behaviour table on shapes, resets and steps that need more than one number per environment."""

from __future__ import annotations

import functools

import pytest
import torch
import toys
import toys_gym
import toys_td
from tensordict import NonTensorStack, TensorDict
from toys_td import CountEnv

from rollout_contract.errors import EnvError
from rollout_worker.envs import ParallelEnv, SerialEnv

T, F = True, False
TWO = functools.partial(CountEnv, batch_size=(2,))


def following(td):
    return td["next"].exclude("reward").clone()


def flags(*values):
    return torch.tensor(values, dtype=torch.bool)


@pytest.mark.row("E-27")
def test_a_batch_size_of_their_own(make, acting, column):
    env = make(3, TWO)
    assert env.batch_size == (3, 2)
    assert env.reset()["observation"].shape == (3, 2, 1)
    got = env.rollout(3, lambda td: acting(td, 0.5))
    assert got.batch_size == (3, 2, 3)
    assert column(got, ("next", "observation")) == [[[0.5, 1.0, 1.5]] * 2] * 3


@pytest.mark.row("E-28")
def test_a_batch_of_batches(make, acting, column):
    env = make(2, functools.partial(SerialEnv, 3, CountEnv))
    assert env.batch_size == (2, 3)
    td = env.step(acting(env.reset(), 1))
    assert column(td, ("next", "observation")) == [[1.0] * 3] * 2


@pytest.mark.row("E-28")
def test_processes_within_processes(acting, column):
    inner = functools.partial(ParallelEnv, 2, CountEnv, mp_start_method="fork")
    with ParallelEnv(2, inner, mp_start_method="fork") as env:
        td = env.step(acting(env.reset(), 1))
        assert column(td, ("next", "observation")) == [[1.0] * 2] * 2


@pytest.mark.row("E-30")
@pytest.mark.row("E-66")
def test_no_mask_reaches_a_step(make, acting):
    env = make(2, CountEnv)
    td = acting(env.reset(), 1).set("_step", flags(T, T)).set("zzz", torch.zeros(2))
    stepped, root = env.step_and_maybe_reset(td)
    assert "_step" in stepped
    assert "_step" not in stepped["next"]
    assert "_step" not in root
    assert "zzz" in stepped
    assert all("_step" not in keys and "_reset" not in keys for keys in env.step_keys_seen)


@pytest.mark.row("E-35")
def test_a_state_is_an_input(make, acting, column):
    env = make(2, toys_td.Recurrent)
    td = env.reset()
    assert "hid" not in td
    td["hid"] = torch.tensor([[1.0, 1.0], [2.0, 2.0]])
    stepped, root = env.step_and_maybe_reset(acting(td, 1))
    assert column(stepped, ("next", "observation")) == [3.0, 5.0]
    assert root["hid"].tolist() == [[1.0, 1.0], [2.0, 2.0]]
    with pytest.raises(KeyError, match="'hid'"):
        env.step(acting(env.reset(), 1))


@pytest.mark.row("E-38")
def test_another_dtype_is_cast(make, acting, column):
    env = make(2, toys_td.Doubles)
    td = env.step(acting(env.reset(), 1))
    assert td["next", "observation"].dtype == torch.float32
    assert column(td, ("next", "observation")) == [1.5, 1.5]


@pytest.mark.row("E-39")
def test_another_shape_is_named(make, acting):
    env = make(2, toys_td.Misshapen)
    td = env.step(acting(env.reset(), 1))
    with pytest.raises(EnvError, match=r"'observation' has shape \[4\]; its spec says \[1\]") as caught:
        env.step(acting(following(td), 1))
    assert caught.value.env_index == 0
    assert env.reset()["observation"].tolist() == [[0], [0]]


@pytest.mark.row("E-41")
@pytest.mark.row("E-51")
@pytest.mark.row("E-76")
def test_nested_groups(make):
    env = make(2, toys_td.Team)
    assert env.done_keys[:1] == ["done"]
    assert ("agents", "done") in env.done_keys
    assert env.reset_keys == ["_reset", ("agents", "_reset")]
    td = env.reset()
    assert td["agents"].batch_size == (2, 3)
    actions = torch.tensor([[[1.0], [2.0], [3.0]], [[3.0], [3.0], [3.0]]])
    td["agents", "action"] = actions
    stepped, root = env.step_and_maybe_reset(td)
    assert stepped["next", "agents", "done"].squeeze(-1).tolist() == [[F, F, T], [T, T, T]]
    assert root["agents", "obs"][..., 0].tolist() == [[1, 2, 3], [0, 0, 0]]
    assert root["agents", "done"].squeeze(-1).tolist() == [[F, F, T], [F, F, F]]
    assert list(env.n_reset) == [1, 2]
    again = env.reset(root.exclude("next").set("_reset", flags(T, F)))
    assert again["agents", "obs"][..., 0].tolist() == [[0, 0, 0], [0, 0, 0]]
    assert list(env.n_reset) == [2, 2]


@pytest.mark.row("E-42")
def test_gradients_flow_in_one_process(acting):
    with SerialEnv(2, CountEnv) as env:
        action = torch.ones(2, 1, requires_grad=True)
        td = env.step(env.reset().set("action", action))
        assert td["next", "reward"].requires_grad
        assert td["next", "observation"].requires_grad
        td = env.step(following(td).set("action", action))
        td["next", "observation"].sum().backward()
        assert action.grad.tolist() == [[2.0], [2.0]]
        assert not env.reset()["observation"].requires_grad


@pytest.mark.row("E-43")
def test_no_gradients_through_processes(make):
    if make.is_serial:
        pytest.skip("they flow there")
    env = make(2, CountEnv)
    td = env.step(env.reset().set("action", torch.ones(2, 1, requires_grad=True)))
    assert not td["next", "reward"].requires_grad
    assert not td["next", "observation"].requires_grad


@pytest.mark.row("E-47")
@pytest.mark.row("E-48")
def test_a_mask_within_rows(make, acting, column):
    env = make(2, TWO)
    td = following(env.step(acting(env.reset(), 1)))
    assert column(env.reset(td.set("_reset", flags([T, F], [F, F]).unsqueeze(-1)))) == [[0, 1], [1, 1]]
    assert list(env.n_reset) == [2, 1]
    td = following(env.step(acting(env.reset(), 1)))
    assert column(env.reset(td.set("_reset", flags([F, F], [T, T])))) == [[1, 1], [0, 0]]


@pytest.mark.row("E-53")
def test_what_a_reset_is_given(make, acting):
    env = make(2, CountEnv)
    td = following(env.step(acting(env.reset(), 3, 1)))
    env.maybe_reset(td)
    assert list(env.reset_keys_seen) == [["_reset"], None]
    td = following(env.step(acting(env.reset(), 1)))
    env.reset(td.set("_reset", flags(F, T)))
    assert {"_reset", "observation"} <= set(list(env.reset_keys_seen)[1])


@pytest.mark.row("E-54")
@pytest.mark.row("E-55")
@pytest.mark.row("E-56")
def test_keywords_of_a_reset(make, column):
    env = make(4, CountEnv)
    assert column(env.reset(start=5)) == [5.0] * 4
    each = [{"start": index} for index in range(4)]
    assert column(env.reset(list_of_kwargs=each)) == [0.0, 1.0, 2.0, 3.0]
    assert column(env.reset(list_of_kwargs=each, start=9)) == [9.0] * 4
    assert each == [{"start": index} for index in range(4)]
    assert column(env.reset()) == [0.0] * 4


@pytest.mark.row("E-54")
def test_options_reach_a_gymnasium_environment(make):
    env = make(2, toys.Optioned)
    assert env.reset(options={"start": 4})["observation"].tolist() == [[4], [4]]
    assert env.reset()["observation"].tolist() == [[0], [0]]


@pytest.mark.row("E-57")
@pytest.mark.row("E-58")
def test_too_few_keywords_and_skipped_ones(make, acting, column):
    env = make(2, CountEnv)
    td = following(env.step(acting(env.reset(), 1)))
    with pytest.raises(ValueError, match="3 mappings for 2"):
        env.reset(list_of_kwargs=[{}] * 3)
    got = env.reset(td.set("_reset", flags(T, F)), list_of_kwargs=[{"start": 7}, {"start": 8}])
    assert column(got) == [7.0, 1.0]
    assert list(env.n_reset) == [2, 1]


@pytest.mark.row("E-65")
@pytest.mark.row("E-80")
def test_a_step_of_some_elements(make, acting, column):
    env = make(2, TWO)
    td = acting(env.reset(), 1).set("_step", flags([T, T], [F, F]))
    assert column(env.step(td), ("next", "observation")) == [[1, 1], [0, 0]]
    assert list(env.n_step) == [1, 0]
    td = acting(following(td), 1).set("_step", flags([T, F], [F, F]))
    assert column(env.step(td), ("next", "observation")) == [[2, 1], [0, 0]]
    assert column(td, ("next", "reward")) == [[1, 0], [0, 0]]

    def policy(td):
        return td.set("action", torch.tensor([[[1.0], [0.75]], [[3.0], [1.5]]]))

    got = env.rollout(9, policy, break_when_any_done=False, break_when_all_done=True)
    assert got.batch_size == (2, 2, 4)
    assert column(got, ("next", "observation")) == [
        [[1, 2, 3, 3], [0.75, 1.5, 2.25, 3]],
        [[3] * 4, [1.5, 3, 3, 3]],
    ]


@pytest.mark.row("E-70")
@pytest.mark.row("E-90")
def test_texts_of_skipped_rows(make, acting):
    env = make(2, toys_td.Words)
    td = env.step(acting(env.reset(), 1).set("_step", flags(T, F)))
    assert list(td["next", "text"]) == ["step1", "reset0"]
    td = env.reset(following(td).set("_reset", flags(T, F)))
    assert list(td["text"]) == ["reset0", "reset0"]


@pytest.mark.row("E-82")
def test_a_step_that_resets_is_one_round_trip(acting):
    with ParallelEnv(2, toys.Count, mp_start_method="fork", create_env_kwargs={"k": 1}) as env:
        td = env.rand_action(env.reset())
        before = env.vector._host._running()._orders.number
        _, root = env.step_and_maybe_reset(td)
        assert root["observation"].tolist() == [[0], [0]]
        assert env.vector._host._running()._orders.number == before + 1


def hidden(td, *values):
    return td.set("next", TensorDict({"hid": torch.tensor([[v, v] for v in values])}, batch_size=(2,)))


@pytest.mark.row("E-83")
@pytest.mark.row("E-84")
@pytest.mark.row("E-87")
def test_values_under_next_are_handed_over(make, acting):
    env = make(2, functools.partial(toys_td.Recurrent, hands_on=True))
    td = acting(env.reset(), 1).set("hid", torch.tensor([[1.0, 1.0], [2.0, 2.0]]))
    stepped, root = env.step_and_maybe_reset(hidden(td, 10.0, 20.0))
    assert stepped["next", "hid"].tolist() == [[110.0] * 2, [120.0] * 2]
    assert stepped["hid"].tolist() == [[1.0, 1.0], [2.0, 2.0]]
    assert list(env.seen) == [[1.0, 1.0], [2.0, 2.0]]
    assert root["hid"].tolist() == [[110.0] * 2, [120.0] * 2]
    assert env.step(acting(root, 1))["next", "hid"].tolist() == [[-1.0] * 2] * 2


@pytest.mark.row("E-85")
@pytest.mark.row("E-88")
def test_values_under_next_of_a_skipped_row(make, acting):
    env = make(2, functools.partial(toys_td.Recurrent, hands_on=True))
    td = acting(env.reset(), 1).set("hid", torch.ones(2, 2)).set("_step", flags(F, T))
    td = hidden(td, 10.0, 20.0)
    td["next", "foo"] = torch.tensor([1.0, 2.0])
    stepped = env.step(td)
    assert stepped["next", "hid"].tolist() == [[1.0, 1.0], [120.0, 120.0]]
    assert stepped["next", "foo"].tolist() == [1.0, 2.0]


@pytest.mark.row("E-93")
def test_actions_that_are_texts(make):
    env = make(2, functools.partial(toys_td.Words, worded=True))
    td = env.reset().set("action", NonTensorStack("1", "2"))
    stepped = env.step(td)
    assert stepped["next", "reward"].squeeze(-1).tolist() == [1.0, 2.0]
    assert list(stepped["next", "text"]) == ["step1", "step2"]


@pytest.mark.parametrize("meta_data", [None, "workers"])
def test_gymnasium_environments_that_take_texts(make, meta_data):
    env = make(2, toys_gym.Speaking, meta_data=meta_data)
    stepped = env.step(env.reset().set("action", NonTensorStack("go", "stay")))
    assert stepped["next", "observation"].tolist() == [[1], [1]]
    assert list(env.given) == [["go"], ["stay"]]
