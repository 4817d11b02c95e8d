"""Rows of the behaviour table on construction: metadata, settings, factories, and what is refused there."""

from __future__ import annotations

import functools
import warnings

import pytest
import toys_td
from toys_td import CountEnv

from rollout_contract.errors import LayoutMismatch
from rollout_worker.envs import EnvCreator, GymEnv, ParallelEnv, SerialEnv

calls: list[str] = []


def counted(**kwargs):
    calls.append("made")
    return CountEnv(**kwargs)


@pytest.mark.row("E-01")
def test_one_environment_is_made_to_look_at(make):
    calls.clear()
    env = make(4, counted)
    assert (calls, env.is_closed) == (["made"], True)
    make(2, [functools.partial(counted, start=1), functools.partial(counted, start=2)])
    assert len(calls) == 3
    creator = EnvCreator(counted)
    calls.clear()
    make(2, creator)
    assert calls == []


@pytest.mark.row("E-03")
@pytest.mark.row("E-94")
def test_one_task_and_several(make):
    assert make(3, [CountEnv] * 3).meta_data.name == make(3, CountEnv).meta_data.name
    several = make(2, [functools.partial(CountEnv, start=1), functools.partial(CountEnv, start=2)])
    assert len(several.meta_data) == 2
    td = several.reset()
    assert type(td).__name__ == "TensorDict"
    assert td["observation"].tolist() == [[1], [2]]
    assert type(several.observation_spec).__name__ == "Composite"


def test_equal_factories_are_one_task(make):
    equal = make(3, [functools.partial(counted, start=2) for _ in range(3)])
    assert equal.meta_data.name == make(3, CountEnv).meta_data.name
    calls.clear()
    make(3, [functools.partial(counted, start=2) for _ in range(3)], use_buffers=False)
    assert calls == ["made"]
    other = make(2, [functools.partial(counted, start=2), functools.partial(counted, start=3)])
    assert len(other.meta_data) == 2


@pytest.mark.row("E-05")
def test_keywords_that_change_shapes_are_refused(make):
    with pytest.raises(
        LayoutMismatch, match=r"'extra'.*\(1,\).* in environment 0 against .*\(2,\).*environment 1"
    ):
        make(2, CountEnv, create_env_kwargs=[{"extra": 1}, {"extra": 2}])


@pytest.mark.row("E-06")
@pytest.mark.probe("P-23")
def test_keywords_are_copied_for_each(make):
    given = {"start": 3}
    env = make(3, CountEnv, create_env_kwargs=given)
    env.create_env_kwargs[0]["start"] = 9
    given["start"] = 7
    assert env.create_env_kwargs[1:] == [{"start": 3}] * 2
    assert env.reset()["observation"].tolist() == [[3], [3], [3]]


@pytest.mark.row("E-07")
def test_an_empty_composite_is_refused(make):
    with pytest.raises(RuntimeError, match=r"Hollow.*'e'"):
        make(2, toys_td.Hollow)


@pytest.mark.row("E-08")
@pytest.mark.parametrize(
    ("more", "error"),
    [
        pytest.param({"memmap": True}, RuntimeError, id="memmap beside shared memory"),
        pytest.param({"num_threads": 0}, ValueError, id="no thread"),
        pytest.param({"on_env_error": "ignore"}, ValueError, id="another policy"),
        pytest.param({"factory": CountEnv()}, TypeError, id="an environment"),
    ],
)
def test_settings_that_contradict(make, more, error):
    with pytest.raises(error):
        make(2, **{"factory": CountEnv, **more})


def test_an_unknown_start_method_is_refused_at_once():
    with pytest.raises(ValueError, match="'sprout'; allowed are"):
        ParallelEnv(2, CountEnv, mp_start_method="sprout")
    with pytest.raises(TypeError, match="mp_start_method"):
        SerialEnv(2, CountEnv, mp_start_method="fork")


@pytest.mark.row("E-10")
def test_a_second_start_is_refused(make):
    env = make(2, CountEnv)
    env.start()
    with pytest.raises(RuntimeError, match="started already"):
        env.start()


@pytest.mark.row("E-11")
def test_specs_of_all_are_locked(make):
    env = make(2, CountEnv)
    env.reset()
    assert list(env.get_attr("is_spec_locked")) == [True, True]
    env.observation_spec = env.observation_spec.clone()
    assert env.observation_spec.is_locked
    with pytest.raises(RuntimeError, match="locked"):
        env.observation_spec["more"] = env.action_spec


@pytest.mark.row("E-12")
@pytest.mark.row("E-13")
def test_configuring(make):
    env = make(2, CountEnv)
    assert env.configure_parallel(use_buffers=False) is env
    env.reset()
    with pytest.raises(RuntimeError, match="runs: configure it before"):
        env.configure_parallel(use_buffers=True)
    env.close()
    assert env.configure_parallel(use_buffers=True) is env
    assert env.reset()["observation"].tolist() == [[0], [0]]
    with pytest.raises(NotImplementedError):
        CountEnv().configure_parallel(use_buffers=True)


@pytest.mark.row("E-14")
def test_configuring_refuses_what_the_constructor_refuses(make):
    env = make(2, toys_td.Growing)
    with pytest.raises(RuntimeError, match="memmap"):
        env.configure_parallel(memmap=True)
    with pytest.warns(UserWarning, match="use_buffers=True is not possible"):
        env.configure_parallel(use_buffers=True)
    assert not env._use_buffers
    if make.is_serial:
        with pytest.raises(TypeError, match="mp_start_method"):
            env.configure_parallel(mp_start_method="fork")
    assert env.reset()["var"].shape == (2, 1, 2)


@pytest.mark.row("E-15")
@pytest.mark.row("E-16")
def test_new_keywords_wait_for_the_next_start(make):
    env = make(2, CountEnv)
    env.reset()
    env.update_kwargs({"start": 50})
    assert env.reset()["observation"].tolist() == [[0], [0]]
    env.close()
    assert env.reset()["observation"].tolist() == [[50], [50]]
    env.close()
    env.update_kwargs([{"start": 1}, {"k": 9}])
    assert env.reset()["observation"].tolist() == [[1], [50]]
    with pytest.raises(RuntimeError, match="1 mappings of keywords for 2"):
        env.update_kwargs([{}])


@pytest.mark.row("E-17")
def test_one_object_given_twice_is_copied(make):
    env = make(3, toys_td.shared)
    td = env.reset().set("action", toys_td.torch.tensor([[1.0], [2.0], [0.5]]))
    assert env.step(td)["next", "observation"].tolist() == [[1], [2], [0.5]]
    assert len(set(env.n_step)) == 1


class Uncopyable(CountEnv):
    def __deepcopy__(self, memo):
        raise TypeError("no copies of this one")


ONLY = Uncopyable()


@pytest.mark.row("E-17")
def test_an_object_that_cannot_be_copied_is_shared_with_a_warning():
    env = SerialEnv(2, only_one)
    with pytest.warns(UserWarning, match="no copies of this one"):
        env.reset()
    env.close()


def only_one():
    return ONLY


@pytest.mark.row("E-18")
@pytest.mark.parametrize(
    ("factories", "more", "count"),
    [
        pytest.param(lambda: CountEnv(), {}, 1, id="a lambda"),
        pytest.param([*[lambda: CountEnv()] * 2], {}, 1, id="one lambda in a list"),
        pytest.param([lambda: CountEnv(), lambda: CountEnv(start=1)], {}, 1, id="two lambdas"),
        pytest.param(lambda: CountEnv(), {"auto_wrap_envs": False}, 0, id="not to be said"),
        pytest.param(functools.partial(CountEnv), {}, 0, id="a partial"),
        pytest.param(CountEnv, {}, 0, id="a class"),
    ],
)
@pytest.mark.probe("P-57")
def test_lambdas_are_named_once(factories, more, count):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        env = ParallelEnv(2, factories, mp_start_method="fork", num_processes=1, **more)
    assert [each.category for each in caught] == [UserWarning] * count
    is_one = not isinstance(factories, list) or factories[0] is factories[1]
    assert isinstance(env.meta_data, list) is not is_one
    with env:
        env.reset()


def test_the_warning_can_be_silenced(monkeypatch):
    monkeypatch.setenv("RL_WARNINGS", "0")
    ParallelEnv(2, lambda: CountEnv())


@pytest.mark.row("E-19")
def test_a_single_one_in_this_process():
    for one in (
        ParallelEnv(1, CountEnv, serial_for_single=True, mp_start_method="fork", auto_wrap_envs=True),
        ParallelEnv(num_workers=1, create_env_fn=CountEnv, serial_for_single=True),
    ):
        assert type(one) is SerialEnv
        assert one.batch_size == (1,)
    two = ParallelEnv(2, CountEnv, serial_for_single=True, mp_start_method="fork")
    assert type(two) is ParallelEnv
    assert two._settings.mp_start_method == "fork"


@pytest.mark.row("E-20")
def test_make_parallel():
    made = [
        ParallelEnv.make_parallel(CountEnv, num_envs=3),
        ParallelEnv.make_parallel(2, CountEnv),
        ParallelEnv.make_parallel(CountEnv),
        ParallelEnv.make_parallel(create_env_fn=CountEnv, num_envs=2),
        SerialEnv.make_parallel(CountEnv, num_envs=2),
        CountEnv.make_parallel(CountEnv, num_envs=2, mp_start_method="fork"),
    ]
    assert [env.num_workers for env in made] == [3, 2, 1, 2, 2, 2]
    assert {type(env) for env in made} == {ParallelEnv}


@pytest.mark.row("E-21")
def test_a_policy_proof_is_kept(make):
    seen = []
    env = make(2, CountEnv, policy_proof=seen.append)
    env.rollout(2)
    assert env.policy_proof == seen.append
    assert seen == []


@pytest.mark.row("E-22")
@pytest.mark.row("E-23")
def test_text_and_truncated_keys(make):
    env = make(2, [functools.partial(CountEnv), functools.partial(toys_td.Doubles)])
    assert "CountEnv" in repr(env)
    assert "Doubles" in repr(env)
    with pytest.raises(RuntimeError, match="environments themselves"):
        env.add_truncated_keys()


def test_an_env_creator_hands_its_state_on(make):
    calls.clear()
    creator = EnvCreator(stateful)
    assert creator.state_dict()["buf"] == 11.0
    env = make(2, creator)
    assert [float(state["buf"]) for state in env.state_dict().values()] == [11.0, 11.0]
    with pytest.raises(RuntimeError, match="create_env_kwargs differ"):
        make(2, creator, create_env_kwargs={"k": 3})


def stateful():
    env = CountEnv()
    if not calls or calls[-1] != "state":
        env.buf.fill_(11.0)
        calls.append("state")
    return env


def test_an_env_creator_of_gymnasium(make):
    env = make(2, EnvCreator(GymEnv, {"env_name": "CartPole-v1"}))
    assert env.rollout(3).batch_size[0] == 2
