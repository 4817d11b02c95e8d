"""Rows of the behaviour table on environments that are unlike, or whose shapes are open, and on going without buffers."""

from __future__ import annotations

import functools
import warnings

import pytest
import torch
import toys
import toys_td
from tensordict import LazyStackedTensorDict, TensorDict
from toys_td import CountEnv

from rollout_worker.envs import GymEnv
from rollout_worker.envs.row_codec import decoded, encoded

T, F = True, False
ONE_EXTRA = [functools.partial(CountEnv), functools.partial(CountEnv, extra=2)]
TWO_EXTRA = [functools.partial(CountEnv, extra=3), functools.partial(CountEnv, extra=2)]


def flags(*values):
    return torch.tensor(values, dtype=torch.bool)


def following(td):
    return td.get("next").exclude("reward").clone()


def shapes(td, key="var"):
    return [tuple(row[key].shape) for row in td.unbind(0)]


@pytest.mark.row("E-95")
def test_a_key_that_one_row_has(make, acting):
    env = make(2, ONE_EXTRA)
    assert env.share_individual_td
    td = env.reset()
    assert isinstance(td, LazyStackedTensorDict)
    assert "extra" not in set(td.keys())
    with pytest.raises(KeyError):
        td["extra"]
    assert td[1]["extra"].tolist() == [0.0, 0.0]
    assert "extra" in env.observation_spec[1]
    assert "extra" not in env.observation_spec[0]
    stepped, root = env.step_and_maybe_reset(acting(td, 1))
    assert stepped["next"][1]["extra"].tolist() == [1.0, 1.0]
    assert root[1]["extra"].tolist() == [1.0, 1.0]


@pytest.mark.row("E-96")
@pytest.mark.row("E-97")
@pytest.mark.row("E-68")
def test_a_key_of_two_shapes(make, acting):
    env = make(2, TWO_EXTRA)
    got = env.rollout(3, lambda td: acting(td, 1), break_when_any_done=False)
    assert got.batch_size == (2, 3)
    assert got[1]["extra"].shape == (3, 2)
    with pytest.raises(RuntimeError):
        got["extra"]
    td = following(env.step(acting(env.reset(), 1)))
    td = env.reset(td.set("_reset", flags([T], [F])))
    assert (td[0]["extra"].tolist(), td[1]["extra"].tolist()) == ([0.0] * 3, [1.0] * 2)
    td = env.step(acting(td, 1).set("_step", flags([T], [F])))
    assert td["next"][0]["extra"].tolist() == [1.0] * 3
    assert td["next"][1]["extra"].tolist() == [1.0] * 2
    assert td["next", "reward"].tolist() == [[1.0], [0.0]]


@pytest.mark.row("E-98")
@pytest.mark.row("E-100")
def test_rows_that_cannot_be_put_together(make):
    with pytest.raises(ValueError, match="share_individual_td=False"):
        make(2, TWO_EXTRA, share_individual_td=False)
    with pytest.raises(ValueError, match=r"environment 0 has \[2\], environment 1 has \[\]"):
        make(2, [functools.partial(CountEnv, batch_size=(2,)), functools.partial(CountEnv)])


@pytest.mark.row("E-99")
def test_lazy_stacks_on_demand(make, acting, column):
    env = make(2, CountEnv, share_individual_td=True)
    td = env.reset()
    assert type(td) is LazyStackedTensorDict
    td = env.step(acting(td, 1))
    assert column(td, ("next", "observation")) == [1.0, 1.0]


@pytest.mark.row("E-101")
def test_environments_on_other_devices_than_each_other(make):
    several = [functools.partial(CountEnv, device="cpu"), functools.partial(CountEnv)]
    with pytest.raises(ValueError, match="different devices"):
        make(2, several)
    env = make(2, several, device="cpu")
    assert env.reset().device == torch.device("cpu")
    assert env.rollout(2).device == torch.device("cpu")


@pytest.mark.row("E-102")
def test_one_open_shape_beside_a_fixed_one(make, acting):
    several = [functools.partial(toys_td.Growing), functools.partial(toys_td.Growing, k=5)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env = make(2, several, use_buffers=False)
    assert not env._use_buffers
    with pytest.warns(UserWarning, match="use_buffers"):
        make(2, several, use_buffers=True)
    assert shapes(env.step(acting(env.reset(), 1))["next"]) == [(2, 2), (2, 2)]


@pytest.mark.row("E-103")
@pytest.mark.row("E-104")
@pytest.mark.row("E-69")
def test_open_shapes(make, acting):
    env = make(2, toys_td.Growing)
    assert env.observation_spec["var"].shape == (2, -1, 2)
    assert env.reset()["var"].shape == (2, 1, 2)
    td = env.step(acting(env.reset(), 1, 2))
    assert shapes(td["next"]) == [(2, 2), (3, 2)]
    td = following(env.step(acting(env.reset(), 1)))
    td = env.reset(td.set("_reset", flags([T], [F])))
    assert shapes(td) == [(1, 2), (2, 2)]
    env.reset()
    td = env.step(acting(env.reset(), 1).set("_step", flags(T, F)))
    assert shapes(td["next"]) == [(2, 2), (1, 2)]


@pytest.mark.row("E-105")
@pytest.mark.parametrize("breaks", [True, False])
def test_a_rollout_of_open_shapes(make, acting, breaks):
    env = make(2, functools.partial(toys_td.Growing, k=3))
    got = env.rollout(3, lambda td: acting(td, 1, 0.5), break_when_any_done=breaks)
    assert got.batch_size == (2, 3)
    assert got[0, 0]["next", "var"].shape == (2, 2)
    assert got[0, 2]["next", "var"].shape == (4, 2)
    assert got[1, 2]["next", "var"].shape == (2, 2)


@pytest.mark.row("E-106")
@pytest.mark.row("E-107")
@pytest.mark.parametrize("consolidate", [True, False])
def test_without_buffers_everything_is_the_same(make, acting, consolidate):
    def record(env):
        return env.rollout(6, lambda td: acting(td, 1, 2), break_when_any_done=False)

    expected = record(make(2, functools.partial(CountEnv, k=4)))
    found = record(make(2, functools.partial(CountEnv, k=4), use_buffers=False, consolidate=consolidate))
    assert (expected == found).all()
    assert set(expected.keys(True, True)) == set(found.keys(True, True))


@pytest.mark.row("E-107")
def test_a_row_that_cannot_be_packed_names_the_keyword():
    sparse = torch.zeros(2, 2).to_sparse()
    with pytest.raises(RuntimeError, match="consolidate=False") as caught:
        encoded(TensorDict({"x": sparse}, batch_size=()))
    assert caught.value.__cause__ is not None


@pytest.mark.parametrize("consolidate", [True, False])
def test_rows_survive_their_encoding(consolidate):
    from tensordict import NonTensorData, NonTensorStack

    row = TensorDict(
        {
            "half": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
            "nothing": torch.zeros(2, 0, dtype=torch.int64),
            "flag": flags(T, F),
            "complex": torch.tensor([1 + 2j, 0j]),
            "text": NonTensorStack("a", "b"),
            "deep": TensorDict({"x": torch.arange(6.0).reshape(2, 3).t().reshape(2, 3)}, batch_size=(2,)),
            "lazy": LazyStackedTensorDict(
                TensorDict({"y": torch.zeros(1)}), TensorDict({"y": torch.ones(2)}), stack_dim=0
            ),
            "same": NonTensorData({"a": [1]}, batch_size=(2,)),
        },
        batch_size=(2,),
    )
    found = decoded(encoded(row, consolidate=consolidate))
    assert found["half"].dtype == torch.bfloat16
    for key in ("half", "nothing", "flag", "complex", ("deep", "x")):
        torch.testing.assert_close(found[key], row[key], rtol=0, atol=0)
    assert list(found["text"]) == ["a", "b"]
    assert found["lazy"][1]["y"].tolist() == [1.0, 1.0]
    assert found["deep"].batch_size == (2,)
    assert found["same"] == {"a": [1]}
    found["half"].fill_(0)


def test_gymnasium_environments_that_are_unlike(make):
    env = make(2, [functools.partial(GymEnv, "CartPole-v1"), functools.partial(GymEnv, "Pendulum-v1")])
    td = env.reset()
    assert [tuple(row["observation"].shape) for row in td.unbind(0)] == [(4,), (3,)]
    stepped = env.rand_step(td)
    assert stepped["next", "reward"].shape == (2, 1)
    assert [row["action"].dtype for row in stepped.unbind(0)] == [torch.int64, torch.float32]


def test_gymnasium_environments_go_without_buffers_too(make):
    def record(**more):
        env = make(2, toys.Nested, create_env_kwargs={"k": 2}, **more)
        return env.rollout(
            4, lambda td: td.set("action", torch.zeros(2, dtype=torch.int64)), break_when_any_done=False
        )

    assert (record() == record(use_buffers=False)).all()
